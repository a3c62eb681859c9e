// What a PagePool consists of. Private to page_pool/.
//
// A page is in one of three places, and its pool reference count says which kind:
//
//   place            pool_refcount   may touch it
//   cache            0               consumer
//   ring             0               consumer, after the pop
//   out              1 or more       its holders
//
// 0 while the pool holds it: a page that is returned twice is caught at the second return.
//
// The record outlives the handle. `released` counts pages that left the pool; destroy() subtracts
// all that ever entered, after which it stands at minus the number of pages still out. Whoever
// brings it to zero, destroy() or the last page coming home, frees the pool; before destroy() it
// never is zero after an addition. Nobody touches the pool after that addition (PP-44).
//
// Files: page_pool.cc the handle and set-up · alloc.cc cache, refill, slow path · recycle.cc the way
// back · destroy.cc release and end · mapping_table.* tracking · stats.cc.
#pragma once

#include <array>
#include <atomic>

#include "base/ptr_ring.hpp"
#include "page_pool/device_gate.hpp"
#include "page_pool/mapping_table.hpp"
#include "page_pool/page_pool.hpp"

namespace nobounce {

inline constexpr uint32_t kPoolCache = 128;
inline constexpr uint32_t kPoolBatch = 64;  // refill, and one slow-path bulk
inline constexpr uint32_t kPoolRingDefault = 1024;
inline constexpr uint32_t kPoolRingMax = 16384;
static_assert(kPoolBatch <= kPoolCache);

// A name for the calling thread that no other thread ever has. Never 0.
[[nodiscard]] uint64_t this_thread_token() noexcept;

// Drops `count` pool references; true for the caller who dropped the last. Then the count is 0 and
// the page is the caller's alone. Any thread (PP-33).
[[nodiscard]] bool drop_pool_references(Page& head, int64_t count) noexcept;

// A counter with one writing thread and any reader.
class ConsumerCount {
 public:
  void add(uint64_t n = 1) noexcept { value_.store(value() + n, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct PagePool::State {
  State(PagePool& owner, const PagePoolOptions& options, uint32_t ring_size, uint32_t tracked_max);

  // ---- consumer's thread (alloc.cc) ----
  Page* alloc() noexcept;
  Page* alloc_refill() noexcept;  // the cache is empty
  Page* alloc_slow() noexcept;    // the ring too
  Page* alloc_one_block() noexcept;
  size_t take_from_system(Page** pages, size_t count) noexcept;
  bool enter_pool(Page& head) noexcept;
  Page* hand_out(Page* head) noexcept;

  // ---- any thread (recycle.cc); `direct`: the caller is the consumer ----
  // The page's last reference was dropped.
  void recycle(Page& head, bool direct) noexcept;
  void recycle_group(Page** heads, size_t count, bool direct) noexcept;
  bool is_recyclable(Page& head) noexcept;
  bool push_cache(Page& head) noexcept;
  void sync_for_device(Page& head, bool direct) noexcept;
  [[nodiscard]] bool is_consumer() const noexcept {
    return consumer.load(std::memory_order_relaxed) == this_thread_token();
  }

  // ---- any thread (destroy.cc) ----
  // Out of the pool: unmap, account, drop one system reference. The pool may be gone afterwards.
  void release(Page& head) noexcept;
  void unmap(Page& head) noexcept;

  // ---- stats.cc ----
  [[nodiscard]] PagePoolStats stats() const noexcept;
  void register_counters(CounterRegistry& registry);
  void publish() noexcept;  // consumer's thread

  // Constant after creation.
  PagePool& pool;
  const PagePoolOptions options;
  // Lends nocopy blocks when this pool's device bounces, else null. Outlives every block it lent, so
  // a returned lent block may ask it even when the device is gone.
  Swiotlb* const lender;
  const bool device_needs_sync;  // of private pages; decided while the device was there

  // Consumer's.
  alignas(kCacheLine) std::array<Page*, kPoolCache> cache;
  uint32_t cached = 0;
  bool is_closed = false;
  ConsumerCount entered;  // pages that ever came in: the hold count
  ConsumerCount alloc_fast, alloc_slow_calls, alloc_high_order, alloc_empty, alloc_refills;
  ConsumerCount recycle_cached, recycle_cache_full, track_failed;
  PagePoolStats published;
  static constexpr size_t kStats = 13;
  std::array<SharedCounter, kStats> counters;
  bool has_counters = false;

  // Anyone's.
  alignas(kCacheLine) std::atomic<uint64_t> consumer{0};  // token of the bound thread, 0: none
  DeviceGate gate;
  alignas(kCacheLine) std::atomic<int64_t> released{0};
  std::atomic<uint64_t> recycle_released_refcnt{0};
  std::atomic<uint64_t> recycle_evicted{0};
  MappingTable tracked;
  PtrRing<Page> ring;
};

}  // namespace nobounce
