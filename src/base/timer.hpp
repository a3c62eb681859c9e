// Timers of one shard: an intrusive pairing of deadlines and callbacks.
//
// A timer belongs to one TimerQueue and one thread. It fires at most once per arming, however late
// the queue is polled (T-64). Structure: binary heap of pointers with the position kept in the
// timer; arm, rearm and cancel are O(log n) with n armed timers, poll is O(1) when nothing is due.
// The heap's capacity is reserved at construction: arming allocates nothing; arming beyond it
// fails an assertion, so the capacity is a sum over everything that owns a timer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/assert.hpp"

namespace nobounce {

class TimerQueue;

class Timer {
 public:
  using Callback = void (*)(void* context, uint64_t now_ns);

  Timer(Callback callback, void* context) noexcept : callback_(callback), context_(context) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  [[nodiscard]] bool is_armed() const noexcept { return queue_ != nullptr; }
  [[nodiscard]] uint64_t deadline_ns() const noexcept { return deadline_ns_; }

  // Moves the deadline when already armed.
  void arm(TimerQueue& queue, uint64_t deadline_ns) noexcept;
  void cancel() noexcept;  // no-op when not armed

 private:
  friend class TimerQueue;
  Callback callback_;
  void* context_;
  TimerQueue* queue_ = nullptr;
  uint64_t deadline_ns_ = 0;
  size_t position_ = 0;
};

class TimerQueue {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  explicit TimerQueue(size_t timers_max) { heap_.reserve(timers_max); }
  ~TimerQueue();

  [[nodiscard]] uint64_t next_deadline_ns() const noexcept {
    return heap_.empty() ? kNever : heap_.front()->deadline_ns_;
  }
  [[nodiscard]] size_t armed() const noexcept { return heap_.size(); }

  // Fires what is due, at most `budget` timers; a callback may arm and cancel any timer.
  // Returns how many fired.
  size_t poll(uint64_t now_ns, size_t budget = 256) noexcept;

 private:
  friend class Timer;
  void insert(Timer& timer) noexcept;
  void remove(Timer& timer) noexcept;
  void sift_up(size_t position) noexcept;
  void sift_down(size_t position) noexcept;
  void place(size_t position, Timer* timer) noexcept;

  std::vector<Timer*> heap_;
};

}  // namespace nobounce
