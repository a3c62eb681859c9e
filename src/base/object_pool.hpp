// Fixed-capacity pool of objects of one type for one thread: made at start, never grows.
// acquire() constructs, release() destroys; O(1), no allocation. Exhaustion returns null and is
// counted; what that means is the caller's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/assert.hpp"

namespace nobounce {

template <class T>
class ObjectPool {
 public:
  explicit ObjectPool(size_t capacity) : slots_(std::make_unique<Slot[]>(capacity)) {
    free_.reserve(capacity);
    for (size_t i = capacity; i > 0; --i) free_.push_back(&slots_[i - 1]);
    capacity_ = capacity;
  }
  ~ObjectPool() { NB_ASSERT(in_use() == 0); }
  ObjectPool(const ObjectPool&) = delete;
  ObjectPool& operator=(const ObjectPool&) = delete;

  template <class... Args>
  [[nodiscard]] T* acquire(Args&&... args) {
    if (free_.empty()) {
      ++refused_;
      return nullptr;
    }
    Slot* slot = free_.back();
    free_.pop_back();
    T* object = new (slot->bytes) T(std::forward<Args>(args)...);
    if (in_use() > high_water_) high_water_ = in_use();
    return object;
  }
  void release(T* object) noexcept {
    NB_ASSERT(object != nullptr);
    auto* slot = reinterpret_cast<Slot*>(object);
    NB_ASSERT(slot >= slots_.get() && slot < slots_.get() + capacity_);
    object->~T();
    NB_ASSERT(free_.size() < capacity_);
    free_.push_back(slot);
  }

  [[nodiscard]] size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] size_t in_use() const noexcept { return capacity_ - free_.size(); }
  [[nodiscard]] size_t room() const noexcept { return free_.size(); }
  [[nodiscard]] size_t high_water() const noexcept { return high_water_; }
  [[nodiscard]] uint64_t refused() const noexcept { return refused_; }

 private:
  struct alignas(T) Slot {
    std::byte bytes[sizeof(T)];
  };
  std::unique_ptr<Slot[]> slots_;
  std::vector<Slot*> free_;
  size_t capacity_ = 0;
  size_t high_water_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace nobounce
