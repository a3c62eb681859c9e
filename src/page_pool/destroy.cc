// Pages leaving the pool, and the end of the pool.
//
// destroy() runs on the consumer's side, so the consumer's state is still. The others may be
// anywhere in recycle.cc, each with a page in hand. In this order:
//   1. no direct recycling any more; alloc fails
//   2. gate closed: nobody syncs through the device, and nobody will
//   3. ring closed under its lock: who pushed has left it, who comes later releases instead
//   4. cache and ring released; every mapping of a page still out undone. The device may go now
//   5. the account: what is still out comes home later, and the last one frees the pool
#include "base/log.hpp"
#include "page_pool/pool_state.hpp"

namespace nobounce {

void PagePool::State::unmap(Page& head) noexcept {
  const DmaAddr address = dma_address(head);
  head.dma_addr.store(0, std::memory_order_relaxed);
  options.device->unmap(address, kPageSize << options.order, options.direction,
                        {.skip_cpu_sync = true, .no_warn = true});
}

void PagePool::State::release(Page& head) noexcept {
  if (options.map) {
    tracked.remove(head, [this](Page& page) { unmap(page); });
  }
  head.pool_private = 0;
  head.pool_refcount.store(0, std::memory_order_relaxed);
  head.pool.store(nullptr, std::memory_order_release);
  // The last touch, unless it was the last page (acquire: then the others' touches are over).
  PagePool* const self = &pool;
  if (released.fetch_add(1, std::memory_order_acq_rel) + 1 == 0) delete self;
  page_put(head);
}

void PagePool::destroy(PagePool* pool) noexcept {
  if (pool == nullptr) return;
  State& state = *pool->state_;
  state.consumer.store(0, std::memory_order_relaxed);
  state.is_closed = true;
  state.gate.close();
  state.ring.close();

  while (state.cached > 0) state.release(*state.cache[--state.cached]);
  while (Page* head = state.ring.pop()) {
    if (head->refcount.load(std::memory_order_acquire) != 1) {
      log_warning("page pool: a page in the ring is held by someone else");  // PP-56
    }
    state.release(*head);
  }
  if (state.options.map) {
    state.tracked.remove_all([&state](Page& head) { state.unmap(head); });
  }
  state.publish();

  const auto entered = static_cast<int64_t>(state.entered.value());
  const int64_t balance = state.released.fetch_sub(entered, std::memory_order_acq_rel) - entered;
  NB_ASSERT(balance <= 0);  // more came home than went out (PP-53)
  if (balance == 0) delete pool;
}

}  // namespace nobounce
