// A test-and-test-and-set lock for critical sections of a few dozen instructions.
// Spins briefly, then yields: a preempted holder must not burn the waiter's slice.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/barrier.hpp"

namespace nobounce {

class Spinlock {
 public:
  void lock() noexcept {
    for (unsigned spins = 0; locked_.exchange(true, std::memory_order_acquire); ++spins) {
      while (locked_.load(std::memory_order_relaxed)) {
        if (++spins < 64) {
          cpu_relax();
        } else {
          sched_yield();
        }
      }
    }
  }
  [[nodiscard]] bool try_lock() noexcept {
    return !locked_.load(std::memory_order_relaxed) &&
           !locked_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace nobounce
