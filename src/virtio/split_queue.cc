#include "virtio/split_queue.hpp"

#include <fmt/format.h>

#include "base/barrier.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

// The parts of a queue in one range. The used ring begins at 4 modulo 8, so that its elements are
// 8-aligned and can be taken with one load (TM-8).
struct Parts {
  size_t avail;
  size_t used;
  size_t total;
};

Parts parts(uint16_t size) noexcept {
  Parts at{};
  at.avail = wire::descriptor_table_bytes(size);
  at.used = round_up(at.avail + wire::avail_bytes(size), 8) + 4;
  at.total = round_up(at.used + wire::used_bytes(size), 64);
  return at;
}

constexpr size_t kRangeAlign = 64;
static_assert((4 + wire::kUsedRing) % 8 == 0);

}  // namespace

size_t carve_queue_bytes(uint16_t size) noexcept { return parts(size).total; }

Result<QueueLayout> carve_queue(SharedRegion& region, uint16_t index, uint16_t size) {
  NB_ASSERT(is_power_of_two(size) && size <= wire::kQueueSizeMax);
  const Parts at = parts(size);
  const SharedBytes all = region.carve(at.total, kRangeAlign);
  if (all.empty()) {
    return fail(std::errc::not_enough_memory, fmt::format("lay out virtqueue {}", index),
                "the shared region is too small for the rings",
                "use a larger --pool-size or smaller queues");
  }
  return QueueLayout{.index = index,
                     .size = size,
                     .descriptors = all.sub(0, wire::descriptor_table_bytes(size)),
                     .driver_area = all.sub(at.avail, wire::avail_bytes(size)),
                     .device_area = all.sub(at.used, wire::used_bytes(size))};
}

Result<QueueLayout> carve_queue_once(std::optional<QueueLayout>& kept, SharedRegion& region,
                                     uint16_t index, uint16_t size) {
  if (!kept) {
    auto carved = carve_queue(region, index, size);
    if (!carved) return carved;
    kept = *carved;
  }
  NB_ASSERT(kept->index == index);
  NB_ASSERT(kept->size == size);
  return *kept;
}

SplitQueue::SplitQueue(const QueueLayout& layout, Suppression suppression, BreachLatch& latch)
    : descriptors_(layout.descriptors),
      avail_(layout.driver_area),
      used_(layout.device_area),
      latch_(latch),
      shadow_(std::make_unique<Shadow[]>(layout.size)),
      index_(layout.index),
      size_(layout.size),
      mask_(static_cast<uint16_t>(layout.size - 1)),
      suppression_(suppression),
      free_count_(layout.size) {
  NB_ASSERT(is_power_of_two(size_) && size_ <= wire::kQueueSizeMax);
  descriptors_.zero(0, descriptors_.size());
  avail_.zero(0, avail_.size());
  used_.zero(0, used_.size());
  for (uint16_t i = 0; i < size_; ++i) shadow_[i].next = static_cast<uint16_t>(i + 1);
  disarm();
}

// ---- driver -> device -------------------------------------------------------------------------

uint16_t SplitQueue::next_id() const noexcept {
  NB_ASSERT(free_count_ > 0);
  return free_head_;
}

void SplitQueue::write_descriptor(uint16_t index, const Segment& segment, bool has_next,
                                  uint16_t next) noexcept {
  uint16_t flags = has_next ? wire::kDescriptorHasNext : uint16_t{0};
  if (segment.access == Access::device_writes) flags |= wire::kDescriptorWrite;
  const size_t at = wire::kDescriptorBytes * index;
  descriptors_.store_le<uint64_t>(at + wire::kDescriptorAddress,
                                  static_cast<uint64_t>(segment.address));
  descriptors_.store_le<uint64_t>(at + wire::kDescriptorLength, uint64_t{segment.size} |
                                                                    uint64_t{flags} << 32 |
                                                                    uint64_t{next} << 48);
}

uint16_t SplitQueue::post(std::span<const Segment> chain) noexcept {
  NB_ASSERT(!chain.empty());
  NB_ASSERT(chain.size() <= free_count_);
  const uint16_t head = free_head_;
  uint16_t index = head;
  uint16_t last = head;
  uint32_t writable = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    Shadow& shadow = shadow_[index];
    NB_ASSERT(shadow.state == State::free);
    const bool has_next = i + 1 < chain.size();
    write_descriptor(index, chain[i], has_next, has_next ? shadow.next : uint16_t{0});
    if (chain[i].access == Access::device_writes) writable += chain[i].size;
    shadow.state = i == 0 ? State::head : State::follower;
    last = index;
    index = shadow.next;
  }
  free_head_ = index;
  free_count_ = static_cast<uint16_t>(free_count_ - chain.size());
  shadow_[head].writable = writable;
  shadow_[head].last = last;
  shadow_[head].count = static_cast<uint16_t>(chain.size());
  avail_.store_le<uint16_t>(wire::avail_entry(avail_index_ & mask_), head);
  ++avail_index_;
  ++outstanding_;
  return head;
}

bool SplitQueue::publish() noexcept {
  if (avail_index_ == published_index_) return false;
  const uint16_t before = published_index_;
  published_index_ = avail_index_;
  // Release: descriptors and ring entries, and the payload before them, are visible with the index;
  // pairs with the device's acquire of avail.idx.
  avail_.store_le<uint16_t>(wire::kAvailIndex, avail_index_, StoreOrder::release);
  full_fence();  // the index before "does it want to be told?" (VIRTIO 1.2 2.7.13.4.1)
  if (suppression_ == Suppression::flags) {
    return (used_.load_le<uint16_t>(wire::kUsedFlags) & wire::kUsedNoNotify) == 0;
  }
  const auto event = used_.load_le<uint16_t>(wire::used_avail_event(size_));
  return wire::needs_event(event, avail_index_, before);
}

// ---- device -> driver -------------------------------------------------------------------------

uint16_t SplitQueue::completed() noexcept {
  if (latch_.is_broken()) return waiting_ = 0;
  // Acquire: elements and buffers written before the index; pairs with the device's release.
  const auto index = used_.load_le<uint16_t>(wire::kUsedIndex, LoadOrder::acquire);
  const auto count = static_cast<uint16_t>(index - last_used_);
  // Nothing unpublished may be counted: what the device never saw, it cannot have finished.
  const auto unseen = static_cast<uint16_t>(avail_index_ - published_index_);
  if (count > outstanding_ - unseen) {
    latch_.latch(Breach::used_index, index_);
    return waiting_ = 0;
  }
  return waiting_ = count;
}

Breach SplitQueue::judge(uint32_t id, uint32_t length) const noexcept {
  if (id >= size_) return Breach::id_range;
  const Shadow& shadow = shadow_[id & mask_];  // masked: no speculative walk outside (TM-5)
  if (shadow.state == State::follower) return Breach::id_not_head;
  if (shadow.state == State::free) return Breach::id_not_posted;
  // A chain the device only reads has no length worth a judgement (TM-9, C134).
  if (shadow.writable > 0 && length > shadow.writable) return Breach::length;
  return Breach::none;
}

std::optional<Completion> SplitQueue::take() noexcept {
  NB_ASSERT(waiting_ > 0);
  const auto element = used_.load_le<uint64_t>(wire::used_entry(last_used_ & mask_));
  const auto id = static_cast<uint32_t>(element);
  const auto length = static_cast<uint32_t>(element >> 32);
  const Breach breach = judge(id, length);
  if (breach != Breach::none) {
    latch_.latch(breach, index_);
    waiting_ = 0;
    return std::nullopt;
  }
  --waiting_;
  ++last_used_;
  const auto head = static_cast<uint16_t>(id & mask_);
  const bool writable = shadow_[head].writable > 0;
  release(head);
  return Completion{.id = head, .length = writable ? length : 0};
}

void SplitQueue::release(uint16_t head) noexcept {
  Shadow& first = shadow_[head];
  NB_ASSERT(first.state == State::head);
  NB_ASSERT(outstanding_ > 0);
  const uint16_t last = first.last;
  uint16_t index = head;
  for (uint16_t i = 0; i < first.count; ++i) {
    shadow_[index].state = State::free;
    if (index != last) index = shadow_[index].next;
  }
  NB_ASSERT(index == last);
  shadow_[last].next = free_head_;
  free_head_ = head;
  free_count_ = static_cast<uint16_t>(free_count_ + first.count);
  --outstanding_;
}

// ---- notifications ----------------------------------------------------------------------------

bool SplitQueue::arm(uint16_t after) noexcept {
  if (suppression_ == Suppression::event_index) {
    avail_.store_le<uint16_t>(wire::avail_used_event(size_),
                              static_cast<uint16_t>(last_used_ + after));
  } else {
    avail_.store_le<uint16_t>(wire::kAvailFlags, 0);
    after = 0;  // flags know only "every one"
  }
  full_fence();  // the wish before the second look (VIRTIO 1.2 2.7.7.2)
  return completed() <= after;
}

void SplitQueue::disarm() noexcept {
  if (suppression_ == Suppression::event_index) {
    // Just behind us: the next 65,535 completions do not cross it.
    avail_.store_le<uint16_t>(wire::avail_used_event(size_), static_cast<uint16_t>(last_used_ - 1));
  } else {
    avail_.store_le<uint16_t>(wire::kAvailFlags, wire::kAvailNoInterrupt);
  }
}

}  // namespace nobounce::virtio
