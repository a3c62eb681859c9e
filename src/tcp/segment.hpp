// A received segment: header fields in private values, payload in the frags of its packet.
//
// parse_segment() is the only maker. It verifies the checksum when nobody vouched for it (T-1), once
// and before anything is acted on, then gives the payload back to the frags: the packet's head is
// empty afterwards and its size is the payload's.
#pragma once

#include <cstdint>
#include <expected>

#include "ip/ip_layer.hpp"
#include "tcp/seqnum.hpp"
#include "wire/tcp.hpp"

namespace nobounce::tcp {

struct Segment {
  PacketPtr packet;  // null once somebody took the payload
  uint16_t source_port = 0;
  uint16_t destination_port = 0;
  Seq seq;
  Seq ack;
  uint8_t flags = 0;
  uint16_t window = 0;   // as on the wire, unscaled
  uint32_t payload = 0;  // bytes left, after trimming
  uint16_t wire_segments = 1;
  wire::TcpOptions options;

  [[nodiscard]] bool has(uint8_t flag) const noexcept { return (flags & flag) != 0; }
  // Sequence space it occupies (SEG.LEN).
  [[nodiscard]] uint32_t length() const noexcept {
    return payload + (has(wire::kTcpSyn) ? 1 : 0) + (has(wire::kTcpFin) ? 1 : 0);
  }
  [[nodiscard]] Seq end() const noexcept { return seq + length(); }

  void cut_front(uint32_t bytes) noexcept;  // sequence moves with it
  void cut_back_to(uint32_t bytes) noexcept;
};

enum class SegmentCause : uint8_t { bad_header, bad_checksum, no_memory };

[[nodiscard]] std::expected<Segment, SegmentCause> parse_segment(PacketPtr packet,
                                                                 const ip::Ingress& ingress,
                                                                 PrivateArena& arena) noexcept;

}  // namespace nobounce::tcp
