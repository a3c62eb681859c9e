// The unit that travels the floors: a fixed-capacity array. A single item is a burst of one.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "base/assert.hpp"

namespace nobounce {

inline constexpr size_t kBurstMax = 64;  // one NAPI budget

template <class T, size_t N = kBurstMax>
class Burst {
 public:
  [[nodiscard]] static constexpr size_t capacity() noexcept { return N; }
  [[nodiscard]] size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool full() const noexcept { return size_ == N; }
  [[nodiscard]] size_t room() const noexcept { return N - size_; }

  void push(T value) noexcept {
    NB_ASSERT(size_ < N);
    items_[size_++] = std::move(value);
  }
  [[nodiscard]] T& operator[](size_t index) noexcept {
    NB_DEBUG_ASSERT(index < size_);
    return items_[index];
  }
  void clear() noexcept {
    for (size_t i = 0; i < size_; ++i) items_[i] = T{};
    size_ = 0;
  }
  // Drops the first `count` items (already moved from) and closes the gap.
  void drop_front(size_t count) noexcept {
    NB_ASSERT(count <= size_);
    for (size_t i = count; i < size_; ++i) items_[i - count] = std::move(items_[i]);
    for (size_t i = size_ - count; i < size_; ++i) items_[i] = T{};
    size_ -= count;
  }

  T* begin() noexcept { return items_.data(); }
  T* end() noexcept { return items_.data() + size_; }

 private:
  std::array<T, N> items_{};
  size_t size_ = 0;
};

}  // namespace nobounce
