#include "netdev/impair_lane.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "netdev/received_frame.hpp"
#include "wire/ethernet.hpp"

namespace nobounce {
namespace {

constexpr uint16_t kEtherTypeIpv6 = 0x86dd;

uint64_t threshold_of(double chance) noexcept {
  return static_cast<uint64_t>(std::clamp(chance, 0.0, 1.0) * 4294967296.0);
}

// IPv4 or IPv6, with bytes behind the Ethernet header.
bool can_be_damaged(const Packet& packet) noexcept {
  const Bytes head = packet.head();
  if (head.size() < wire::kEthernetHeaderSize || packet.size() <= wire::kEthernetHeaderSize) {
    return false;
  }
  const auto type = load_be<uint16_t>(head, 12);
  return type == wire::kEtherTypeIpv4 || type == kEtherTypeIpv6;
}

}  // namespace

ImpairCounters::ImpairCounters(CounterRegistry& registry, const char* direction) {
  const auto counter = [&](const char* what) {
    return registry.counter(fmt::format("impair.{}.{}", direction, what));
  };
  packets = counter("packets");
  lost = counter("lost");
  duplicated = counter("duplicated");
  reordered = counter("reordered");
  reorder_queue_full = counter("reorder_queue_full");
  corrupted = counter("corrupted");
  delayed = counter("delayed");
  dropped_queue_full = counter("dropped_queue_full");
  dropped_headers = counter("dropped_headers");
  no_packets = counter("no_packets");
}

ImpairLane::ImpairLane(ShardContext& context, const ImpairOptions& options, uint64_t seed,
                       const ImpairCounters& counters)
    : context_(context),
      random_(seed),
      counters_(counters),
      loss_(threshold_of(options.loss)),
      reorder_(threshold_of(options.reorder)),
      duplicate_(threshold_of(options.duplicate)),
      corrupt_(threshold_of(options.corrupt)),
      delay_ns_(options.delay_ns),
      rate_(options.rate),
      queue_bytes_(std::max(options.rate / 8 / (kNsPerSecond / kQueueNs), kQueueMinBytes)),
      line_(kLineMax) {}

void ImpairLane::put(PacketPtr packet, uint64_t now_ns) noexcept {
  NB_ASSERT(packet->gso == Gso::none);
  NB_ASSERT(packet->checksum == Checksum::none);
  counters_.packets.add();
  // All drawn before any is looked at: one packet's fate does not move the next one's.
  const bool lost = happens(loss_);
  const bool twice = happens(duplicate_);
  const bool reorder = happens(reorder_);
  const bool damaged = happens(corrupt_);
  const uint32_t later = 1 + random_.below(kPassedMax);
  const uint32_t where = random_.next_u32();
  if (lost) {
    counters_.lost.add();
    return;
  }
  PacketPtr copy;
  if (twice) {
    copy = copy_frame(context_, *packet);
    (copy != nullptr ? counters_.duplicated : counters_.no_packets).add();
  }
  if (damaged && can_be_damaged(*packet)) packet = damage(std::move(packet), where);
  enqueue(std::move(packet), now_ns, reorder ? later : 0);
  if (copy != nullptr) enqueue(std::move(copy), now_ns, 0);
}

// One bit behind the Ethernet header. Without room for the copy the packet goes undamaged.
PacketPtr ImpairLane::damage(PacketPtr packet, uint32_t random) noexcept {
  const uint64_t bits = (packet->size() - wire::kEthernetHeaderSize) * 8;
  const uint64_t bit = (bits * random) >> 32;
  PacketPtr copy = copy_frame(context_, *packet);
  if (copy == nullptr) {
    counters_.no_packets.add();
    return packet;
  }
  const size_t at = wire::kEthernetHeaderSize + bit / 8;
  const auto mask = static_cast<std::byte>(1U << (bit % 8));
  // In the page, and in the head where that holds the byte too: they are one frame.
  if (at < copy->head().size()) copy->mutable_head()[at] ^= mask;
  private_bytes(*copy->data().frags[at / kPageSize].page, at % kPageSize, 1)[0] ^= mask;
  counters_.corrupted.add();
  return copy;
}

void ImpairLane::enqueue(PacketPtr packet, uint64_t now_ns, uint32_t later) noexcept {
  uint64_t due_ns = now_ns;
  if (line_size_ == kLineMax || !leave_rate(packet->size(), now_ns, due_ns)) {
    counters_.dropped_queue_full.add();
    return;
  }
  due_ns += delay_ns_;
  if (due_ns > now_ns) counters_.delayed.add();
  if (later > 0 && held_count_ == kHeldMax) {
    counters_.reorder_queue_full.add();
    later = 0;
  }
  if (later > 0) {
    counters_.reordered.add();
    held_[held_count_++] = {std::move(packet), due_ns, entered_ + later};
    return;
  }
  line_[(line_front_ + line_size_++) % kLineMax] = {std::move(packet), due_ns, 0};
  ++entered_;
}

// When the packet has passed the slow wire. False: the queue in front of it is full.
bool ImpairLane::leave_rate(size_t bytes, uint64_t now_ns, uint64_t& due_ns) noexcept {
  if (rate_ == 0) return true;
  const uint64_t begin_ns = std::max(busy_until_ns_, now_ns);
  // A double, as the product has more than 64 bits; a byte more or less is no matter.
  const double waiting = static_cast<double>(begin_ns - now_ns) * static_cast<double>(rate_) / 8e9;
  if (waiting + static_cast<double>(bytes) > static_cast<double>(queue_bytes_) && waiting > 0) {
    return false;
  }
  busy_until_ns_ = begin_ns + bytes * 8 * kNsPerSecond / rate_;
  due_ns = busy_until_ns_;
  return true;
}

PacketPtr ImpairLane::take(uint64_t now_ns) noexcept {
  if (PacketPtr packet = take_held(now_ns); packet != nullptr) return packet;
  if (line_size_ == 0) return {};
  Waiting& first = line_[line_front_];
  if (first.due_ns > now_ns) return {};
  PacketPtr packet = std::move(first.packet);
  line_front_ = (line_front_ + 1) % kLineMax;
  --line_size_;
  ++left_;
  return packet;
}

PacketPtr ImpairLane::take_held(uint64_t now_ns) noexcept {
  for (size_t i = 0; i < held_count_; ++i) {
    Waiting& waiting = held_[i];
    if (waiting.turn > left_ && waiting.due_ns + kHoldNs > now_ns) continue;
    if (waiting.due_ns > now_ns) continue;
    PacketPtr packet = std::move(waiting.packet);
    std::move(held_.begin() + static_cast<ptrdiff_t>(i) + 1,
              held_.begin() + static_cast<ptrdiff_t>(held_count_),
              held_.begin() + static_cast<ptrdiff_t>(i));
    --held_count_;
    return packet;
  }
  return {};
}

std::optional<uint64_t> ImpairLane::next_due_ns() const noexcept {
  std::optional<uint64_t> next;
  if (line_size_ > 0) next = line_[line_front_].due_ns;
  for (size_t i = 0; i < held_count_; ++i) {
    const Waiting& waiting = held_[i];
    const uint64_t due = waiting.turn <= left_ ? waiting.due_ns : waiting.due_ns + kHoldNs;
    next = std::min(next.value_or(due), due);
  }
  return next;
}

}  // namespace nobounce
