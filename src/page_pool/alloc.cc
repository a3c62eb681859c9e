// The way out: cache, then ring, then the system. Consumer's thread only.
#include <algorithm>

#include "page_pool/pool_state.hpp"

namespace nobounce {

Page* PagePool::State::hand_out(Page* head) noexcept {
  head->pool_refcount.store(1, std::memory_order_relaxed);
  return head;
}

Page* PagePool::State::alloc() noexcept {
  if (cached == 0) return alloc_refill();
  Page* head = cache[--cached];  // the warmest first
  alloc_fast.add();
  if (alloc_fast.value() % kPoolBatch == 0) publish();
  return hand_out(head);
}

Page* PagePool::State::alloc_refill() noexcept {
  if (ring.empty()) {
    alloc_empty.add();
    return alloc_slow();
  }
  cached = static_cast<uint32_t>(ring.pop_some(cache.data(), kPoolBatch));
  NB_ASSERT(cached > 0);
  alloc_refills.add();
  publish();
  return hand_out(cache[--cached]);
}

Page* PagePool::State::alloc_slow() noexcept {
  if (is_closed) return nullptr;
  if (options.order > 0) return alloc_one_block();
  std::array<Page*, kPoolBatch> fresh;
  const size_t got = take_from_system(fresh.data(), fresh.size());
  for (size_t i = got; i > 0; --i) {  // the first taken is the first used
    Page* page = fresh[i - 1];
    if (enter_pool(*page)) {
      cache[cached++] = page;
    } else {
      page_put(*page);
    }
  }
  if (cached == 0) return nullptr;
  alloc_slow_calls.add();
  publish();
  return hand_out(cache[--cached]);
}

Page* PagePool::State::alloc_one_block() noexcept {
  Page* head = lender != nullptr ? lender->alloc_block(options.order, options.use) : nullptr;
  if (head == nullptr) head = options.arena->alloc(options.order);
  if (head == nullptr) return nullptr;
  if (!enter_pool(*head)) {
    page_put(*head);
    return nullptr;
  }
  alloc_high_order.add();
  publish();
  return hand_out(head);
}

// Single pages: lent ones as long as the lender gives, then private ones (NC-60).
size_t PagePool::State::take_from_system(Page** pages, size_t count) noexcept {
  size_t got = 0;
  if (lender != nullptr) {
    while (got < count && (pages[got] = lender->alloc_block(0, options.use)) != nullptr) ++got;
  }
  return got + options.arena->alloc_bulk(pages + got, count - got);
}

// False: the page could not be mapped or tracked and is as it came.
bool PagePool::State::enter_pool(Page& head) noexcept {
  NB_ASSERT(head.order == options.order);
  NB_ASSERT(head.pool.load(std::memory_order_relaxed) == nullptr);
  if (options.map) {
    // A bounce mapping copies what the page holds, left-overs of its last owner too (SW-32); the
    // device would see them. Once a page's life in the pool (TM-60).
    if (!is_shared(head) && options.device->bounces()) {
      std::ranges::fill(private_bytes(head, 0, block_bytes(head)), std::byte{0});
    }
    // Nothing waits for the first contents, and a full pool is no event to warn of (PP-23, PP-62).
    const auto address = options.device->map({.address = page_address(head),
                                              .size = block_bytes(head),
                                              .direction = options.direction,
                                              .attrs = {.skip_cpu_sync = true, .no_warn = true},
                                              .for_receive = options.use == BlockUse::receive});
    if (!address) return false;
    head.dma_addr.store(static_cast<uint64_t>(*address), std::memory_order_relaxed);
    if (!tracked.insert(head)) {
      unmap(head);
      track_failed.add();
      return false;
    }
    sync_for_device(head, /*direct=*/true);
  }
  head.pool_refcount.store(0, std::memory_order_relaxed);
  head.pool_private = 0;
  head.pool.store(&pool, std::memory_order_release);
  entered.add();
  return true;
}

}  // namespace nobounce
