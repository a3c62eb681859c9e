#include "swiotlb/run_plan.hpp"

#include <algorithm>
#include <bit>

namespace nobounce {
namespace {

constexpr uint64_t kSlotMask = kSlotSize - 1;

[[nodiscard]] bool is_mask(uint64_t mask) noexcept { return (mask & (mask + 1)) == 0; }

// How many low bits of a slot number the mask covers.
[[nodiscard]] unsigned slot_bits(uint64_t mask) noexcept {
  return static_cast<unsigned>(std::bit_width(mask >> kSlotShift));
}

}  // namespace

std::expected<RunPlan, MapError> plan_run(const BounceRequest& request) noexcept {
  const uint64_t device_mask = request.limits.min_align_mask;
  const uint64_t alloc_mask = request.alloc_align_mask;
  const uint64_t boundary_mask = request.limits.segment_boundary;
  NB_ASSERT(request.size > 0);
  NB_ASSERT(is_mask(device_mask));
  NB_ASSERT(is_mask(alloc_mask));
  NB_ASSERT(is_mask(boundary_mask));
  // Wider masks could not be met by every original address even on an empty pool (SW-20).
  if (device_mask >= kMappingMax || alloc_mask >= kMappingMax || request.size > kMappingMax) {
    return std::unexpected(MapError::too_large);
  }

  const uint64_t original = static_cast<uint64_t>(request.original);
  const uint64_t offset = original & device_mask & (alloc_mask | kSlotMask);
  const uint64_t bytes = round_up(request.size + offset, alloc_mask + 1);
  const uint64_t slots = (bytes + kSlotMask) >> kSlotShift;
  // A boundary inside a slot cannot be met by choosing slots.
  if (slots > kSlotSet || boundary_mask < kSlotMask) return std::unexpected(MapError::too_large);

  RunPlan plan;
  plan.padding_slots = static_cast<unsigned>(offset >> kSlotShift);
  plan.offset = static_cast<unsigned>(offset & kSlotMask);
  plan.run.slots = static_cast<unsigned>(slots);
  plan.run.align_shift = std::max(slot_bits(device_mask), slot_bits(alloc_mask));
  const uint64_t by_slot_choice = original & device_mask & ~(alloc_mask | kSlotMask);
  plan.run.phase = static_cast<unsigned>(by_slot_choice >> kSlotShift);
  // Drivers that state no mask rely on page alignment of whole pages (SW-17).
  if (device_mask == 0 && alloc_mask == 0 && bytes >= kPageSize) plan.run.align_shift = 1;
  // All ones is no limit: the shift comes before the addition, so nothing overflows (SW-19).
  plan.run.boundary =
      static_cast<unsigned>(std::min<uint64_t>((boundary_mask >> kSlotShift) + 1, kSlotSet));
  if (plan.run.slots > plan.run.boundary) return std::unexpected(MapError::too_large);
  return plan;
}

}  // namespace nobounce
