// Nocopy blocks: whole pages of the pool, lent through their page descriptors.
//
//   alloc_block     budget -> slots (from the top of an area) -> record -> descriptors
//   release_block   descriptors neutral -> slots -> budget
//
// A block belongs to whoever holds references to its pages. Mappings for a device are counted
// beside that: a block whose pages are released while it is mapped waits for its last unmap, so that
// the device cannot write into what another was given (NC-35).
#include <algorithm>
#include <bit>

#include "swiotlb/swiotlb_state.hpp"

namespace nobounce {
namespace {

constexpr unsigned kSlotsPerPageShift = kPageShift - kSlotShift;

void make_block(Page& head, unsigned order, BlockOwner& owner, uint32_t slot) noexcept {
  for (uint32_t i = 1; i < (1U << order); ++i) {
    Page& tail = *(&head + i);
    tail.is_tail = true;
    tail.head_distance = i;
  }
  head.order = static_cast<uint8_t>(order);
  head.owner_index = slot;
  head.owner = &owner;
  head.refcount.store(1, std::memory_order_release);  // pairs with whoever is handed the block
}

// Every field that an owner or a page_pool may have set, but for the kind (NC-26).
void neutralise(Page& head) noexcept {
  for (uint32_t i = 0; i < (1U << head.order); ++i) {
    Page& page = *(&head + i);
    page.is_tail = false;
    page.head_distance = 0;
  }
  head.order = 0;
  head.owner_tag = 0;
  head.owner_index = 0;
  head.owner = nullptr;
  head.pool.store(nullptr, std::memory_order_relaxed);
  head.dma_addr.store(0, std::memory_order_relaxed);
  head.pool_refcount.store(0, std::memory_order_relaxed);
  head.dma_index.store(Page::kNotTracked, std::memory_order_relaxed);
  head.pool_private = 0;
}

}  // namespace

Page* Swiotlb::alloc_block(unsigned order, BlockUse use) noexcept {
  NB_ASSERT(order <= kBlockOrderMax);
  State& state = *state_;
  NocopyCounters& counters = state.counters.nocopy(use);
  const unsigned slots = 1U << (order + kSlotsPerPageShift);
  const auto refuse = [&](Refusal reason) {
    counters.refused[static_cast<size_t>(reason)].add();
    return nullptr;
  };

  const Refusal refusal = state.quota.reserve(use, slots);
  if (refusal != Refusal::none) return refuse(refusal);
  const std::optional<uint32_t> slot = state.take(
      {.slots = slots, .align_shift = order + kSlotsPerPageShift, .from = SearchFrom::high});
  if (!slot) {
    state.quota.give_back(use, slots);
    if (use == BlockUse::transmit) state.quota.note_transmit_short(slots);
    return refuse(Refusal::no_fit);
  }
  if (use == BlockUse::transmit) state.quota.note_transmit_served(slots);

  RunRecord& run = state.table.record(*slot);
  run.mappings.store(0, std::memory_order_relaxed);
  run.slots = static_cast<uint8_t>(slots);
  run.use = use;
  state.table.open(*slot, slots, SlotState::lent);
  Page& head = *page_of(state.cpu + state.offset_of(*slot));
  NB_ASSERT(is_shared(head));
  NB_ASSERT(head.owner == nullptr);
  make_block(head, order, *this, *slot);
  counters.blocks.add();
  counters.slots.add(slots);
  counters.high_water.raise_to(state.quota.lent(use));
  return &head;
}

void Swiotlb::release_block(Page& head) noexcept {
  State& state = *state_;
  const std::optional<uint32_t> slot = state.slot_of(page_address(head));
  const bool is_whole_lent_block = slot && head.owner == this && *slot == head.owner_index &&
                                   head.refcount.load(std::memory_order_acquire) == 0 &&
                                   state.table.tag(*slot).state == SlotState::lent &&
                                   state.table.tag(*slot).distance == 0;
  if (!is_whole_lent_block) {  // returned twice, or still referred to (NC-25)
    state.counters.bad_release.add();
    NB_DEBUG_ASSERT(!"a block was returned twice or while it is referred to");
    return;
  }
  neutralise(head);
  // Release: our use of the block ends before another's begins. Acquire: the device's users' ended.
  const uint32_t before =
      state.table.record(*slot).mappings.fetch_or(RunRecord::kReleased, std::memory_order_acq_rel);
  if (before == 0) return state.finish_block(*slot);
  if ((before & RunRecord::kReleased) == 0) state.counters.released_mapped.add();
}

void Swiotlb::State::finish_block(uint32_t head) noexcept {
  const bool closing = table.begin_close(head, SlotState::lent);
  NB_ASSERT(closing);  // one caller takes the count to released and unmapped
  const RunRecord& run = table.record(head);
  const unsigned slots = run.slots;
  const BlockUse use = run.use;
  give_back(head, slots);
  quota.give_back(use, slots);
  counters.nocopy(use).slots.subtract(slots);
  counters.nocopy(use).blocks_freed.add();
}

// ---- mappings of lent blocks ------------------------------------------------------------------

std::optional<uint32_t> Swiotlb::State::lent_head(CpuAddr address, size_t size) const noexcept {
  const std::optional<uint32_t> first = slot_of(address);
  if (!first || size > kMappingMax) return std::nullopt;
  const std::optional<uint32_t> last = size < 2 ? first : slot_of(address + (size - 1));
  if (!last) return std::nullopt;
  const SlotTag first_tag = table.tag(*first);
  const SlotTag last_tag = table.tag(*last);
  if (first_tag.state != SlotState::lent || last_tag.state != SlotState::lent) return std::nullopt;
  const uint32_t head = *first - first_tag.distance;
  if (head != *last - last_tag.distance) return std::nullopt;
  return head;
}

bool Swiotlb::is_lent(CpuAddr address, size_t size) const noexcept {
  return state_->lent_head(address, size).has_value();
}

std::optional<DmaAddr> Swiotlb::map_lent(CpuAddr address, size_t size) noexcept {
  const std::optional<uint32_t> head = state_->lent_head(address, size);
  if (!head) return std::nullopt;
  std::atomic<uint32_t>& mappings = state_->table.record(*head).mappings;
  uint32_t count = mappings.load(std::memory_order_relaxed);
  do {
    if ((count & RunRecord::kReleased) != 0) return std::nullopt;  // only waits for its unmaps
  } while (!mappings.compare_exchange_weak(count, count + 1, std::memory_order_relaxed));
  return dma_of(address);
}

void Swiotlb::State::drop_lent_mapping(DmaAddr address) noexcept {
  const std::optional<uint32_t> slot = slot_of(address);
  if (!slot || table.tag(*slot).state != SlotState::lent) return;
  const uint32_t head = table.head_of(*slot);
  std::atomic<uint32_t>& mappings = table.record(head).mappings;
  uint32_t count = mappings.load(std::memory_order_relaxed);
  do {
    if ((count & ~RunRecord::kReleased) == 0) {
      counters.bad_unmap_double.add();
      return;
    }
  } while (!mappings.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
  if (count == (RunRecord::kReleased | 1)) finish_block(head);
}

// ---- coherent memory --------------------------------------------------------------------------

SharedBytes Swiotlb::alloc_coherent(size_t bytes) noexcept {
  State& state = *state_;
  if (bytes == 0 || bytes > kMappingMax) return {};
  const size_t whole = std::bit_ceil(std::max(bytes, kPageSize));
  const auto slots = static_cast<unsigned>(whole >> kSlotShift);
  const std::optional<uint32_t> head =
      state.take({.slots = slots,
                  .align_shift = static_cast<unsigned>(std::countr_zero(slots)),
                  .from = SearchFrom::high});
  if (!head) {
    state.counters.fail_exhausted.add();
    return {};
  }
  state.table.record(*head).slots = static_cast<uint8_t>(slots);
  state.table.open(*head, slots, SlotState::coherent);
  const SharedBytes memory = state.bytes.sub(state.offset_of(*head), whole);
  memory.zero(0, whole);
  return memory;
}

bool Swiotlb::free_coherent(const SharedBytes& memory) noexcept {
  State& state = *state_;
  const std::optional<uint32_t> slot = state.slot_of(static_cast<CpuAddr>(memory.address()));
  if (!slot || state.offset_of(*slot) != memory.address() - state.bytes.address()) return false;
  if (!state.table.begin_close(*slot, SlotState::coherent)) return false;
  state.give_back(*slot, state.table.record(*slot).slots);
  return true;
}

}  // namespace nobounce
