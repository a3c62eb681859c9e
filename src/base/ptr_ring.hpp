// Bounded ring of pointers in private memory: many producers under one short lock, one consumer
// without it.
//
// Invariants
//  1. Lossless: a push that is not refused is popped exactly once, in the order of the lock.
//  2. Everything a push does, its counting included, is done before the lock is released; whoever
//     has taken the lock after a push knows that the pusher no longer touches the ring.
//  3. After close() no push succeeds: what a later drain finds is all there will ever be.
// 2 and 3 are what lets an owner be freed while others still push (CVE-2025-38129's cure).
//
// Threads: push by any, pop and empty() by one consumer; close() by the consumer or after it stopped.
// Cost: push one uncontended lock; pop no lock, one acquire load and one release store a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/assert.hpp"
#include "base/spinlock.hpp"
#include "base/spsc_ring.hpp"

namespace nobounce {

enum class RingPush : uint8_t { pushed, full, closed };

template <class T>
class PtrRing {
 public:
  // Holds exactly `capacity` pointers; the array behind it is the next power of two.
  explicit PtrRing(uint32_t capacity)
      : capacity_(capacity),
        mask_(std::bit_ceil(capacity) - 1),
        slots_(std::make_unique<T*[]>(size_t{mask_} + 1)) {
    NB_ASSERT(capacity > 0);
    NB_ASSERT(capacity <= uint32_t{1} << 31);
  }
  ~PtrRing() { NB_ASSERT(size() == 0); }
  PtrRing(const PtrRing&) = delete;
  PtrRing& operator=(const PtrRing&) = delete;

  [[nodiscard]] uint32_t capacity() const noexcept { return capacity_; }
  // Exact for the consumer when nobody pushes; a snapshot otherwise.
  [[nodiscard]] uint32_t size() const noexcept {
    const uint32_t head = head_.load(std::memory_order_acquire);
    return tail_.load(std::memory_order_acquire) - head;
  }
  [[nodiscard]] uint32_t room() const noexcept { return capacity_ - std::min(size(), capacity_); }

  // ---- any thread ----
  [[nodiscard]] RingPush try_push(T* item) noexcept {
    const std::lock_guard guard(lock_);
    if (closed_) return RingPush::closed;
    if (push_locked(&item, 1) == 1) return RingPush::pushed;
    add(refused_, 1);
    return RingPush::full;
  }
  // As many as fit, under one lock hold; returns how many. The others are counted as refused unless
  // the ring is closed.
  [[nodiscard]] size_t push_some(T* const* items, size_t count) noexcept {
    const std::lock_guard guard(lock_);
    if (closed_) return 0;
    const size_t pushed = push_locked(items, count);
    add(refused_, count - pushed);
    return pushed;
  }

  // ---- consumer ----
  [[nodiscard]] bool empty() const noexcept {
    return tail_.load(std::memory_order_acquire) ==  // pairs with [push]
           head_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] T* pop() noexcept {
    T* item = nullptr;
    return pop_some(&item, 1) == 1 ? item : nullptr;
  }
  // The oldest `count` at most; returns how many.
  [[nodiscard]] size_t pop_some(T** items, size_t count) noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    const uint32_t filled = tail_.load(std::memory_order_acquire) - head;  // pairs with [push]
    const uint32_t taken = static_cast<uint32_t>(std::min<size_t>(filled, count));
    for (uint32_t i = 0; i < taken; ++i) items[i] = slots_[(head + i) & mask_];
    head_.store(head + taken, std::memory_order_release);  // [pop]
    return taken;
  }
  void close() noexcept {
    const std::lock_guard guard(lock_);
    closed_ = true;
  }

  // ---- statistics, any thread ----
  [[nodiscard]] uint64_t pushed() const noexcept { return pushed_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t refused() const noexcept {
    return refused_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] uint32_t high_water() const noexcept {
    return high_water_.load(std::memory_order_relaxed);
  }

 private:
  static void add(std::atomic<uint64_t>& counter, uint64_t n) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  size_t push_locked(T* const* items, size_t count) noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    const uint32_t high_water = high_water_.load(std::memory_order_relaxed);
    // The consumer's line is looked at only when the ring may be full or fuller than ever.
    if (count > high_water - std::min(high_water, tail - cached_head_)) {
      cached_head_ = head_.load(std::memory_order_acquire);  // pairs with [pop]
    }
    const uint32_t filled = tail - cached_head_;
    const auto pushed = static_cast<uint32_t>(std::min<size_t>(count, capacity_ - filled));
    for (uint32_t i = 0; i < pushed; ++i) slots_[(tail + i) & mask_] = items[i];
    tail_.store(tail + pushed, std::memory_order_release);  // [push]
    add(pushed_, pushed);
    if (filled + pushed > high_water) {
      high_water_.store(filled + pushed, std::memory_order_relaxed);
    }
    return pushed;
  }

  const uint32_t capacity_;
  const uint32_t mask_;
  const std::unique_ptr<T*[]> slots_;
  // Producers, under the lock.
  alignas(kCacheLine) Spinlock lock_;
  bool closed_ = false;
  uint32_t cached_head_ = 0;  // the lock holder's view of head_
  std::atomic<uint32_t> tail_{0};
  std::atomic<uint32_t> high_water_{0};
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> refused_{0};
  // Consumer.
  alignas(kCacheLine) std::atomic<uint32_t> head_{0};
};

}  // namespace nobounce
