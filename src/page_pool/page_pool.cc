// The handle, and set-up: what is refused and why (PP-1 .. PP-8).
#include "page_pool/page_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "page_pool/pool_state.hpp"

namespace nobounce {
namespace {

Result<void> check(const PagePoolOptions& options, const std::string& operation) {
  const auto refuse = [&](std::string cause) {
    return fail(std::errc::invalid_argument, operation, std::move(cause));
  };
  if (options.arena == nullptr) return refuse("it has no arena to take pages from");
  if (options.order > kBlockOrderMax) {
    return refuse(fmt::format("order {} is above {}", options.order, kBlockOrderMax));
  }
  if (options.map && options.device == nullptr) return refuse("mapping needs a device");
  if (options.map && options.direction == DmaDirection::to_device) {
    return refuse("the device must be able to write the pages");
  }
  if (options.sync_for_device && !options.map) return refuse("sync needs mapping");
  if (options.sync_for_device && options.max_len == 0) return refuse("sync needs a length");
  const uint64_t block = kPageSize << options.order;
  if (options.offset > block || options.max_len > block - options.offset) {
    return refuse(fmt::format("offset {} and length {} do not fit a block of {}", options.offset,
                              options.max_len, block));
  }
  return {};
}

// Every page the pool's sources could ever give, so that tracking never runs out by itself.
uint32_t tracked_default(const PagePoolOptions& options) {
  uint64_t bytes = options.arena->bytes();
  if (options.device->bounces()) bytes += options.device->pool()->slots() * kSlotSize;
  return static_cast<uint32_t>(
      std::min<uint64_t>((bytes >> kPageShift) >> options.order, uint64_t{1} << 30));
}

}  // namespace

PagePool::PagePool() noexcept = default;
PagePool::~PagePool() = default;

PagePool::State::State(PagePool& owner, const PagePoolOptions& asked, uint32_t ring_size,
                       uint32_t tracked_max)
    : pool(owner),
      options(asked),
      lender(asked.map && asked.device->bounces() ? asked.device->pool() : nullptr),
      device_needs_sync(asked.map && asked.device->bounces()),
      tracked(tracked_max),
      ring(ring_size) {}

Result<PagePoolHandle> PagePool::create(const PagePoolOptions& options) {
  const std::string operation = fmt::format("make page pool {}", options.name);
  if (auto checked = check(options, operation); !checked) return std::unexpected(checked.error());
  const uint32_t ring_size =
      options.ring_size == 0 ? kPoolRingDefault : std::min(options.ring_size, kPoolRingMax);
  uint32_t tracked_max = 0;
  if (options.map) {
    tracked_max = options.tracked_max != 0 ? options.tracked_max : tracked_default(options);
  }

  PagePoolHandle pool(new PagePool);
  pool->state_ = std::make_unique<State>(*pool, options, ring_size, tracked_max);
  if (!pool->state_->tracked.is_ready()) {
    return fail(std::errc::not_enough_memory, operation,
                fmt::format("no memory to track {} pages", tracked_max));
  }
  if (options.counters != nullptr) pool->state_->register_counters(*options.counters);
  return pool;
}

void PagePoolDestroyer::operator()(PagePool* pool) const noexcept { PagePool::destroy(pool); }

Page* PagePool::alloc() noexcept { return state_->alloc(); }

size_t PagePool::alloc_bulk(Page** pages, size_t count) noexcept {
  size_t got = 0;
  while (got < count && (pages[got] = state_->alloc()) != nullptr) ++got;
  return got;
}

void PagePool::bind_consumer_thread() noexcept {
  state_->consumer.store(this_thread_token(), std::memory_order_relaxed);
}

void PagePool::sync_for_cpu(Page& page, uint32_t offset, uint32_t size) noexcept {
  State& state = *state_;
  NB_ASSERT(pool_of(page) == this);
  if (!state.device_needs_sync || size == 0) return;
  const uint64_t start = uint64_t{state.options.offset} + offset;
  NB_ASSERT(start + size <= kPageSize << state.options.order);
  state.options.device->sync_for_cpu(dma_address(page) + start, size, state.options.direction);
}

}  // namespace nobounce
