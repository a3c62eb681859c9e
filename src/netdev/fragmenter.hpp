// A datagram above the path's MTU into IPv4 fragments (N-2), the counterpart of ip/reassembly.hpp.
//
//   head (Ethernet, IPv4, transport header) + payload of n bytes
//     -> | Ethernet | IPv4 MF, offset 0 | transport header | payload ...       |
//        | Ethernet | IPv4 MF, offset p |                    payload ...       |   p a multiple of 8
//        | Ethernet | IPv4,    offset q |                    rest              |
//
// The datagram travels to the output in one piece, marked Gso::fragments4 with the MTU as its
// gso_size, so that it waits for its neighbour whole. Its transport checksum is complete, its id drawn.
// Payload is not touched: fragments hold references to the pages.
//
// An iterator, as one datagram can be most of a burst: it gives a fragment at a time and owns the rest.
// Threads: the shard's. Cost: O(frags) a fragment. Nothing allocates; one packet of the pool each.
#pragma once

#include <array>
#include <cstdint>

#include "skb/packet.hpp"

namespace nobounce {

class Fragmenter {
 public:
  Fragmenter() = default;  // done() from the start
  // Takes a frame of our own making, as above: asserts its form, and that the transport header fits
  // the first fragment (fits()).
  explicit Fragmenter(PacketPtr frame) noexcept;

  // Transport bytes a fragment can have.
  [[nodiscard]] static size_t piece_bytes(size_t mtu) noexcept;
  // Whether a datagram whose head begins at the transport header can be cut for that MTU.
  [[nodiscard]] static bool fits(const Packet& packet, size_t mtu) noexcept;

  [[nodiscard]] bool done() const noexcept { return rest_ == nullptr; }
  // The next fragment. Null when done, or when the packet pool is empty: the rest is then kept.
  [[nodiscard]] PacketPtr next() noexcept;

 private:
  void write_head(Packet& fragment, bool is_last) noexcept;

  PacketPtr rest_;  // payload not yet sent; its head is pulled
  std::array<std::byte, kHeadBytes> head_;
  size_t head_size_ = 0;
  size_t piece_ = 0;  // transport bytes a fragment
  size_t offset_ = 0;
};

}  // namespace nobounce
