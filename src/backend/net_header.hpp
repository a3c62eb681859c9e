// The virtio-net header in front of a frame, judged and made: the same on the guest's rings and on
// the kernel's TAP, which speaks the same format.
//
// Whoever wrote the header is not trusted: what it says counts when it was agreed and lies inside
// the frame; else the frame is dropped for the reason returned. num_buffers and bytes that a TAP
// leaves as they were are never looked at (C115).
// Plain functions of their arguments. Spec: virtio.md 8; C115, C123.
#pragma once

#include <cstdint>
#include <expected>

#include "backend/counters.hpp"
#include "skb/packet.hpp"
#include "wire/virtio_net_hdr.hpp"

namespace nobounce::backend {

inline constexpr size_t kLinkHeaderBytes = 14;

// What one direction may carry.
struct NetOffloads {
  bool checksum = false;  // partial checksums
  bool tso4 = false;      // super-frames; mean nothing without `checksum`
  bool tso6 = false;
  bool data_valid = false;  // "I have verified the checksum"

  friend bool operator==(const NetOffloads&, const NetOffloads&) = default;
};

// Sets checksum and gso fields of a received frame. `packet` holds all its `frame_bytes`.
[[nodiscard]] std::expected<void, Drop> apply_net_header(const wire::VirtioNetHeader& header,
                                                         Packet& packet, size_t frame_bytes,
                                                         const NetOffloads& agreed) noexcept;

// The header for a frame that is sent; num_buffers is 0. What was not agreed is refused, never sent
// half true: the agreement may have changed since the packet was made.
[[nodiscard]] std::expected<wire::VirtioNetHeader, Drop> make_net_header(
    const Packet& packet, const NetOffloads& agreed) noexcept;

// The IPv4 header checksum of a tcp4 super-frame, filled in place in the private head when it is
// not right: who cuts the frame may believe it, and would then drop all of it (C123). True when it
// had to be changed.
[[nodiscard]] bool fix_ipv4_checksum(Packet& packet) noexcept;

}  // namespace nobounce::backend
