// Counting. The pool's own counts are exact at any time; what tools read in the registry is brought
// up to date by the consumer with each refill, slow path, 64 fast allocations, and at destroy. So
// pools of one name add up, and a pool that outlives its registry never touches it.
#include <fmt/format.h>

#include <algorithm>

#include "page_pool/pool_state.hpp"

namespace nobounce {
namespace {

struct Named {
  const char* name;
  uint64_t PagePoolStats::* field;
};
constexpr Named kNames[] = {
    {"rx_pp_alloc_fast", &PagePoolStats::alloc_fast},
    {"rx_pp_alloc_slow", &PagePoolStats::alloc_slow},
    {"rx_pp_alloc_slow_ho", &PagePoolStats::alloc_slow_high_order},
    {"rx_pp_alloc_empty", &PagePoolStats::alloc_empty},
    {"rx_pp_alloc_refill", &PagePoolStats::alloc_refill},
    {"rx_pp_alloc_waive", &PagePoolStats::alloc_waive},
    {"rx_pp_recycle_cached", &PagePoolStats::recycle_cached},
    {"rx_pp_recycle_cache_full", &PagePoolStats::recycle_cache_full},
    {"rx_pp_recycle_ring", &PagePoolStats::recycle_ring},
    {"rx_pp_recycle_ring_full", &PagePoolStats::recycle_ring_full},
    {"rx_pp_recycle_released_ref", &PagePoolStats::recycle_released_refcnt},
    {"rx_pp_recycle_evicted", &PagePoolStats::recycle_evicted},
    {"rx_pp_track_failed", &PagePoolStats::track_failed},
};

}  // namespace

PagePoolStats PagePool::State::stats() const noexcept {
  return {
      .alloc_fast = alloc_fast.value(),
      .alloc_slow = alloc_slow_calls.value(),
      .alloc_slow_high_order = alloc_high_order.value(),
      .alloc_empty = alloc_empty.value(),
      .alloc_refill = alloc_refills.value(),
      .alloc_waive = 0,  // one memory node
      .recycle_cached = recycle_cached.value(),
      .recycle_cache_full = recycle_cache_full.value(),
      .recycle_ring = ring.pushed(),
      .recycle_ring_full = ring.refused(),
      .recycle_released_refcnt = recycle_released_refcnt.load(std::memory_order_relaxed),
      .recycle_evicted = recycle_evicted.load(std::memory_order_relaxed),
      .track_failed = track_failed.value(),
  };
}

void PagePool::State::register_counters(CounterRegistry& registry) {
  static_assert(std::size(kNames) == kStats);
  for (size_t i = 0; i < kStats; ++i) {
    counters[i] = registry.counter(fmt::format("{}.{}", options.name, kNames[i].name));
  }
  has_counters = true;
}

void PagePool::State::publish() noexcept {
  if (!has_counters) return;
  const PagePoolStats now = stats();
  for (size_t i = 0; i < kStats; ++i) {
    const uint64_t added = now.*kNames[i].field - published.*kNames[i].field;
    if (added > 0) counters[i].add(added);
  }
  published = now;
}

PagePoolStats PagePool::stats() const noexcept { return state_->stats(); }

int64_t PagePool::in_flight() const noexcept {
  // Released first: a page that comes in between the two reads makes the answer too high, never
  // negative (PP-52).
  const int64_t released = state_->released.load(std::memory_order_acquire);
  return std::max<int64_t>(0, static_cast<int64_t>(state_->entered.value()) - released);
}

}  // namespace nobounce
