#include "swiotlb/bounce_copy.hpp"

#include <algorithm>

namespace nobounce {
namespace {

// Calls visit(page, offset in page, offset in range, bytes) for each block the range runs over.
template <class Visit>
void for_each_block(CpuAddr address, size_t size, Visit visit) noexcept {
  for (size_t done = 0; done < size;) {
    const CpuAddr at = address + done;
    Page& page = *page_of(at);
    const size_t offset = static_cast<uint64_t>(at) % kPageSize;
    const size_t before = size_t{page.head_distance} * kPageSize + offset;
    const size_t bytes = std::min(size - done, block_bytes(page_head(page)) - before);
    visit(page, offset, done, bytes);
    done += bytes;
  }
}

}  // namespace

void copy_to_slots(CpuAddr original, const SharedBytes& slots) noexcept {
  for_each_block(original, slots.size(), [&](Page& page, size_t offset, size_t at, size_t bytes) {
    if (is_shared(page)) {
      slots.copy_from(at, shared_bytes(page, offset, bytes));
    } else {
      slots.copy_in(at, private_bytes(page, offset, bytes));
    }
  });
}

void copy_from_slots(const SharedBytes& slots, CpuAddr original) noexcept {
  for_each_block(original, slots.size(), [&](Page& page, size_t offset, size_t at, size_t bytes) {
    if (is_shared(page)) {
      shared_bytes(page, offset, bytes).copy_from(0, slots.sub(at, bytes));
    } else {
      slots.copy_out(at, private_bytes(page, offset, bytes));
    }
  });
}

bool is_page_memory(CpuAddr address, size_t size) noexcept {
  const PageSpace& space = PageSpace::instance();
  const CpuAddr last = address + (size - 1);
  return last >= address && space.contains(address) && space.contains(last) &&
         page_of(address)->kind != PageKind::none && page_of(last)->kind != PageKind::none;
}

}  // namespace nobounce
