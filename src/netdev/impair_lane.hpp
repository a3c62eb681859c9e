// One direction of a bad wire: packets go in, come out late, out of order, twice, damaged, or not.
//
//   put() -> lost? -> copies, one bit flipped? -> rate: busy until -> + delay -> line (in order)
//                                                       reorder? -> held, until later ones passed
//   take() <- due packets of the line, and the held ones whose turn it is
//
// What goes in are wire packets (impair.hpp makes them). Each draws its fate from the lane's own
// generator, the same number of draws every time: the nth packet has the same fate in every run with
// that seed, whatever became of others and of the other direction.
//
// A bit is flipped on a private copy: other holders of the payload (a sender's clone waiting for
// retransmission) go on reading what was. Addresses of the Ethernet header are left alone, and so
// is what carries neither IPv4 nor IPv6: a real wire's own check would have dropped those frames
// (which `loss` does), while here nothing above could notice. A duplicate is a copy too, so that
// each can be parsed on its own.
//
// Threads: the shard's. Cost: O(1) a packet, O(kHeldMax) a take(); one copy of the frame for each
// duplicate or damage. Allocates in the constructor only. Dropped with the lane: what is in it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "netdev/impair_options.hpp"
#include "netdev/shard_context.hpp"
#include "skb/packet.hpp"

namespace nobounce {

struct ImpairCounters {
  // "impair.tx.packets" and so on; `direction` is tx or rx.
  ImpairCounters(CounterRegistry& registry, const char* direction);

  Counter packets;  // wire packets that arrived
  Counter lost;
  Counter duplicated;
  Counter reordered;
  Counter reorder_queue_full;  // were to be, but too many already were: stayed in order
  Counter corrupted;
  Counter delayed;             // were not due at once
  Counter dropped_queue_full;  // beyond the router's queue
  Counter dropped_headers;     // a super-frame or a partial checksum that makes no sense
  Counter no_packets;          // neither packets nor pages for a segment or a copy
};

class ImpairLane {
 public:
  // The delay line: full-sized frames of 1 Gbit/s for 10 ms (833); the router's queue: 1000, as
  // Linux has it. In both directions together less than half of what a shard has of packets.
  static constexpr size_t kLineMax = 2048;
  // Reordered and not gone yet: a quarter of the delay line's 833. Beyond it packets stay in order.
  static constexpr size_t kHeldMax = 256;
  // A held packet goes after 1 to 4 later ones, or after that time when there are none.
  static constexpr uint32_t kPassedMax = 4;
  static constexpr uint64_t kHoldNs = 4 * kNsPerMs;
  // The queue in front of a slow wire: 50 ms of its rate, as much as a router has, but no less than
  // 32 frames of 1514 bytes, so that a window can grow at low rates.
  static constexpr uint64_t kQueueNs = 50 * kNsPerMs;
  static constexpr uint64_t kQueueMinBytes = uint64_t{32} * 1514;

  ImpairLane(ShardContext& context, const ImpairOptions& options, uint64_t seed,
             const ImpairCounters& counters);

  void put(PacketPtr packet, uint64_t now_ns) noexcept;
  // The next packet that is due; null when none is.
  [[nodiscard]] PacketPtr take(uint64_t now_ns) noexcept;
  [[nodiscard]] std::optional<uint64_t> next_due_ns() const noexcept;
  [[nodiscard]] size_t size() const noexcept { return line_size_ + held_count_; }
  // Half full of packets that only wait to be taken: who fills it should wait too, as nothing of
  // that is the wire's doing. What is left takes the segments of one more super-frame.
  [[nodiscard]] bool is_congested(uint64_t now_ns) const noexcept {
    return line_size_ > kLineMax / 2 && line_[line_front_].due_ns <= now_ns;
  }

 private:
  struct Waiting {
    PacketPtr packet;
    uint64_t due_ns = 0;
    uint64_t turn = 0;  // held: when so many have left the line
  };

  [[nodiscard]] bool happens(uint64_t threshold) noexcept { return random_.next_u32() < threshold; }
  [[nodiscard]] PacketPtr damage(PacketPtr packet, uint32_t random) noexcept;
  // `later`: how many packets pass it; 0 keeps the order.
  void enqueue(PacketPtr packet, uint64_t now_ns, uint32_t later) noexcept;
  [[nodiscard]] bool leave_rate(size_t bytes, uint64_t now_ns, uint64_t& due_ns) noexcept;
  [[nodiscard]] PacketPtr take_held(uint64_t now_ns) noexcept;

  ShardContext& context_;
  SeededRandom random_;
  ImpairCounters counters_;
  // Chances as shares of 2^32.
  uint64_t loss_, reorder_, duplicate_, corrupt_;
  uint64_t delay_ns_;
  uint64_t rate_;
  uint64_t queue_bytes_;        // bound of the router's queue
  uint64_t busy_until_ns_ = 0;  // when the last bit of the last packet leaves

  std::vector<Waiting> line_;  // a ring, by due time
  size_t line_front_ = 0;
  size_t line_size_ = 0;
  uint64_t entered_ = 0;  // packets that ever entered or left the line
  uint64_t left_ = 0;
  std::array<Waiting, kHeldMax> held_;  // the first held_count_, oldest first
  size_t held_count_ = 0;
};

}  // namespace nobounce
