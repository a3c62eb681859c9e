// Bounded waiting for a peer (TM-25): one budget for a whole exchange, used up by every wait in it,
// so that a peer that answers each message just in time cannot stretch the sum.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/clock.hpp"

namespace nobounce::virtio::vhost_user {

class WaitBudget {
 public:
  explicit WaitBudget(uint64_t ns) noexcept : left_ns_(ns) {}

  [[nodiscard]] uint64_t left_ns() const noexcept { return left_ns_; }

  // True when `fd` has one of `events` (or an error or hang-up) before the budget is used up.
  [[nodiscard]] bool wait(int fd, short events) noexcept {
    pollfd waited{.fd = fd, .events = events, .revents = 0};
    return poll_until([&](int timeout_ms) { return ::poll(&waited, 1, timeout_ms); });
  }
  // Lets time pass, at most `ns`. False when the budget is used up.
  [[nodiscard]] bool pause(uint64_t ns) noexcept {
    const uint64_t left_after = left_ns_ - std::min(left_ns_, ns);
    while (left_ns_ > left_after) {
      const uint64_t rest_ms = (left_ns_ - left_after + kNsPerMs - 1) / kNsPerMs;
      spend([&] { return ::poll(nullptr, 0, static_cast<int>(rest_ms)); });
    }
    return left_ns_ > 0;
  }

 private:
  template <class Call>
  int spend(Call&& call) noexcept {
    const uint64_t before_ns = clock_.now_ns();
    const int result = call();
    left_ns_ -= std::min(left_ns_, clock_.now_ns() - before_ns);
    return result;
  }
  template <class Poll>
  bool poll_until(Poll&& poll) noexcept {
    for (;;) {
      const auto timeout_ms = static_cast<int>((left_ns_ + kNsPerMs - 1) / kNsPerMs);
      const int ready = spend([&] { return poll(timeout_ms); });
      if (ready > 0) return true;
      if (ready == 0 || errno != EINTR) return false;
    }
  }

  MonotonicClock clock_;
  uint64_t left_ns_;
};

}  // namespace nobounce::virtio::vhost_user
