// The areas of a pool: slot allocators that do not share a lock.
//
// A CPU begins with its own area and, on a miss, visits the others in a permutation of its own
// (not a rotation: CPUs that miss do not follow one another through the same sequence, NC-73). An
// area whose published fit says no is passed by without its lock. A locked area is passed by at
// first and waited for only when nothing else had room.
//
// Invariants
//  1. alloc() fails only after every area said no (SW-22), by its lock or by its published fit.
//  2. Each exit releases the lock taken (SW-71); nothing but bits and counts changes under it.
//
// Threads: any. Cost: one lock in the ordinary case; a failure reads one word an area. Allocates
// only in the constructor. Spec: SW-22, SW-70, SW-71, NC-72..NC-74.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/spinlock.hpp"
#include "swiotlb/pool_layout.hpp"
#include "swiotlb/slot_allocator.hpp"

namespace nobounce {

class Areas {
 public:
  explicit Areas(const PoolLayout& layout);

  // `cpu`: the caller's, any number. Slots are numbered through the pool.
  [[nodiscard]] std::optional<uint32_t> alloc(const RunRequest& request, unsigned cpu) noexcept;
  void release(uint32_t slot, unsigned count) noexcept;

  // The longest run that is free anywhere, slots. A snapshot.
  [[nodiscard]] unsigned longest_free_run() const noexcept;

  // For tests. The order in which a CPU visits areas; all slots free again and all words right.
  [[nodiscard]] const uint16_t* order_of(unsigned cpu) const noexcept;
  [[nodiscard]] uint32_t count() const noexcept { return layout_.areas; }
  [[nodiscard]] bool is_pristine() noexcept;

 private:
  struct alignas(64) Area {
    Area(uint32_t first, uint32_t slots) : allocator(first, slots) { publish(); }
    // Relaxed: a bound that is a moment old costs a visit or, at worst, a refusal that was true a
    // moment ago. What a thread gave back itself it always sees.
    void publish() noexcept { fit.store(allocator.fit().raw(), std::memory_order_relaxed); }
    [[nodiscard]] FitWord published() const noexcept {
      return FitWord::from_raw(fit.load(std::memory_order_relaxed));
    }

    std::atomic<uint64_t> fit{0};
    Spinlock lock;
    SlotAllocator allocator;
  };

  PoolLayout layout_;
  uint32_t slots_per_area_;
  uint32_t rows_;                 // CPUs told apart, a power of two
  std::vector<uint16_t> orders_;  // rows_ permutations of the areas
  std::vector<std::unique_ptr<Area>> areas_;
};

}  // namespace nobounce
