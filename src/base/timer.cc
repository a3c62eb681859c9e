#include "base/timer.hpp"

namespace nobounce {

Timer::~Timer() { cancel(); }

void Timer::arm(TimerQueue& queue, uint64_t deadline_ns) noexcept {
  if (queue_ != nullptr) {
    NB_ASSERT(queue_ == &queue);
    const bool later = deadline_ns > deadline_ns_;
    deadline_ns_ = deadline_ns;
    later ? queue.sift_down(position_) : queue.sift_up(position_);
    return;
  }
  deadline_ns_ = deadline_ns;
  queue_ = &queue;
  queue.insert(*this);
}

void Timer::cancel() noexcept {
  if (queue_ == nullptr) return;
  queue_->remove(*this);
  queue_ = nullptr;
}

TimerQueue::~TimerQueue() {
  for (Timer* timer : heap_) timer->queue_ = nullptr;
}

size_t TimerQueue::poll(uint64_t now_ns, size_t budget) noexcept {
  size_t fired = 0;
  while (fired < budget && !heap_.empty() && heap_.front()->deadline_ns_ <= now_ns) {
    Timer& timer = *heap_.front();
    timer.cancel();
    ++fired;
    timer.callback_(timer.context_, now_ns);
  }
  return fired;
}

void TimerQueue::place(size_t position, Timer* timer) noexcept {
  heap_[position] = timer;
  timer->position_ = position;
}

void TimerQueue::insert(Timer& timer) noexcept {
  NB_ASSERT(heap_.size() < heap_.capacity());
  heap_.push_back(&timer);
  timer.position_ = heap_.size() - 1;
  sift_up(timer.position_);
}

void TimerQueue::remove(Timer& timer) noexcept {
  const size_t position = timer.position_;
  NB_ASSERT(position < heap_.size());
  NB_ASSERT(heap_[position] == &timer);
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  place(position, last);
  sift_up(position);
  sift_down(last->position_);
}

void TimerQueue::sift_up(size_t position) noexcept {
  Timer* timer = heap_[position];
  while (position > 0) {
    const size_t parent = (position - 1) / 2;
    if (heap_[parent]->deadline_ns_ <= timer->deadline_ns_) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, timer);
}

void TimerQueue::sift_down(size_t position) noexcept {
  Timer* timer = heap_[position];
  for (;;) {
    size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->deadline_ns_ < heap_[child]->deadline_ns_) {
      ++child;
    }
    if (timer->deadline_ns_ <= heap_[child]->deadline_ns_) break;
    place(position, heap_[child]);
    position = child;
  }
  place(position, timer);
}

}  // namespace nobounce
