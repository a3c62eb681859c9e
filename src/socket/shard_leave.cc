// The end of a stack that works: what its closed sockets had sent is seen through, the rest is reset.
#include "socket/shard.hpp"

namespace nobounce {
namespace {

// What a device gets to take the last frames: many times what one that works needs.
constexpr uint64_t kLastFramesNs = 100 * kNsPerMs;

// TIME-WAIT ends with the stack. What it is for is done ahead: the last acknowledgement goes out again,
// as often as makes its loss unlikely and far enough apart for a short burst of losses.
constexpr int kLastAckRepeats = 3;
constexpr uint64_t kLastAckGapNs = 30 * kNsPerMs;

}  // namespace

// By real time: a test's clock may stand still, and this has an end.
void Shard::leave() noexcept {
  if (is_down() || device_ == nullptr) return;
  leaving_ = true;
  MonotonicClock clock;
  const auto drive_until = [&](uint64_t end_ns, auto&& done) noexcept {
    while (!is_down() && !done()) {
      const uint64_t now = clock.now_ns();
      if (now >= end_ns) return false;
      if (round() == 0) sleep(end_ns - now);
    }
    return true;
  };
  for (size_t i = 0; i < submissions_.count(); ++i) {
    SubmissionQueue& queue = submissions_.at(i);
    queue.owed = queue.applied + queue.ring.size();
  }
  // Over a link that is down nothing is, and nobody knows for how long.
  const auto seen_through = [this]() noexcept { return !device_->link_up() || is_seen_through(); };
  (void)drive_until(clock.now_ns() + options_.linger_ns, seen_through);
  if (!is_down() && !is_seen_through()) linger_over_.add();
  const auto never = []() noexcept { return false; };
  for (int i = 0; i < kLastAckRepeats && !is_down() && device_->link_up(); ++i) {
    if (!tcp_->repeat_last_acks()) break;
    (void)drive_until(clock.now_ns() + kLastAckGapNs, never);
  }
  if (!is_down()) {
    tcp_->reset_all();
    ip_->flush();
    const auto taken = [this]() noexcept { return !ip_->output_pending() && device_->is_idle(0); };
    (void)drive_until(clock.now_ns() + kLastFramesNs, taken);
  }
  leaving_ = false;
}

bool Shard::is_seen_through() noexcept {
  for (size_t i = 0; i < submissions_.count(); ++i) {
    const SubmissionQueue& queue = submissions_.at(i);
    if (!queue.has_applied(queue.owed)) return false;
  }
  return !tcp_->is_draining();
}

}  // namespace nobounce
