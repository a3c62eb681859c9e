#include "swiotlb/swiotlb.hpp"

#include <fmt/format.h>
#include <sched.h>

#include "swiotlb/swiotlb_state.hpp"

namespace nobounce {
namespace {

[[nodiscard]] unsigned this_cpu() noexcept {
  const int cpu = sched_getcpu();
  return cpu < 0 ? 0 : static_cast<unsigned>(cpu);
}

// Keeps the largest value seen; true when it was this one.
bool raise(std::atomic<uint64_t>& highest, uint64_t value) noexcept {
  uint64_t seen = highest.load(std::memory_order_relaxed);
  while (seen < value) {
    if (highest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) return true;
  }
  return false;
}

}  // namespace

Swiotlb::State::State(const PoolLayout& pool_layout, const SharedBytes& pool_bytes,
                      DmaAddr pool_iova, const SwiotlbOptions& pool_options,
                      CounterRegistry& registry, CopyLedger& ledger)
    : layout(pool_layout),
      bytes(pool_bytes.sub(pool_layout.skipped_bytes, pool_layout.slots() * kSlotSize)),
      cpu(static_cast<CpuAddr>(bytes.address())),
      iova(pool_iova + pool_layout.skipped_bytes),
      options(pool_options),
      areas(pool_layout),
      table(pool_layout.end_slot),
      quota(pool_layout.slots(), pool_options.quotas),
      counters(registry),
      copies(ledger) {
  counters.total_slots.add(layout.slots());
}

std::optional<uint32_t> Swiotlb::State::take(const RunRequest& run) noexcept {
  const std::optional<uint32_t> head = areas.alloc(run, this_cpu());
  if (!head) return head;
  counters.used_slots.add(run.slots);
  const uint64_t now_used = used.fetch_add(run.slots, std::memory_order_relaxed) + run.slots;
  if (raise(high_water, now_used)) counters.high_water_slots.raise_to(now_used);
  return head;
}

void Swiotlb::State::give_back(uint32_t head, unsigned slots) noexcept {
  // The tags are neutral before the slots can be taken by another.
  table.close(head, slots);
  used.fetch_sub(slots, std::memory_order_relaxed);
  counters.used_slots.subtract(slots);
  areas.release(head, slots);
}

// ---- set-up -----------------------------------------------------------------------------------

Result<std::unique_ptr<Swiotlb>> Swiotlb::create(const SharedBytes& pool, DmaAddr iova,
                                                 const SwiotlbOptions& options,
                                                 CounterRegistry& counters, CopyLedger& copies) {
  const auto cpu = static_cast<CpuAddr>(pool.address());
  if (pool.address() % kPageSize != 0 || !PageSpace::instance().contains(cpu)) {
    return fail(std::errc::invalid_argument, "create a swiotlb pool",
                "its range does not lie in the page space on a page",
                "carve it from a SharedRegion with an alignment of 4 KiB or more");
  }
  if (auto valid = Quota::check(options.quotas); !valid) return std::unexpected(valid.error());
  const auto layout = plan_pool(iova, pool.size(), options.areas);
  if (!layout) return std::unexpected(layout.error());
  auto state = std::make_unique<State>(*layout, pool, iova, options, counters, copies);
  return std::unique_ptr<Swiotlb>(new Swiotlb(std::move(state)));
}

Swiotlb::Swiotlb(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

Swiotlb::~Swiotlb() {
  const uint64_t used = state_->used.load(std::memory_order_acquire);
  if (used != 0) {
    log_warning(
        fmt::format("swiotlb: the pool goes while {} slots are in use ({} lent to transmit, "
                    "{} to receive)",
                    used, slots_lent(BlockUse::transmit), slots_lent(BlockUse::receive)));
  }
  NB_ASSERT(used == 0);
  state_->counters.total_slots.subtract(slots());
}

// ---- addresses --------------------------------------------------------------------------------

bool Swiotlb::contains(CpuAddr address) const noexcept {
  return state_->slot_of(address).has_value();
}
bool Swiotlb::contains(DmaAddr address) const noexcept {
  return state_->slot_of(address).has_value();
}
DmaAddr Swiotlb::dma_of(CpuAddr address) const noexcept {
  NB_ASSERT(contains(address));
  return state_->iova + (address - state_->cpu);
}

// ---- quotas, sizes, statistics ----------------------------------------------------------------

Result<void> Swiotlb::set_quotas(const NocopyQuotas& quotas) noexcept {
  if (auto valid = Quota::check(quotas); !valid) return valid;
  state_->quota.set(quotas);
  return {};
}
NocopyQuotas Swiotlb::quotas() const noexcept { return state_->quota.get(); }
bool Swiotlb::receive_should_evict() const noexcept { return state_->quota.receive_should_evict(); }
uint64_t Swiotlb::slots() const noexcept { return state_->layout.slots(); }
uint64_t Swiotlb::slots_used() const noexcept {
  return state_->used.load(std::memory_order_relaxed);
}
uint64_t Swiotlb::slots_lent(BlockUse use) const noexcept { return state_->quota.lent(use); }

uint64_t Swiotlb::slots_high_water() const noexcept {
  return state_->high_water.load(std::memory_order_relaxed);
}

Result<void> Swiotlb::set_high_water(uint64_t value) noexcept {
  if (value != 0) {
    return fail(std::errc::invalid_argument, "set the high water mark of the swiotlb pool",
                "it can only be reset", "write 0");
  }
  state_->high_water.store(0, std::memory_order_relaxed);
  state_->counters.high_water_slots.set(0);
  return {};
}

unsigned Swiotlb::longest_free_run() const noexcept { return state_->areas.longest_free_run(); }
bool Swiotlb::is_pristine() const noexcept { return state_->areas.is_pristine(); }

size_t Swiotlb::max_mapping_size(uint64_t min_align_mask) noexcept {
  if (min_align_mask >= kMappingMax) return 0;
  return kMappingMax - round_up(min_align_mask, kSlotSize);
}

}  // namespace nobounce
