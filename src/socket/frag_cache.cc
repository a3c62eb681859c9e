#include "socket/frag_cache.hpp"

namespace nobounce {
namespace {

Page* allocate(FragSource& source) noexcept {
  if (source.device != nullptr && source.device->bounces()) {
    Swiotlb& pool = *source.device->pool();
    for (const unsigned order : {FragCache::kOrder, 0u}) {
      if (Page* block = pool.alloc_block(order, BlockUse::transmit)) {
        source.refill_nocopy.add();
        return block;
      }
    }
  }
  for (const unsigned order : {FragCache::kOrder, 0u}) {
    if (Page* block = source.arena->alloc(order)) {
      source.refill_private.add();
      return block;
    }
  }
  source.refill_failed.add();
  return nullptr;
}

}  // namespace

FragCache::Room FragCache::reserve(FragSource& source) noexcept {
  if (block_ == nullptr || offset_ == size_) {
    if (!refill(source)) return {};
  }
  return {block_, offset_, size_ - offset_};
}

void FragCache::commit(uint32_t bytes) noexcept {
  NB_ASSERT(bytes > 0);
  NB_ASSERT(bytes <= size_ - offset_);
  page_get(*block_);
  offset_ += bytes;
}

void FragCache::release() noexcept {
  if (block_ != nullptr) page_put(*block_);
  block_ = nullptr;
  offset_ = size_ = 0;
}

bool FragCache::refill(FragSource& source) noexcept {
  if (block_ != nullptr) {
    // Sole owner: every piece came home, the block starts over (NC-51). The acquire pairs with the
    // release of the last page_put of a piece.
    if (block_->refcount.load(std::memory_order_acquire) == 1) {
      source.refill_reused.add();
      offset_ = 0;
      return true;
    }
    release();
  }
  block_ = allocate(source);
  if (block_ == nullptr) return false;
  size_ = static_cast<uint32_t>(block_bytes(*block_));
  offset_ = 0;
  return true;
}

}  // namespace nobounce
