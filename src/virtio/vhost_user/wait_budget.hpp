// Bounded waiting for a peer (TM-25): one budget for a whole exchange, used up by every wait in it,
// so that a peer that answers each message just in time cannot stretch the sum. A readable `cancel_fd`
// uses it up at once.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <span>

#include "base/clock.hpp"

namespace nobounce::virtio::vhost_user {

class WaitBudget {
 public:
  explicit WaitBudget(uint64_t ns, int cancel_fd = -1) noexcept
      : left_ns_(ns), cancel_fd_(cancel_fd) {}

  [[nodiscard]] uint64_t left_ns() const noexcept { return left_ns_; }

  // True when `fd` has one of `events` (or an error or hang-up) before the budget is used up.
  [[nodiscard]] bool wait(int fd, short events) noexcept {
    std::array<pollfd, 2> waited{{{.fd = fd, .events = events, .revents = 0}, cancel()}};
    for (;;) {
      const int ready = poll(waited, left_ns_);
      if (waited[1].revents != 0) return use_up();
      if (ready > 0) return true;
      if (ready == 0 || errno != EINTR) return false;
    }
  }
  // Lets time pass, at most `ns`. False when the budget is used up.
  [[nodiscard]] bool pause(uint64_t ns) noexcept {
    const uint64_t left_after = left_ns_ - std::min(left_ns_, ns);
    std::array<pollfd, 1> waited{{cancel()}};
    while (left_ns_ > left_after) {
      poll(waited, left_ns_ - left_after);
      if (waited[0].revents != 0) return use_up();
    }
    return left_ns_ > 0;
  }

 private:
  // poll(2) ignores an fd of -1.
  [[nodiscard]] pollfd cancel() const noexcept {
    return {.fd = cancel_fd_, .events = POLLIN, .revents = 0};
  }
  [[nodiscard]] bool use_up() noexcept {
    left_ns_ = 0;
    return false;
  }
  // What it takes is off the budget.
  int poll(std::span<pollfd> waited, uint64_t at_most_ns) noexcept {
    const auto timeout_ms = static_cast<int>((at_most_ns + kNsPerMs - 1) / kNsPerMs);
    const uint64_t before_ns = clock_.now_ns();
    const int ready = ::poll(waited.data(), waited.size(), timeout_ms);
    const int error = errno;
    left_ns_ -= std::min(left_ns_, clock_.now_ns() - before_ns);
    errno = error;
    return ready;
  }

  MonotonicClock clock_;
  uint64_t left_ns_;
  int cancel_fd_;
};

}  // namespace nobounce::virtio::vhost_user
