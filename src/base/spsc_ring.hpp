// Single-producer single-consumer ring in private memory.
//
// Exactly one thread pushes and one pops (they may change if the hand-over itself synchronises).
// Capacity is a power of two, fixed at construction; with N given the slots lie inside the object and
// construction allocates nothing. Indices run free and are masked on use.
// Cost: one release store a push, one acquire load when the cached index runs out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/assert.hpp"
#include "base/bytes.hpp"

namespace nobounce {

inline constexpr size_t kCacheLine = 64;

template <class T, uint32_t N = 0>
class SpscRing {
 public:
  explicit SpscRing(uint32_t capacity)
    requires(N == 0)
      : mask_(capacity - 1), slots_(std::make_unique<T[]>(capacity)) {
    NB_ASSERT(is_power_of_two(capacity));
  }
  SpscRing()
    requires(is_power_of_two(N))
      : mask_(N - 1) {}

  [[nodiscard]] uint32_t capacity() const noexcept { return mask_ + 1; }

  // Either side; exact for the caller's own end, a bound for the other.
  [[nodiscard]] uint32_t size() const noexcept {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }

  // Producer. Room for at least this many pushes.
  [[nodiscard]] uint32_t room() noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    cached_head_ = head_.load(std::memory_order_acquire);  // pairs with [pop]
    return capacity() - (tail - cached_head_);
  }

  // Producer. False when full: the caller keeps the value, and the refusal is counted.
  [[nodiscard]] bool try_push(T&& value) noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ > mask_) {
      cached_head_ = head_.load(std::memory_order_acquire);  // pairs with [pop]
      if (tail - cached_head_ > mask_) {
        refused_.store(refused_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return false;
      }
    }
    slots_[tail & mask_] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);  // [push]
    return true;
  }
  [[nodiscard]] bool try_push(const T& value) noexcept { return try_push(T(value)); }

  // Producer. Several entries that the consumer sees together or not at all: stage() the first, the
  // second, ... (`ahead` 0, 1, ...), then publish() their number. Asserts room for them.
  void stage(uint32_t ahead, T&& value) noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    NB_ASSERT(tail + ahead - cached_head_ <= mask_);
    slots_[(tail + ahead) & mask_] = std::move(value);
  }
  void publish(uint32_t count) noexcept {
    tail_.store(tail_.load(std::memory_order_relaxed) + count,
                std::memory_order_release);  // [push]
  }

  // Consumer. The oldest entry, or null; valid until pop().
  [[nodiscard]] T* front() noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == cached_tail_) {
      cached_tail_ = tail_.load(std::memory_order_acquire);  // pairs with [push]
      if (head == cached_tail_) return nullptr;
    }
    return &slots_[head & mask_];
  }
  void pop() noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    NB_ASSERT(head != cached_tail_);
    head_.store(head + 1, std::memory_order_release);  // [pop]
  }
  [[nodiscard]] bool try_pop(T& out) noexcept {
    T* first = front();
    if (first == nullptr) return false;
    out = std::move(*first);
    pop();
    return true;
  }

  [[nodiscard]] uint64_t refused() const noexcept {
    return refused_.load(std::memory_order_relaxed);
  }

 private:
  const uint32_t mask_;
  std::conditional_t<N == 0, std::unique_ptr<T[]>, std::array<T, N>> slots_;
  alignas(kCacheLine) std::atomic<uint32_t> tail_{0};  // producer writes
  uint32_t cached_head_ = 0;                           // producer's view of head_
  std::atomic<uint64_t> refused_{0};
  alignas(kCacheLine) std::atomic<uint32_t> head_{0};  // consumer writes
  uint32_t cached_tail_ = 0;                           // consumer's view of tail_
};

}  // namespace nobounce
