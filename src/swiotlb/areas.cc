#include "swiotlb/areas.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "base/random.hpp"

namespace nobounce {
namespace {

constexpr unsigned kRowsMax = 1024;

[[nodiscard]] uint32_t row_count(uint32_t areas) noexcept {
  const long cpus = sysconf(_SC_NPROCESSORS_CONF);
  const unsigned rows = std::bit_ceil(static_cast<unsigned>(std::max(cpus, 1L)));
  return std::clamp(std::max(rows, areas), 1U, kRowsMax);
}

}  // namespace

Areas::Areas(const PoolLayout& layout)
    : layout_(layout),
      slots_per_area_(layout.sets_per_area * kSetSlots),
      rows_(row_count(layout.areas)) {
  for (uint32_t area = 0; area < layout.areas; ++area) {
    const uint32_t base = area * slots_per_area_;
    areas_.push_back(std::make_unique<Area>(area == 0 ? layout.first_slot : 0,
                                            std::min(layout.end_slot - base, slots_per_area_)));
  }
  orders_.resize(size_t{rows_} * layout.areas);
  SeededRandom random(layout.areas);  // no secret: only different from row to row
  for (uint32_t row = 0; row < rows_; ++row) {
    uint16_t* order = &orders_[size_t{row} * layout.areas];
    for (uint32_t i = 0; i < layout.areas; ++i) order[i] = static_cast<uint16_t>(i);
    std::swap(order[0], order[row & (layout.areas - 1)]);
    for (uint32_t i = layout.areas - 1; i > 1; --i) {
      std::swap(order[i], order[1 + random.below(i)]);
    }
  }
}

const uint16_t* Areas::order_of(unsigned cpu) const noexcept {
  return &orders_[size_t{cpu & (rows_ - 1)} * layout_.areas];
}

std::optional<uint32_t> Areas::alloc(const RunRequest& request, unsigned cpu) noexcept {
  const uint16_t* order = order_of(cpu);
  bool passed_by_locked = false;
  for (const bool wait : {false, true}) {
    for (uint32_t i = 0; i < layout_.areas; ++i) {
      Area& area = *areas_[order[i]];
      if (!SlotAllocator::may_fit(area.published(), request)) continue;
      if (wait) {
        area.lock.lock();
      } else if (!area.lock.try_lock()) {
        passed_by_locked = true;
        continue;
      }
      const std::lock_guard guard(area.lock, std::adopt_lock);
      const std::optional<uint32_t> slot = area.allocator.alloc(request);
      if (!slot) continue;
      area.publish();
      return order[i] * slots_per_area_ + *slot;
    }
    if (!passed_by_locked) break;
  }
  return std::nullopt;
}

void Areas::release(uint32_t slot, unsigned count) noexcept {
  const uint32_t index = layout_.area_of(slot);
  Area& area = *areas_[index];
  const std::lock_guard guard(area.lock);
  area.allocator.release(slot - index * slots_per_area_, count);
  area.publish();
}

unsigned Areas::longest_free_run() const noexcept {
  unsigned longest = 0;
  for (const auto& area : areas_) longest = std::max(longest, area->published().lane(0));
  return longest;
}

bool Areas::is_pristine() noexcept {
  return std::ranges::all_of(areas_, [](const std::unique_ptr<Area>& area) {
    const std::lock_guard guard(area->lock);
    return area->allocator.is_pristine();
  });
}

}  // namespace nobounce
