// From what a mapping asks for to a run of slots: padding, offset, alignment, boundary.
//
//   run      | padding slots | offset |      request      | rest |
//            ^ aligned by alloc_align_mask                       ^ multiple of alloc_align_mask + 1
//                                     ^ R: low bits as the original's, by min_align_mask
//
// The bits of min_align_mask below alloc_align_mask (or below a slot) are met by padding and offset,
// those above by the choice of the slot. The masks are never merged (SW-16).
//
// A pure function. Spec: SW-12, SW-14..SW-21.
#pragma once

#include <expected>

#include "swiotlb/slot_allocator.hpp"
#include "swiotlb/swiotlb.hpp"

namespace nobounce {

struct RunPlan {
  RunRequest run;
  unsigned padding_slots = 0;
  unsigned offset = 0;  // in the first slot after the padding
};

[[nodiscard]] std::expected<RunPlan, MapError> plan_run(const BounceRequest& request) noexcept;

}  // namespace nobounce
