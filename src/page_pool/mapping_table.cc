#include "page_pool/mapping_table.hpp"

namespace nobounce {

bool MappingTable::insert(Page& page) noexcept {
  NB_ASSERT(page.dma_index.load(std::memory_order_relaxed) == Page::kNotTracked);
  const std::lock_guard guard(lock_);
  uint32_t index = free_;
  if (index != 0) {
    free_ = entries_[index].next_free;
  } else if (unused_ <= capacity_) {
    index = unused_++;
  } else {
    return false;
  }
  entries_[index].page = &page;
  page.dma_index.store(index, std::memory_order_relaxed);
  ++size_;
  return true;
}

bool MappingTable::clear_locked(Page& page) noexcept {
  const uint32_t index = page.dma_index.load(std::memory_order_relaxed);
  if (index == Page::kNotTracked) return false;
  NB_ASSERT(index < unused_);
  Entry& entry = entries_[index];
  if (entry.page != &page) return false;
  entry = {nullptr, free_};
  free_ = index;
  --size_;
  page.dma_index.store(Page::kNotTracked, std::memory_order_relaxed);
  return true;
}

}  // namespace nobounce
