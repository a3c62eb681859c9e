// The way back: references are dropped, the last one gives the page to the cache, the ring or the
// system. Any thread.
//
// The rule that keeps this safe against destroy(): a thread may touch the pool as long as it has in
// hand a page of it that is neither in cache or ring nor released. Every function here ends with the
// call that gives the last such page away.
#include "page_pool/pool_state.hpp"

namespace nobounce {

uint64_t this_thread_token() noexcept {
  static std::atomic<uint64_t> last{0};
  thread_local uint64_t token = 0;
  if (token == 0) token = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return token;
}

bool drop_pool_references(Page& head, int64_t count) noexcept {
  // Reads exactly what is to be dropped: nobody else has a reference, and nobody can get one.
  if (head.pool_refcount.load(std::memory_order_acquire) != count) {
    const int64_t left = head.pool_refcount.fetch_sub(count, std::memory_order_acq_rel) - count;
    NB_ASSERT(left >= 0);  // returned twice
    if (left > 0) return false;
  }
  head.pool_refcount.store(0, std::memory_order_relaxed);
  return true;
}

void PagePool::get(Page& page) noexcept {
  const int64_t before = page_head(page).pool_refcount.fetch_add(1, std::memory_order_relaxed);
  NB_ASSERT(before > 0);
}

void PagePool::put(Page& page) noexcept {
  Page& head = page_head(page);
  PagePool* pool = pool_of(head);  // before the drop: afterwards the page may be another's
  NB_ASSERT(pool != nullptr);
  if (!drop_pool_references(head, 1)) return;
  State& state = *pool->state_;
  state.recycle(head, state.is_consumer());
}

void PagePool::put_direct(Page& page) noexcept {
  Page& head = page_head(page);
  NB_ASSERT(pool_of(head) == this);
  if (drop_pool_references(head, 1)) state_->recycle(head, /*direct=*/true);
}

void PagePool::put_bulk(Page** pages, size_t count) noexcept {
  size_t left = 0;  // pages whose last reference was ours, at the front of the array
  for (size_t i = 0; i < count; ++i) {
    Page& head = page_head(*pages[i]);
    NB_ASSERT(pool_of(head) != nullptr);
    if (drop_pool_references(head, 1)) pages[left++] = &head;
  }
  while (left > 0) {
    std::array<Page*, kPoolBatch> group;
    size_t in_group = 0;
    size_t others = 0;
    PagePool* pool = pool_of(*pages[0]);
    for (size_t i = 0; i < left; ++i) {
      if (in_group < group.size() && pool_of(*pages[i]) == pool) {
        group[in_group++] = pages[i];
      } else {
        pages[others++] = pages[i];
      }
    }
    left = others;
    State& state = *pool->state_;
    state.recycle_group(group.data(), in_group, state.is_consumer());
  }
}

// False: the page has to leave the pool. Counts why.
bool PagePool::State::is_recyclable(Page& head) noexcept {
  // Others hold it by the system's count: they keep a plain page (PP-37, PP-38).
  if (head.refcount.load(std::memory_order_acquire) != 1) {
    recycle_released_refcnt.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // A lent block that transmit needs more goes home at once (NC-63).
  if (lender != nullptr && is_shared(head) && options.use == BlockUse::receive &&
      lender->receive_should_evict()) {
    recycle_evicted.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  return true;
}

void PagePool::State::sync_for_device(Page& head, bool direct) noexcept {
  if (!options.sync_for_device || !device_needs_sync) return;
  if (!direct && !gate.enter()) return;  // destroy() runs on the consumer's side: not past it
  options.device->sync_for_device(dma_address(head) + options.offset, options.max_len,
                                  options.direction);
  if (!direct) gate.leave();
}

bool PagePool::State::push_cache(Page& head) noexcept {
  if (cached == kPoolCache) {
    recycle_cache_full.add();
    return false;
  }
  cache[cached++] = &head;
  recycle_cached.add();
  return true;
}

void PagePool::State::recycle(Page& head, bool direct) noexcept {
  if (!is_recyclable(head)) {
    release(head);
    return;
  }
  sync_for_device(head, direct);  // before anyone can post it again (PP-39)
  if (direct && push_cache(head)) return;
  if (ring.try_push(&head) != RingPush::pushed) release(head);
}

void PagePool::State::recycle_group(Page** heads, size_t count, bool direct) noexcept {
  NB_ASSERT(count <= kPoolBatch);
  std::array<Page*, kPoolBatch> for_ring;
  std::array<Page*, kPoolBatch> for_release;
  size_t ringed = 0;
  size_t releases = 0;
  for (size_t i = 0; i < count; ++i) {
    Page& head = *heads[i];
    if (!is_recyclable(head)) {
      for_release[releases++] = &head;
      continue;
    }
    sync_for_device(head, direct);
    if (direct && push_cache(head)) continue;
    for_ring[ringed++] = &head;
  }
  if (ringed > 0) {
    const size_t pushed = ring.push_some(for_ring.data(), ringed);
    for (size_t i = pushed; i < ringed; ++i) for_release[releases++] = for_ring[i];
  }
  for (size_t i = 0; i < releases; ++i) release(*for_release[i]);
}

}  // namespace nobounce
