#include "base/event.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "base/clock.hpp"

namespace nobounce {

bool Event::wait(uint32_t seen, uint64_t timeout_ns) noexcept {
  timespec timeout{};
  timespec* limit = nullptr;
  if (timeout_ns != kForever) {
    timeout.tv_sec = static_cast<time_t>(timeout_ns / kNsPerSecond);
    timeout.tv_nsec = static_cast<long>(timeout_ns % kNsPerSecond);
    limit = &timeout;
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the word with `seen` after the waiter is counted: a signal in between is
  // seen either there (count changed) or by the waker (waiter counted).
  const long result = syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, limit, nullptr, 0);
  const bool timed_out = result != 0 && errno == ETIMEDOUT;
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return !timed_out;
}

void Event::wake() noexcept {
  syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace nobounce
