#include "swiotlb/pool_layout.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace nobounce {
namespace {

constexpr uint32_t kAreasMax = 1024;

[[nodiscard]] uint32_t area_count(unsigned wanted) noexcept {
  if (wanted == 0) {
    const long cpus = sysconf(_SC_NPROCESSORS_CONF);
    wanted = cpus > 0 ? static_cast<unsigned>(cpus) : 1;
  }
  return std::bit_ceil(std::min(wanted, kAreasMax));
}

}  // namespace

Result<PoolLayout> plan_pool(DmaAddr iova, uint64_t bytes, unsigned areas_wanted) {
  const uint64_t begin = static_cast<uint64_t>(iova);
  if (begin % kPageSize != 0 || bytes % kPageSize != 0 || bytes == 0 || begin + bytes < begin) {
    return fail(std::errc::invalid_argument, "create a swiotlb pool",
                "its range is not whole pages", "give it one or more 4 KiB pages, page aligned");
  }
  const uint64_t slots = bytes >> kSlotShift;
  if (slots + kSlotSet > std::numeric_limits<uint32_t>::max()) {
    return fail(std::errc::invalid_argument, "create a swiotlb pool", "it is too large",
                "8 TiB less 256 KiB is the most that one pool can manage");
  }

  const uint64_t first_whole = round_up(begin, kMappingMax);
  const uint64_t end_whole = (begin + bytes) & ~(kMappingMax - 1);
  const uint64_t sets = end_whole > first_whole ? (end_whole - first_whole) / kMappingMax : 0;
  uint32_t areas = area_count(areas_wanted);
  while (areas > 1 && slots - sets / areas * areas * kSlotSet > slots / 16) areas /= 2;

  PoolLayout layout;
  layout.areas = areas;
  if (areas == 1) {
    layout.first_slot = static_cast<uint32_t>((begin % kMappingMax) >> kSlotShift);
    layout.end_slot = layout.first_slot + static_cast<uint32_t>(slots);
    layout.sets_per_area = (layout.end_slot + uint32_t{kSlotSet} - 1) / uint32_t{kSlotSet};
  } else {
    layout.skipped_bytes = first_whole - begin;
    layout.sets_per_area = static_cast<uint32_t>(sets / areas);
    layout.end_slot = layout.sets_per_area * areas * uint32_t{kSlotSet};
  }
  NB_ASSERT(std::has_single_bit(layout.areas));
  NB_ASSERT(layout.areas == 1 || layout.slots() % layout.areas == 0);
  return layout;
}

}  // namespace nobounce
