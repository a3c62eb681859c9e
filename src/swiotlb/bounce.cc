// Bounce mappings: map, sync, unmap.
//
// A mapping is a run of slots (run_plan.hpp) with a record at its first slot. Which bytes move, by
// call and direction (section 5 of the spec; o = original, b = bounce):
//
//                     to_device   from_device   bidirectional
//   map               o -> b      o -> b        o -> b         always, exactly the request
//   sync_for_device   o -> b      -             o -> b
//   sync_for_cpu      -           b -> o        b -> o
//   unmap             -           b -> o        b -> o         unless skip_cpu_sync
//
// map() copies even what the device is to overwrite: it may write less, and then the rest comes
// back as it was, neither another's bytes nor zeros (SW-33).
#include <algorithm>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "swiotlb/bounce_copy.hpp"
#include "swiotlb/run_plan.hpp"
#include "swiotlb/swiotlb_state.hpp"

namespace nobounce {
namespace {

void check_direction(DmaDirection direction) noexcept {
  NB_ASSERT(direction <= DmaDirection::bidirectional);  // SW-35
}

[[nodiscard]] uint64_t last_byte(DmaAddr address, size_t size) noexcept {
  return static_cast<uint64_t>(address) + (size - 1);
}

}  // namespace

// ---- map --------------------------------------------------------------------------------------

std::expected<DmaAddr, MapError> Swiotlb::map(const BounceRequest& request) noexcept {
  State& state = *state_;
  check_direction(request.direction);
  const auto refuse = [](MapError error, SharedCounter& counter) {
    counter.add();
    return std::unexpected(error);
  };
  if (request.attrs.require_coherent) {
    return refuse(MapError::coherent_required, state.counters.fail_coherent);
  }
  const auto plan = plan_run(request);
  if (!plan) return refuse(plan.error(), state.counters.fail_too_large);
  if (!is_page_memory(request.original, request.size)) {
    return refuse(MapError::unreachable, state.counters.fail_unreachable);
  }
  const unsigned slots = plan->run.slots;
  if (request.for_receive && !state.quota.reserve_receive_bounce(slots)) {
    return refuse(MapError::exhausted, state.counters.fail_receive_share);
  }
  const auto undo_charge = [&] {
    if (request.for_receive) state.quota.give_back_receive_bounce(slots);
  };

  const std::optional<uint32_t> head = state.take(plan->run);
  if (!head) {
    undo_charge();
    if (!request.for_receive) state.quota.note_transmit_short(slots);
    if (!request.attrs.no_warn) state.report_full(request.size, slots);
    return refuse(MapError::exhausted, state.counters.fail_exhausted);
  }
  RunRecord& run = state.table.record(*head);
  run.original = request.original;
  run.size = static_cast<uint32_t>(request.size);
  run.offset = static_cast<uint16_t>(plan->offset);
  run.padding_slots = static_cast<uint8_t>(plan->padding_slots);
  run.slots = static_cast<uint8_t>(slots);
  run.for_receive = request.for_receive;
  state.table.open(*head, slots, SlotState::bounce);

  const DmaAddr address = state.address_of(*head, run);
  if (last_byte(address, request.size) > request.limits.address_limit) {
    const bool closing = state.table.begin_close(*head, SlotState::bounce);
    NB_ASSERT(closing);
    state.finish_bounce(*head);  // no copy was made and none goes back (SW-27)
    return refuse(MapError::unreachable, state.counters.fail_unreachable);
  }
  const SharedBytes all = state.bytes.sub(state.offset_of(*head), slots * kSlotSize);
  if (state.options.zero_padding) {
    const size_t end = run.start() + request.size;
    all.zero(0, run.start());
    all.zero(end, all.size() - end);
  }
  copy_to_slots(request.original, all.sub(run.start(), request.size));
  state.copies.count(CopyKind::bounce, request.size);
  state.counters.mapped.add();
  state.counters.mapped_bytes.add(request.size);
  return address;
}

// Once a second at most, so formatting costs nothing that counts (SW-26).
void Swiotlb::State::report_full(size_t size, unsigned slots) noexcept {
  uint64_t held_back = 0;
  if (!full_message.admit(MonotonicClock().now_ns(), held_back)) return;
  log_warning(
      fmt::format("swiotlb: no room for {} bytes ({} slots); {} of {} slots are used, the "
                  "longest free run is {}; {} such messages held back",
                  size, slots, used.load(std::memory_order_relaxed), layout.slots(),
                  areas.longest_free_run(), held_back));
}

// ---- sync -------------------------------------------------------------------------------------

// The part of a mapping that a sync names, clamped to it; empty when there is nothing to copy.
Swiotlb::State::SyncRange Swiotlb::State::sync_range(DmaAddr address, size_t size) noexcept {
  const std::optional<uint32_t> slot = slot_of(address);
  if (!slot) return {};
  const SlotTag tag = table.tag(*slot);
  if (tag.state != SlotState::bounce) return {};
  const uint32_t head = *slot - tag.distance;
  const RunRecord& run = table.record(head);
  // Wraps to a huge distance when `address` lies in the padding before the mapping.
  const uint64_t distance =
      static_cast<uint64_t>(address) - static_cast<uint64_t>(address_of(head, run));
  if (distance >= run.size) {
    counters.bad_sync.add();
    return {};
  }
  if (size > run.size - distance) {
    counters.bad_sync.add();
    size = run.size - distance;
  }
  return {bytes.sub(offset_of(head) + run.start() + distance, size), run.original + distance};
}

void Swiotlb::sync_for_cpu(DmaAddr address, size_t size, DmaDirection direction) noexcept {
  check_direction(direction);
  if (direction == DmaDirection::to_device) return;
  const State::SyncRange range = state_->sync_range(address, size);
  if (range.slots.empty()) return;
  copy_from_slots(range.slots, range.original);
  state_->copies.count(CopyKind::bounce, range.slots.size());
}

void Swiotlb::sync_for_device(DmaAddr address, size_t size, DmaDirection direction) noexcept {
  check_direction(direction);
  // Nothing for from_device: it would overwrite what the device has delivered (SW-34).
  if (direction == DmaDirection::from_device) return;
  const State::SyncRange range = state_->sync_range(address, size);
  if (range.slots.empty()) return;
  copy_to_slots(range.original, range.slots);
  state_->copies.count(CopyKind::bounce, range.slots.size());
}

// ---- unmap ------------------------------------------------------------------------------------

UnmapFault Swiotlb::State::judge_unmap(DmaAddr address, size_t size) const noexcept {
  const std::optional<uint32_t> slot = slot_of(address);
  if (!slot) return UnmapFault::not_bounced;
  const SlotTag tag = table.tag(*slot);
  if (tag.state == SlotState::lent || tag.state == SlotState::coherent) {
    return UnmapFault::not_bounced;
  }
  if (tag.state != SlotState::bounce) return UnmapFault::twice;
  const uint32_t head = *slot - tag.distance;
  const RunRecord& run = table.record(head);
  if (address != address_of(head, run)) return UnmapFault::inner;
  return size == run.size ? UnmapFault::none : UnmapFault::size;
}

void Swiotlb::unmap(DmaAddr address, size_t size, DmaDirection direction, DmaAttrs attrs) noexcept {
  State& state = *state_;
  check_direction(direction);
  const UnmapFault fault = state.judge_unmap(address, size);
  if (fault == UnmapFault::not_bounced) return state.drop_lent_mapping(address);
  if (fault != UnmapFault::none) return state.count_bad_unmap(fault);

  const uint32_t head = state.table.head_of(*state.slot_of(address));
  if (!state.table.begin_close(head, SlotState::bounce)) {
    return state.count_bad_unmap(UnmapFault::twice);  // another thread is giving it back
  }
  const RunRecord& run = state.table.record(head);
  if (direction != DmaDirection::to_device && !attrs.skip_cpu_sync) {
    // Before the slots are free for another (SW-49).
    copy_from_slots(state.bytes.sub(state.offset_of(head) + run.start(), run.size), run.original);
    state.copies.count(CopyKind::bounce, run.size);
  }
  state.counters.unmapped.add();
  state.finish_bounce(head);
}

void Swiotlb::State::finish_bounce(uint32_t head) noexcept {
  const unsigned slots = table.record(head).slots;
  const bool for_receive = table.record(head).for_receive;
  give_back(head, slots);
  if (for_receive) quota.give_back_receive_bounce(slots);
}

void Swiotlb::State::count_bad_unmap(UnmapFault fault) noexcept {
  switch (fault) {
    case UnmapFault::twice:
      counters.bad_unmap_double.add();
      break;
    case UnmapFault::inner:
      counters.bad_unmap_inner.add();
      break;
    case UnmapFault::size:
      counters.bad_unmap_size.add();
      break;
    case UnmapFault::none:
    case UnmapFault::not_bounced:
      return;
  }
  NB_DEBUG_ASSERT(!"an unmap a second time, inside a mapping or with a wrong size");
}

}  // namespace nobounce
