// Reassembly of IPv4 fragments, within bounds that no sender can move.
//
//   add(fragment) -> source (keyed hash of the address)
//                      +-> datagram (destination, protocol, id)
//                            fragments by offset, each the packet it came as:
//                            | 0: head = transport header, frags | 1480: frags | 2960: frags | ...
//                    all there -> one packet, its frags those of the fragments
//
// A datagram, from its first fragment to its last:
//
//   state      holds           | fragment fits | overlap, two ends | 30 s           | room needed
//   collecting pages, header   | kept          | -> poisoned       | gone, ICMP (1) | gone when oldest
//   poisoned   nothing         | dropped       | dropped           | gone           | gone when oldest
//   whole      handed up       |               |                   |                |
//   (1) "time exceeded in reassembly" when the first fragment is there (RFC 792), rate limited.
//
// Invariants
//  1. Metadata is private; payload stays in the pages it came in. Only when the pieces are more than a
//     packet's frags are they copied once, into private pages (counted: "compacted").
//  2. The transport header is what the first fragment's private head held, never read again (C018).
//     Fragments are not vouched for by a device: the whole is checked in software.
//  3. Fragments of a datagram never overlap: an exact duplicate is ignored, any other overlap drops
//     all of the datagram, also what has yet to come (RFC 5722, RFC 8900 3.1 for IPv4).
//  4. Bounds, each counted when it is hit. Memory is charged by page, true size (TM-67):
//       datagrams        64 in all, 16 a source: a new one displaces the oldest
//       fragments        128 a datagram: 65,515 bytes in pieces of 552 (MTU 576) are 119
//       pages            `pages_max` in all, half of it a source (but one datagram of 128 fits)
//     A datagram that is honest is whole within milliseconds, so the oldest is the one to lose; when
//     pages run out, the oldest of the source that holds most.
//  5. Every fragment holds a page at least: packets held <= pages held <= pages_max. The shard's
//     packet pool counts them in its sum.
//
// Threads: the shard's. Cost: O(1) a fragment that comes in order, O(128) otherwise; one timer.
// Nothing allocates after construction. Counters: "ip.reassembly.<what>".
// Spec: tcp.md N-3; threat-model TM-44..TM-47, TM-67; C050, C117.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "base/object_pool.hpp"
#include "base/siphash.hpp"
#include "netdev/shard_context.hpp"
#include "nobounce/address.hpp"
#include "wire/ipv4.hpp"

namespace nobounce::ip {

class Reassembly {
 public:
  static constexpr uint64_t kTimeoutNs = 30 * kNsPerSecond;
  static constexpr size_t kDatagramsMax = 64;
  static constexpr size_t kDatagramsPerSource = 16;
  static constexpr size_t kFragmentsMax = 128;
  static constexpr size_t kPacketMax = 65535;

  // Told of a datagram that was not whole in time and whose first fragment is there: `first` has its
  // head at the transport header, `header` is its IP header.
  class Observer {
   public:
    virtual void timed_out(const Packet& first, const wire::Ipv4View& header) noexcept = 0;

   protected:
    ~Observer() = default;
  };

  // A datagram as if it had come in one piece: head at the transport header, and the IP header that
  // piece would have had.
  struct Whole {
    PacketPtr packet;
    std::array<std::byte, wire::kIpv4HeaderSizeMax> header_bytes{};
    size_t header_size = 0;
    [[nodiscard]] Bytes header() const noexcept { return Bytes(header_bytes).first(header_size); }
  };

  Reassembly(ShardContext& context, Observer& observer, size_t pages_max);
  ~Reassembly();

  // Takes a fragment whose addresses were judged already: head at its IP header (`header` views it),
  // cut to its total length. Gives the datagram when this was the last that was missing.
  [[nodiscard]] std::optional<Whole> add(PacketPtr packet, const wire::Ipv4View& header) noexcept;

  [[nodiscard]] size_t datagrams() const noexcept { return datagrams_.in_use(); }
  [[nodiscard]] size_t pages() const noexcept { return pages_; }
  [[nodiscard]] size_t pages_max() const noexcept { return pages_max_; }
  [[nodiscard]] size_t pages_per_source_max() const noexcept { return pages_per_source_max_; }

 private:
  struct Source;
  struct AgeHook : ListHook {};
  struct SourceHook : ListHook {};
  struct Datagram : AgeHook, SourceHook {
    Source* source = nullptr;
    IpAddress destination;
    uint16_t id = 0;
    uint8_t protocol = 0;
    bool is_poisoned = false;
    uint8_t ecn_seen = 0;  // bit n: a fragment came with ECN field n
    uint64_t deadline_ns = 0;
    uint32_t total = 0;  // transport bytes; 0 until the last fragment says so
    uint32_t held = 0;
    uint32_t pages = 0;
    List<Packet> fragments;  // by offset: transport.sequence to transport.end_sequence
    std::array<std::byte, wire::kIpv4HeaderSizeMax> header{};  // of the first fragment
    uint8_t header_size = 0;                                   // 0: it is not there
  };
  struct Source : ListHook {
    IpAddress address;
    uint32_t pages = 0;
    Source* chain = nullptr;
    List<Datagram, SourceHook> datagrams;  // oldest first
  };
  // Where a fragment lies in its datagram, in transport bytes.
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
    bool is_last = false;
  };

  [[nodiscard]] std::optional<Range> range_of(const Packet& packet,
                                              const wire::Ipv4View& header) noexcept;
  [[nodiscard]] Source** bucket(const IpAddress& address) noexcept;
  [[nodiscard]] Source* find_source(const IpAddress& address) noexcept;
  [[nodiscard]] Datagram* find(const wire::Ipv4View& header) noexcept;
  [[nodiscard]] Datagram& make(const wire::Ipv4View& header) noexcept;

  [[nodiscard]] bool fits_ends(Datagram& datagram, const Range& range) noexcept;
  [[nodiscard]] bool insert(Datagram& datagram, PacketPtr packet, const wire::Ipv4View& header,
                            const Range& range) noexcept;
  void keep(Datagram& datagram, PacketPtr packet, const wire::Ipv4View& header, const Range& range,
            Packet* behind) noexcept;
  // Room for `pages` more of `datagram`; false when it had to go itself.
  [[nodiscard]] bool make_room(Datagram& datagram, uint32_t pages) noexcept;
  [[nodiscard]] Source& heaviest() noexcept;

  [[nodiscard]] std::optional<Whole> complete(Datagram& datagram) noexcept;
  [[nodiscard]] bool settle_ecn(const Datagram& datagram, MutableBytes header) noexcept;
  [[nodiscard]] PacketPtr join(Datagram& datagram) noexcept;
  [[nodiscard]] PacketPtr compact(Datagram& datagram) noexcept;

  void release_fragments(Datagram& datagram) noexcept;
  void poison(Datagram& datagram) noexcept;
  void remove(Datagram& datagram) noexcept;
  void on_timer(uint64_t now_ns) noexcept;
  void rearm() noexcept;

  ShardContext& context_;
  Observer& observer_;
  const size_t pages_max_;
  const size_t pages_per_source_max_;
  SipKey key_;
  ObjectPool<Datagram> datagrams_{kDatagramsMax};
  ObjectPool<Source> sources_{kDatagramsMax};  // each has a datagram
  std::vector<Source*> buckets_;               // a power of two
  List<Source> live_sources_;
  List<Datagram, AgeHook> by_age_;  // all wait equally long: by deadline too
  Timer timer_;
  size_t pages_ = 0;

  Counter fragments_, whole_, compacted_, compacted_bytes_, duplicates_, timed_out_, bad_length_,
      too_long_, overlap_, two_ends_, mixed_ecn_, late_, no_memory_, limit_fragments_,
      limit_datagrams_, limit_source_datagrams_, limit_pages_, limit_source_pages_;
};

}  // namespace nobounce::ip
