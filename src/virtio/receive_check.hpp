// What a received virtio_net_hdr may say, given the negotiated features and the frame's length.
//
// A function of private values: the header was copied out once. It takes offloads or refuses the
// frame; it never looks at the frame's bytes. What needs parsed headers (is csum_start our own
// transport offset? does gso_type fit the protocol?) is checked in ip/, from the packet's fields.
// Cost: O(1). Spec: TM-40..TM-42; virtio.md 8.2 (VIRTIO 1.2 5.1.6.4).
#pragma once

#include <cstdint>
#include <expected>

#include "skb/packet.hpp"
#include "wire/virtio_net_hdr.hpp"

namespace nobounce::virtio {

// Why a received frame was dropped by the driver: one counter each.
enum class RxDrop : uint8_t {
  runt,          // shorter than the headers of the device and the link (TM-10)
  too_long,      // beyond the largest frame (TM-39)
  buffer_count,  // num_buffers is 0 or more than a frame can need (TM-38)
  incomplete,    // fewer buffers there than num_buffers says (TM-38)
  empty_buffer,  // a following buffer without a byte
  gso_type,      // not negotiated, unknown
  gso_size,      // 0
  gso_checksum,  // segments whose checksum nobody vouches for
  checksum,      // NEEDS_CSUM not negotiated, or its place is outside the frame or no known one
  no_packet,     // the shard's packet pool is empty
  low_buffers,   // kept the buffer: the ring is at its floor and no page is to be had (TM-69)
};
inline constexpr size_t kRxDrops = 11;
[[nodiscard]] const char* name(RxDrop drop) noexcept;

struct ReceiveOffload {
  Checksum checksum = Checksum::none;
  uint16_t csum_start = 0;
  uint16_t csum_offset = 0;
  Gso gso = Gso::none;
  uint16_t gso_size = 0;
  uint16_t gso_segments = 1;
};

// `features`: the accepted ones. `frame_bytes`: without the virtio header, validated.
[[nodiscard]] std::expected<ReceiveOffload, RxDrop> check_receive(
    const wire::VirtioNetHeader& header, uint64_t features, size_t frame_bytes) noexcept;

}  // namespace nobounce::virtio
