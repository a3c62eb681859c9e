#include "backend/device_queue.hpp"

#include <fmt/format.h>

#include <array>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

constexpr uint64_t kChainBytesMax = uint64_t{1} << 32;  // VIRTIO 1.2 2.7.4.2

// An honest ring's chains do not share descriptors, so all of them together have at most one piece
// a descriptor, and one more for each border of regions that a buffer runs over.
constexpr size_t kPiecesBeside = 64;

struct Descriptor {
  uint64_t address = 0;
  uint32_t length = 0;
  uint16_t flags = 0;
  uint16_t next = 0;
};

Descriptor load_descriptor(const SharedBytes& table, uint16_t index) noexcept {
  std::array<std::byte, wire::kDescriptorBytes> copy;
  table.copy_out(wire::kDescriptorBytes * index, copy);
  return {.address = load_le<uint64_t>(copy, wire::kDescriptorAddress),
          .length = load_le<uint32_t>(copy, wire::kDescriptorLength),
          .flags = load_le<uint16_t>(copy, wire::kDescriptorFlags),
          .next = load_le<uint16_t>(copy, wire::kDescriptorNext)};
}

}  // namespace

DeviceQueue::DeviceQueue(QueueDirection direction, uint16_t size_limit, BackendCounters& counters)
    : direction_(direction),
      size_limit_(size_limit),
      counters_(counters),
      pieces_(2 * size_t{size_limit} + kPiecesBeside) {
  NB_ASSERT(is_power_of_two(size_limit));
}

// ---- set-up -----------------------------------------------------------------------------------

void DeviceQueue::start(const RingSetUp& set_up) noexcept {
  NB_ASSERT(!started_);
  NB_ASSERT(is_power_of_two(set_up.size));
  NB_ASSERT(set_up.size <= size_limit_);
  size_ = set_up.size;
  event_idx_ = set_up.event_idx;
  last_avail_ = avail_seen_ = used_ = published_ = set_up.base;
  walked_ = 0;
  pieces_.shrink_to(0);
  broken_ = RingBreak::none;
  armed_ = true;  // as the ring is before we say anything
  call_due_ = true;
  started_ = true;
  move_to(set_up.parts, *set_up.memory);
  parts_.used.store_le<uint16_t>(wire::kUsedFlags, 0);
}

uint16_t DeviceQueue::stop() noexcept {
  rewind();
  started_ = false;
  parts_ = {};
  memory_ = nullptr;
  return last_avail_;
}

void DeviceQueue::move_to(const RingParts& parts, const GuestMemory& memory) noexcept {
  NB_ASSERT(walked_ == 0);
  NB_ASSERT(parts.descriptors.size() == wire::descriptor_table_bytes(size_));
  NB_ASSERT(parts.avail.size() == wire::avail_bytes(size_));
  NB_ASSERT(parts.used.size() == wire::used_bytes(size_));
  parts_ = parts;
  memory_ = &memory;
}

// ---- chains -----------------------------------------------------------------------------------

// Reads avail.idx once. True when there are chains to walk.
bool DeviceQueue::refresh_avail() noexcept {
  // Pairs with the driver's release of avail.idx: descriptors and entries up to it are written.
  const auto index = parts_.avail.load_le<uint16_t>(wire::kAvailIndex, LoadOrder::acquire);
  const auto ahead = static_cast<uint16_t>(index - last_avail_);
  // Never further than the ring is long, never back behind what was there already.
  if (ahead > size_ || ahead < static_cast<uint16_t>(avail_seen_ - last_avail_)) {
    latch(RingBreak::avail_index);
    return false;
  }
  avail_seen_ = index;
  return has_seen();
}

size_t DeviceQueue::count_available() noexcept {
  if (!is_usable()) return 0;
  static_cast<void>(refresh_avail());
  return static_cast<uint16_t>(avail_seen_ - last_avail_ - walked_);
}

bool DeviceQueue::walk(Chain& chain) noexcept {
  if (!is_usable()) return false;
  if (!has_seen() && !refresh_avail()) return false;
  const auto index = static_cast<uint16_t>(last_avail_ + walked_);
  const auto head = parts_.avail.load_le<uint16_t>(wire::avail_entry(slot_of(index)));
  if (head >= size_) {
    latch(RingBreak::head_range);
    return false;
  }
  const size_t pieces_before = pieces_.size();
  chain = {.head = head, .first_piece = static_cast<uint32_t>(pieces_before)};
  if (const RingBreak breach = walk_descriptors(head, chain); breach != RingBreak::none) {
    pieces_.shrink_to(pieces_before);
    latch(breach);
    return false;
  }
  chain.piece_count = static_cast<uint32_t>(pieces_.size() - pieces_before);
  ++walked_;
  return true;
}

RingBreak DeviceQueue::walk_descriptors(uint16_t head, Chain& chain) noexcept {
  const bool writes = direction_ == QueueDirection::device_writes;
  uint16_t index = head;
  for (uint32_t count = 0; count < size_; ++count) {
    const Descriptor descriptor = load_descriptor(parts_.descriptors, index);
    if ((descriptor.flags & wire::kDescriptorIndirect) != 0) return RingBreak::indirect;
    if (((descriptor.flags & wire::kDescriptorWrite) != 0) != writes) return RingBreak::direction;
    chain.bytes += descriptor.length;
    if (chain.bytes > kChainBytesMax) return RingBreak::chain_bytes;
    switch (memory_->translate(descriptor.address, descriptor.length, pieces_)) {
      case Translation::done:
        break;
      case Translation::unmapped:
        return RingBreak::unmapped;
      case Translation::no_room:
        return RingBreak::too_many_pieces;
    }
    if ((descriptor.flags & wire::kDescriptorHasNext) == 0) return RingBreak::none;
    if (descriptor.next >= size_) return RingBreak::next_range;
    index = descriptor.next;
  }
  return RingBreak::chain_too_long;
}

void DeviceQueue::complete(const Chain& chain, uint32_t written) noexcept {
  if (!is_usable()) return;
  NB_ASSERT(walked_ > 0);
  const size_t at = wire::used_entry(slot_of(used_));
  parts_.used.store_le<uint32_t>(at, chain.head);
  parts_.used.store_le<uint32_t>(at + 4, written);
  ++used_;
  ++last_avail_;
  if (--walked_ == 0) pieces_.shrink_to(0);
}

void DeviceQueue::rewind() noexcept {
  walked_ = 0;
  pieces_.shrink_to(0);
}

void DeviceQueue::publish() noexcept {
  if (!is_usable() || used_ == published_) return;
  // Pairs with the driver's acquire of used.idx: entries and buffers are written before.
  parts_.used.store_le<uint16_t>(wire::kUsedIndex, used_, StoreOrder::release);
  const bool wanted = wants_call();
  published_ = used_;
  if (!wanted || !call_.is_open()) {
    counters_.calls_suppressed.add();
    return;
  }
  switch (call_.signal()) {
    case Signalled::done:
      counters_.calls.add();
      break;
    case Signalled::saturated:
    case Signalled::failed:
      counters_.calls_saturated.add();
      break;
  }
}

bool DeviceQueue::wants_call() noexcept {
  full_fence();  // publish used.idx, then look whether the driver wants to know
  if (call_due_) {
    call_due_ = false;
    return true;
  }
  if (event_idx_) {
    const auto event = parts_.avail.load_le<uint16_t>(wire::avail_used_event(size_));
    return wire::needs_event(event, used_, published_);
  }
  const auto flags = parts_.avail.load_le<uint16_t>(wire::kAvailFlags);
  return (flags & wire::kAvailNoInterrupt) == 0;
}

// ---- wake-ups ---------------------------------------------------------------------------------

bool DeviceQueue::arm(uint16_t known) noexcept {
  if (!is_usable()) return true;  // nothing to wait for, nothing to do
  if (event_idx_) {
    parts_.used.store_le<uint16_t>(wire::used_avail_event(size_), known);
  } else {
    parts_.used.store_le<uint16_t>(wire::kUsedFlags, 0);
  }
  armed_ = true;
  full_fence();  // say that we want to know, then look whether there is more
  static_cast<void>(refresh_avail());
  return avail_seen_ == known;
}

void DeviceQueue::disarm() noexcept {
  if (!is_usable() || !armed_) return;
  armed_ = false;
  // With event indices the stale one is enough: it is passed once in 65536.
  if (!event_idx_) parts_.used.store_le<uint16_t>(wire::kUsedFlags, wire::kUsedNoNotify);
}

void DeviceQueue::check_memory() noexcept {
  if (is_usable() && memory_->is_broken()) latch(RingBreak::memory_fault);
}

void DeviceQueue::latch(RingBreak reason) noexcept {
  if (broken_ != RingBreak::none) return;
  broken_ = reason;
  rewind();
  counters_.ring_broken[static_cast<size_t>(reason)].add();
  warn_limited(log_limit_, MonotonicClock().now_ns(),
               fmt::format("the guest broke a {} ring: {}",
                           direction_ == QueueDirection::device_reads ? "transmit" : "receive",
                           to_string(reason)));
  if (err_.is_open()) static_cast<void>(err_.signal());
}

}  // namespace nobounce::backend
