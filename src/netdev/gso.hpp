// Software segmentation: one super-packet into the packets a sender without GSO would have sent.
//
//   head (Ethernet, IP, TCP) + payload of n bytes, gso_size m
//     -> ceil(n / m) packets, each with a copy of the head and m bytes of payload (the last: rest)
//
// Per segment (G-1): contiguous sequence numbers, options copied verbatim, FIN and PSH on the last
// only, CWR on the first only, lengths of its own, IPv4 id increasing, IPv4 header checksum filled
// (whatever it was before: C123). The TCP checksum stays partial, its field holding the sum of the
// segment's own pseudo header: the device or complete_checksum() finishes it.
// Payload is not touched: segments hold references to the pages.
//
// A splitter is an iterator, because one super-packet can be more than a burst: it gives a segment
// at a time and owns the rest. Destroying it drops what was not taken.
// Threads: the shard's. Cost: O(frags) a segment. Nothing allocates; one packet of the pool a
// segment. Errors: the fields may come from the other side (a guest's virtio header), so open()
// checks them. Spec: tcp.md G-1, G-2, G-4; C123.
#pragma once

#include <array>
#include <cstdint>
#include <expected>

#include "skb/packet.hpp"

namespace nobounce {

enum class GsoCause : uint8_t {
  not_gso,      // gso none or gso_size 0
  bad_headers,  // not Ethernet + IPv4 | IPv6 + TCP in the head, or not where csum_start says
  not_partial,  // the TCP checksum is not partial
};

// A received super-packet may hold payload in its head (the driver's window): gives it back to the
// frags, so that it can be cloned and cut. False when the headers are not what the packet's fields
// say, or do not fit. Does nothing to other packets. Before anything else holds the packet's data.
[[nodiscard]] bool keep_headers_only(Packet& packet) noexcept;

class GsoSplitter {
 public:
  GsoSplitter() = default;  // done() from the start
  // Takes the packet in every case; on error it is dropped.
  [[nodiscard]] static std::expected<GsoSplitter, GsoCause> open(PacketPtr packet) noexcept;

  [[nodiscard]] bool done() const noexcept { return rest_ == nullptr; }
  // The next segment. Null when done, or when the packet pool is empty: the rest is then kept and
  // next() may be tried again later.
  [[nodiscard]] PacketPtr next() noexcept;

 private:
  void write_head(Packet& segment, bool is_first, bool is_last) noexcept;

  PacketPtr rest_;  // payload not yet cut; its head is pulled
  std::array<std::byte, kHeadBytes> head_;
  size_t head_size_ = 0;
  size_t network_ = 0;    // offset of the IP header
  size_t transport_ = 0;  // offset of the TCP header
  size_t segment_size_ = 0;
  uint32_t sequence_ = 0;
  uint16_t identification_ = 0;
  bool is_v6_ = false;
  bool started_ = false;
};

}  // namespace nobounce
