// Copies between an original in the page space and the slots of its bounce.
//
// The original may be private pages or, when a lent block cannot be mapped as it is (NC-32), shared
// ones; it may run over several blocks. Each byte is read once (TM-1).
//
// No state, no lock. The caller holds the original's pages. Spec: section 5 of swiotlb.md.
#pragma once

#include "memory/page.hpp"
#include "memory/shared.hpp"

namespace nobounce {

// Both copy slots.size() bytes.
void copy_to_slots(CpuAddr original, const SharedBytes& slots) noexcept;
void copy_from_slots(const SharedBytes& slots, CpuAddr original) noexcept;

// Is every byte of the range memory that a page descriptor stands for? Checks both ends.
[[nodiscard]] bool is_page_memory(CpuAddr address, size_t size) noexcept;

}  // namespace nobounce
