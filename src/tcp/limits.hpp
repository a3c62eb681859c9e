// Rate limits (T-18, T-21, T-22): how many segments may be provoked out of us.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"
#include "base/random.hpp"

namespace nobounce::tcp {

// At most `per_second`, in bursts of at most as many.
class TokenBucket {
 public:
  explicit TokenBucket(uint32_t per_second) noexcept : per_second_(per_second) {}

  [[nodiscard]] bool take(uint64_t now_ns) noexcept {
    const uint64_t full = uint64_t{per_second_} * kNsPerSecond;
    const uint64_t passed = std::min(now_ns - last_ns_, kNsPerSecond);
    credit_ = std::min(full, credit_ + passed * per_second_);
    last_ns_ = now_ns;
    if (credit_ < kNsPerSecond) return false;
    credit_ -= kNsPerSecond;
    return true;
  }

 private:
  uint32_t per_second_;
  uint64_t last_ns_ = 0;
  uint64_t credit_ = 0;  // in tokens times ns
};

// The host-wide limit on challenge ACKs. Its size changes at random every second, so that counting
// our answers on one connection tells nothing about another (CVE-2016-5696).
class ChallengeBudget {
 public:
  [[nodiscard]] bool take(uint64_t now_ns, Random& random) noexcept {
    if (now_ns >= next_refill_ns_) {
      next_refill_ns_ = now_ns + kNsPerSecond;
      left_ = kBase + random.below(kBase);
    }
    if (left_ == 0) return false;
    --left_;
    return true;
  }

 private:
  static constexpr uint32_t kBase = 500;
  uint64_t next_refill_ns_ = 0;
  uint32_t left_ = 0;
};

}  // namespace nobounce::tcp
