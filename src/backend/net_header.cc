#include "backend/net_header.hpp"

#include <algorithm>

#include "base/checksum.hpp"
#include "wire/ethernet.hpp"
#include "wire/ipv4.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

constexpr size_t kTcpHeaderMin = 20;

// Where the payload of a super-frame begins. The TCP header is read from the private head and only
// ever changes a count or a hint.
size_t header_bytes(const Packet& packet) noexcept {
  const Bytes head = packet.head();
  const size_t data_offset = size_t{packet.csum_start} + 12;
  if (data_offset >= head.size()) return packet.csum_start + kTcpHeaderMin;
  const size_t words = static_cast<size_t>(head[data_offset]) >> 4;
  return packet.csum_start + std::max(words * 4, kTcpHeaderMin);
}

// How many wire segments a super-frame stands for.
uint16_t segments_of(const Packet& packet, size_t frame_bytes) noexcept {
  const size_t headers = header_bytes(packet);
  if (frame_bytes <= headers) return 1;
  const size_t payload = frame_bytes - headers;
  const size_t count = (payload + packet.gso_size - 1) / packet.gso_size;
  return static_cast<uint16_t>(std::min<size_t>(count, UINT16_MAX));
}

}  // namespace

std::expected<void, Drop> apply_net_header(const wire::VirtioNetHeader& header, Packet& packet,
                                           size_t frame_bytes, const NetOffloads& agreed) noexcept {
  const bool partial = (header.flags & wire::kNetNeedsCsum) != 0;
  if (partial) {
    if (!agreed.checksum) return std::unexpected(Drop::csum_not_negotiated);
    const size_t end = size_t{header.csum_start} + header.csum_offset + sizeof(uint16_t);
    if (header.csum_start < kLinkHeaderBytes || end > frame_bytes) {
      return std::unexpected(Drop::csum_range);
    }
    packet.checksum = Checksum::partial;
    packet.csum_start = header.csum_start;
    packet.csum_offset = header.csum_offset;
  } else if (agreed.data_valid && (header.flags & wire::kNetDataValid) != 0) {
    packet.checksum = Checksum::verified;
  }
  switch (header.gso_type) {
    case wire::kNetGsoNone:
      return {};
    case wire::kNetGsoTcp4:
      if (!agreed.tso4) return std::unexpected(Drop::gso_not_negotiated);
      packet.gso = Gso::tcp4;
      break;
    case wire::kNetGsoTcp6:
      if (!agreed.tso6) return std::unexpected(Drop::gso_not_negotiated);
      packet.gso = Gso::tcp6;
      break;
    default:  // UFO, USO, ECN: never offered
      return std::unexpected(Drop::gso_not_negotiated);
  }
  if (!partial || header.gso_size == 0) return std::unexpected(Drop::gso_invalid);
  packet.gso_size = header.gso_size;
  packet.gso_segments = segments_of(packet, frame_bytes);
  return {};
}

std::expected<wire::VirtioNetHeader, Drop> make_net_header(const Packet& packet,
                                                           const NetOffloads& agreed) noexcept {
  wire::VirtioNetHeader header;
  if (packet.checksum == Checksum::partial) {
    if (!agreed.checksum) return std::unexpected(Drop::csum_not_negotiated);
    const size_t end = size_t{packet.csum_start} + packet.csum_offset + sizeof(uint16_t);
    if (end > packet.size()) return std::unexpected(Drop::csum_range);
    header.flags = wire::kNetNeedsCsum;
    header.csum_start = packet.csum_start;
    header.csum_offset = packet.csum_offset;
  } else if (packet.checksum == Checksum::verified && agreed.data_valid) {
    header.flags = wire::kNetDataValid;
  }
  if (packet.gso == Gso::none) return header;
  const bool tcp4 = packet.gso == Gso::tcp4;
  if (!(tcp4 ? agreed.tso4 : agreed.tso6)) return std::unexpected(Drop::gso_not_negotiated);
  if (packet.checksum != Checksum::partial || packet.gso_size == 0) {
    return std::unexpected(Drop::gso_invalid);
  }
  header.gso_type = tcp4 ? wire::kNetGsoTcp4 : wire::kNetGsoTcp6;
  header.gso_size = packet.gso_size;
  // A received frame has more than its headers in the head; none has them elsewhere.
  header.hdr_len = static_cast<uint16_t>(std::min(header_bytes(packet), packet.head().size()));
  return header;
}

bool fix_ipv4_checksum(Packet& packet) noexcept {
  if (packet.gso != Gso::tcp4) return false;
  const MutableBytes head = packet.mutable_head();
  if (head.size() < kLinkHeaderBytes + wire::kIpv4HeaderSize) return false;
  if (load_be<uint16_t>(head, 12) != wire::kEtherTypeIpv4) return false;
  const size_t size = size_t{load_be<uint8_t>(head, kLinkHeaderBytes) & 0xfu} * 4;
  if (size < wire::kIpv4HeaderSize || head.size() < kLinkHeaderBytes + size) return false;
  const MutableBytes header = head.subspan(kLinkHeaderBytes, size);
  const auto was = load_be<uint16_t>(header, 10);
  store_be<uint16_t>(header, 10, 0);
  const uint16_t right = checksum_finish(checksum_add(0, header));
  store_be<uint16_t>(header, 10, right);
  return was != right;
}

}  // namespace nobounce::backend
