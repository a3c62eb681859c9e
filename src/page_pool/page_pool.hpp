// page_pool: recycling of receive pages that stay mapped for DMA while the pool owns them.
//
//   system (nocopy blocks, then private pages)
//      | slow path, bulks of 64              ^ release: unmap, then page_put
//      v                                     |
//   cache (LIFO, 128) <--- refill, 64 ---  ring (pointer ring, 1024) <--- put() from any thread
//      | alloc()                             ^ direct recycling (the consumer's own thread)
//      v                                     |
//   out: driver, packets, sockets -----------+
//
// Invariants
//  1. hold - release = pages not yet released = cache + ring + out (PP-50, PP-85).
//  2. A page is mapped once on entry and unmapped exactly once, by whoever wins (PP-65), and at the
//     latest when the pool is destroyed: no mapping outlives the device.
//  3. Consumer-side state is touched by the consumer's thread alone: no lock, no read-modify-write.
//  4. A page has pool_refcount 0 while the pool holds it and 1 when it is handed out: a second return
//     is an assertion. A reference taken with page_get() is returned with page_put(); such a page
//     leaves the pool with its last pool reference and is a plain page afterwards (PP-38).
//
// Life: create() gives the consumer's handle. Destroying the handle ends allocation, unmaps what is
// out, and leaves the record of what is in flight to the last page coming home, which frees it
// (PP-54..PP-59). The device may go as soon as that is back; arena and swiotlb pool outlive every
// page. Published counters follow within 64 allocations, and at destroy.
// Threads: alloc*() and put_direct() by the consumer's thread; put() by any; see each call.
// Cost: fast path a dozen instructions; ring path one short lock a put, one a refill of 64.
// Spec: page_pool.md PP-*, NC-60..NC-64.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "base/counters.hpp"
#include "base/error.hpp"
#include "dma/dma_device.hpp"
#include "memory/page.hpp"
#include "memory/private_arena.hpp"

namespace nobounce {

struct PagePoolOptions {
  unsigned order = 0;
  uint32_t ring_size = 1024;    // 0: 1024; clamped at 16384 (PP-2)
  DmaDevice* device = nullptr;  // may be null when !map (PP-8)
  bool map = false;
  bool sync_for_device = false;
  DmaDirection direction = DmaDirection::from_device;
  uint32_t offset = 0;                  // of what the device writes, in the block
  uint32_t max_len = 0;                 // bytes to sync for the device
  PrivateArena* arena = nullptr;        // where private pages come from; required
  BlockUse use = BlockUse::receive;     // which nocopy budget is charged
  const char* name = "page_pool";       // counters: "<name>.rx_pp_alloc_fast", ...
  CounterRegistry* counters = nullptr;  // null: not published; must outlive the handle
  uint32_t tracked_max = 0;             // mapped pages at a time; 0: all its sources can give
};

struct PagePoolStats {
  uint64_t alloc_fast = 0, alloc_slow = 0, alloc_slow_high_order = 0, alloc_empty = 0,
           alloc_refill = 0, alloc_waive = 0;
  uint64_t recycle_cached = 0, recycle_cache_full = 0, recycle_ring = 0, recycle_ring_full = 0,
           recycle_released_refcnt = 0, recycle_evicted = 0;
  uint64_t track_failed = 0;
};

struct PagePoolDestroyer {
  void operator()(PagePool* pool) const noexcept;  // PagePool::destroy
};
using PagePoolHandle = std::unique_ptr<PagePool, PagePoolDestroyer>;

class PagePool {
 public:
  static Result<PagePoolHandle> create(const PagePoolOptions& options);

  // ---- consumer's thread ----
  [[nodiscard]] Page* alloc() noexcept;  // null when nothing is to be had
  // As many as fit, at most `count`; returns how many.
  [[nodiscard]] size_t alloc_bulk(Page** pages, size_t count) noexcept;
  // The caller vouches that it is the consumer's thread.
  void put_direct(Page& page) noexcept;
  // Marks the calling thread as the consumer, so that put() from it recycles directly.
  void bind_consumer_thread() noexcept;

  // ---- any thread ----
  // Drops one pool reference; the last one recycles or releases. Direct when the calling thread is
  // the bound consumer. Legal after destroy and after the device's death. `page` may be a tail.
  static void put(Page& page) noexcept;
  static void put_bulk(Page** pages, size_t count) noexcept;
  // An extra pool reference (a clone, a split packet).
  static void get(Page& page) noexcept;

  // The pool a page belongs to, null when none. Any thread holding a reference to the page.
  [[nodiscard]] static PagePool* pool_of(Page& page) noexcept {
    return page_head(page).pool.load(std::memory_order_acquire);
  }
  // Where the device sees the page. Valid while the caller holds it and the pool is alive.
  [[nodiscard]] static DmaAddr dma_address(Page& page) noexcept {
    return static_cast<DmaAddr>(page_head(page).dma_addr.load(std::memory_order_relaxed));
  }
  void sync_for_cpu(Page& page, uint32_t offset, uint32_t size) noexcept;  // PP-70

  [[nodiscard]] int64_t in_flight() const noexcept;  // pages not released (cache and ring included)
  [[nodiscard]] PagePoolStats stats() const noexcept;

 private:
  friend struct PagePoolDestroyer;
  struct State;
  PagePool() noexcept;
  ~PagePool();
  static void destroy(PagePool* pool) noexcept;

  std::unique_ptr<State> state_;
};

// Gives one reference to a page back by the way it came: to its pool when it has one, else to its
// allocator. The only call that packet and socket code uses. Any thread.
inline void page_return(Page& page) noexcept {
  if (PagePool::pool_of(page) != nullptr) {
    PagePool::put(page);
  } else {
    page_put(page);
  }
}
// One more reference of the page's own kind (PP-79).
inline void page_hold(Page& page) noexcept {
  if (PagePool::pool_of(page) != nullptr) {
    PagePool::get(page);
  } else {
    page_get(page);
  }
}

}  // namespace nobounce
