// How a range of shared memory is cut into slot sets and areas.
//
// Sets are aligned on the device's addresses, so every alignment and boundary rule up to 256 KiB
// looks the same in each set. Slots are numbered from the beginning of the first set:
//
//   IOVA    | 256 KiB          | 256 KiB          | 256 KiB          |
//   pool        |=================================================|
//   slots   | x 2 3 ...    127 | 128 ...      255 | 256 ...      x x |      x: does not exist
//
// One area takes the pool as it is. Several areas take whole sets, the same number each (SW-5);
// what is left over (ends of sets, sets that cannot be shared out evenly) is never lent. The number
// of areas is halved until that is at most a sixteenth of the pool and each area has a set.
#pragma once

#include <cstdint>

#include "swiotlb/swiotlb.hpp"

namespace nobounce {

struct PoolLayout {
  uint64_t skipped_bytes = 0;  // of the range given, before the first slot
  uint32_t first_slot = 0;     // slots below do not exist
  uint32_t end_slot = 0;
  uint32_t areas = 1;
  uint32_t sets_per_area = 1;

  [[nodiscard]] uint32_t slots() const noexcept { return end_slot - first_slot; }
  [[nodiscard]] uint32_t area_of(uint32_t slot) const noexcept {
    return slot / uint32_t{kSlotSet} / sets_per_area;
  }
};

// `areas_wanted` 0: one for each CPU. The range is page aligned on both sides.
[[nodiscard]] Result<PoolLayout> plan_pool(DmaAddr iova, uint64_t bytes, unsigned areas_wanted);

}  // namespace nobounce
