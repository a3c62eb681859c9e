#include "virtio/receive_check.hpp"

#include <algorithm>
#include <array>

#include "wire/ethernet.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

constexpr uint16_t kTcpChecksumAt = 16;
constexpr uint16_t kUdpChecksumAt = 6;
constexpr size_t kTcpHeaderMin = 20;

std::unexpected<RxDrop> drop(RxDrop reason) noexcept { return std::unexpected(reason); }

bool is_gso_negotiated(uint8_t type, uint64_t features) noexcept {
  // The ECN flag stands beside the type and needs a feature that we do not take.
  if (type == wire::kNetGsoTcp4) return (features & wire::kNetGuestTso4) != 0;
  if (type == wire::kNetGsoTcp6) return (features & wire::kNetGuestTso6) != 0;
  return false;
}

// A hint for the acknowledgement policy: counted from what is certainly payload.
uint16_t segments_of(size_t frame_bytes, const ReceiveOffload& offload) noexcept {
  const size_t headers = std::min(frame_bytes, offload.csum_start + kTcpHeaderMin);
  const size_t payload = frame_bytes - headers;
  const size_t segments = (payload + offload.gso_size - 1) / offload.gso_size;
  return static_cast<uint16_t>(std::clamp<size_t>(segments, 1, 65535));
}

}  // namespace

const char* name(RxDrop drop) noexcept {
  constexpr std::array<const char*, kRxDrops> kNames{
      "runt",     "too_long",     "buffer_count", "incomplete", "empty_buffer", "gso_type",
      "gso_size", "gso_checksum", "checksum",     "no_packet",  "low_buffers"};
  return kNames[static_cast<size_t>(drop)];
}

std::expected<ReceiveOffload, RxDrop> check_receive(const wire::VirtioNetHeader& header,
                                                    uint64_t features,
                                                    size_t frame_bytes) noexcept {
  ReceiveOffload offload;
  const bool may_vouch = (features & wire::kNetGuestCsum) != 0;
  if ((header.flags & wire::kNetNeedsCsum) != 0) {
    if (!may_vouch) return drop(RxDrop::checksum);
    if (header.csum_offset != kTcpChecksumAt && header.csum_offset != kUdpChecksumAt) {
      return drop(RxDrop::checksum);
    }
    const size_t end = size_t{header.csum_start} + header.csum_offset + 2;
    if (header.csum_start < wire::kEthernetHeaderSize || end > frame_bytes) {
      return drop(RxDrop::checksum);
    }
    offload.checksum = Checksum::partial;
    offload.csum_start = header.csum_start;
    offload.csum_offset = header.csum_offset;
  } else if ((header.flags & wire::kNetDataValid) != 0 && may_vouch) {
    offload.checksum = Checksum::verified;
  }
  if (header.gso_type == wire::kNetGsoNone) return offload;

  if (!is_gso_negotiated(header.gso_type, features)) return drop(RxDrop::gso_type);
  if (header.gso_size == 0) return drop(RxDrop::gso_size);
  if (offload.checksum == Checksum::none) return drop(RxDrop::gso_checksum);
  offload.gso_size = header.gso_size;
  offload.gso_segments = segments_of(frame_bytes, offload);
  if (offload.gso_segments > 1) {
    offload.gso = header.gso_type == wire::kNetGsoTcp4 ? Gso::tcp4 : Gso::tcp6;
  }
  return offload;
}

}  // namespace nobounce::virtio
