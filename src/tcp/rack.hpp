// Loss by time (RACK, RFC 8985 6): what was sent earlier than something that has arrived, and is older
// than a round trip and a little patience, is lost, be it sent for the first time or again.
//
//   sent:     A    B    C         D
//   arrived:       .    .         D, rtt ago      lost: what of A, B, C is older than rtt + window
//                                 |-- rtt -->|-- window -->|
//
// The patience (reordering window) is none at first, so that losses are repaired at once. Once the path
// is seen to reorder it is a quarter of the least round trip, and a further one for each round trip in
// which a repair proves to have been for nothing (D-SACK), up to a smoothed round trip; after sixteen
// recoveries without such proof it begins anew.
//
// Plain state and arithmetic; what follows from it is done in recovery.cc. Cost: O(1).
// Spec: T-41.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.hpp"
#include "tcp/scoreboard.hpp"
#include "tcp/seqnum.hpp"

namespace nobounce::tcp {

// The least round trip of the last ten to twenty seconds: a path may become longer.
class LeastRtt {
 public:
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  void sample(uint64_t rtt_ns, uint64_t now_ns) noexcept {
    if (now_ns - since_ns_ > kPeriodNs) {
      before_ns_ = current_ns_;
      current_ns_ = kUnknown;
      since_ns_ = now_ns;
    }
    current_ns_ = std::min(current_ns_, rtt_ns);
  }
  [[nodiscard]] uint64_t value_ns() const noexcept { return std::min(before_ns_, current_ns_); }

 private:
  static constexpr uint64_t kPeriodNs = 10 * kNsPerSecond;
  uint64_t current_ns_ = kUnknown;
  uint64_t before_ns_ = kUnknown;
  uint64_t since_ns_ = 0;
};

struct Rack {
  static constexpr uint32_t kRecoveriesKept = 16;
  static constexpr uint32_t kSackedMax = 3;  // segments: as good as three duplicates

  LeastRtt least_rtt;
  bool any = false;        // the next three are set
  uint64_t newest_ns = 0;  // when the latest of what has arrived was sent
  Seq newest_end;
  uint64_t rtt_ns = 0;  // how long ago that was when it was acknowledged
  bool reordering_seen = false;
  uint32_t window_steps = 1;
  uint32_t recoveries_left = 0;  // until window_steps is 1 again
  std::optional<Seq> dsack_round_end;

  // Answers before that cannot be for a copy sent again.
  [[nodiscard]] uint64_t again_until_ns(uint64_t now_ns) const noexcept {
    const uint64_t least = least_rtt.value_ns();
    return least < now_ns ? now_ns - least : 0;
  }

  void delivered(const Delivery& delivery, uint64_t now_ns) noexcept {
    if (delivery.newest_once_ns != 0) {
      least_rtt.sample(now_ns - delivery.newest_once_ns, now_ns);
    }
    if (delivery.reordered) reordering_seen = true;
    if (!delivery.any) return;
    rtt_ns = now_ns - delivery.newest_ns;
    const bool newer = !any || delivery.newest_ns > newest_ns ||
                       (delivery.newest_ns == newest_ns && delivery.newest_end > newest_end);
    if (!newer) return;
    any = true;
    newest_ns = delivery.newest_ns;
    newest_end = delivery.newest_end;
  }

  // A repair was for nothing.
  void was_needless(Seq una, Seq nxt) noexcept {
    if (dsack_round_end && una >= *dsack_round_end) dsack_round_end.reset();
    reordering_seen = true;
    if (dsack_round_end) return;
    dsack_round_end = nxt;
    ++window_steps;
    recoveries_left = kRecoveriesKept;
  }
  void recovery_ended() noexcept {
    if (recoveries_left == 0) return;
    --recoveries_left;
    if (recoveries_left == 0) window_steps = 1;
  }

  enum class Evidence : uint8_t { weak, strong };  // strong: in recovery, or kSackedMax sacked
  [[nodiscard]] uint64_t window_ns(Evidence evidence, uint64_t smoothed_ns) const noexcept {
    if (!reordering_seen && evidence == Evidence::strong) return 0;
    const uint64_t least = least_rtt.value_ns();
    if (least == LeastRtt::kUnknown) return smoothed_ns;
    return std::min(window_steps * (least / 4), smoothed_ns);
  }
};

}  // namespace nobounce::tcp
