// Rate limit: `per_second` events on average, `burst` at once. Time comes from the caller.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"

namespace nobounce::ip {

class TokenBucket {
 public:
  TokenBucket(uint64_t per_second, uint64_t burst) noexcept
      : interval_ns_(kNsPerSecond / per_second), credit_max_ns_(interval_ns_ * burst) {}

  // True when one more event may happen now.
  [[nodiscard]] bool take(uint64_t now_ns) noexcept {
    if (!started_) {
      started_ = true;
      credit_ns_ = credit_max_ns_;
    } else if (now_ns > last_ns_) {
      credit_ns_ += std::min(now_ns - last_ns_, credit_max_ns_ - credit_ns_);
    }
    last_ns_ = now_ns;
    if (credit_ns_ < interval_ns_) return false;
    credit_ns_ -= interval_ns_;
    return true;
  }

 private:
  uint64_t interval_ns_;
  uint64_t credit_max_ns_;
  uint64_t credit_ns_ = 0;
  uint64_t last_ns_ = 0;
  bool started_ = false;
};

}  // namespace nobounce::ip
