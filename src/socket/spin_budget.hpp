// How long a thread polls without work before it sleeps. A spin saves the sleep and the kick that ends
// it, as long as the core would have been idle. On a core that others want it is their time that is spun
// away, often that of the very thread whose work is waited for. The kernel tells which: a thread that is
// switched out against its will had something runnable beside it.
//
//   window of 10 ms with a forced switch     half the budget, down to 1 us
//   window without                           twice the budget, up to the maximum
//
// Starts at the maximum. Zero as maximum: never spins.
// Threads: one. Cost: a comparison, and a system call of the caller's once a window.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"

namespace nobounce {

class SpinBudget {
 public:
  static constexpr uint64_t kFloorNs = kNsPerUs;
  static constexpr uint64_t kWindowNs = 10 * kNsPerMs;

  explicit SpinBudget(uint64_t max_ns) noexcept : max_ns_(max_ns), budget_ns_(max_ns) {}

  // The window is over: judge() it.
  [[nodiscard]] bool is_due(uint64_t now_ns) const noexcept {
    return now_ns - window_start_ns_ >= kWindowNs;
  }
  // `forced_switches`: of this thread so far.
  void judge(uint64_t now_ns, uint64_t forced_switches) noexcept {
    const bool wanted = forced_switches != forced_switches_;
    budget_ns_ = std::min(max_ns_, wanted ? std::max(kFloorNs, budget_ns_ / 2) : 2 * budget_ns_);
    window_start_ns_ = now_ns;
    forced_switches_ = forced_switches;
  }
  [[nodiscard]] uint64_t ns() const noexcept { return budget_ns_; }

 private:
  uint64_t max_ns_;
  uint64_t budget_ns_;
  uint64_t window_start_ns_ = 0;
  uint64_t forced_switches_ = 0;
};

}  // namespace nobounce
