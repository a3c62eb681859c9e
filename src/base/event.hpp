// An event count: threads wait until someone signals after they looked.
//
//   waiter: seen = event.prepare(); if (condition) done; event.wait(seen, timeout)
//   waker:  make the condition true; event.signal()
//
// A signal between prepare() and wait() makes wait() return at once: nothing is lost (C120).
// Threads: any. Cost: signal() is one atomic addition, and a system call only when someone sleeps.
#pragma once

#include <atomic>
#include <cstdint>

namespace nobounce {

class Event {
 public:
  static constexpr uint64_t kForever = ~uint64_t{0};

  [[nodiscard]] uint32_t prepare() const noexcept {
    return count_.load(std::memory_order_acquire);  // pairs with [signal]
  }
  // Returns after a signal later than prepare(), after `timeout_ns`, or spuriously. False: time-out.
  bool wait(uint32_t seen, uint64_t timeout_ns = kForever) noexcept;
  // Wakes all waiters. Returns true when a thread was asleep (a system call was made).
  bool signal() noexcept {
    count_.fetch_add(1, std::memory_order_seq_cst);  // [signal]
    if (waiters_.load(std::memory_order_seq_cst) == 0) return false;
    wake();
    return true;
  }

 private:
  void wake() noexcept;
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace nobounce
