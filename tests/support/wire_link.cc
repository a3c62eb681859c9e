#include "support/wire_link.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "netdev/checksum.hpp"
#include "netdev/gso.hpp"
#include "wire/ethernet.hpp"

namespace nobounce::test {
namespace {

// Where a frame begins in its first page: as behind a virtio-net header.
constexpr uint32_t kFrameOffset = 12;

}  // namespace

// ---- StackEnd
// ------------------------------------------------------------------------------------

StackEnd::StackEnd(Clock& clock, const StackEndOptions& options)
    : random(options.seed),
      timers(options.timers),
      packets(options.packets, counters),
      arena(PrivateArena::create(options.arena_bytes, counters).value()),
      copies(counters),
      context{.clock = clock,
              .random = random,
              .timers = timers,
              .packets = packets,
              .arena = *arena,
              .counters = counters,
              .copies = copies,
              .now_ns = clock.now_ns()} {}

StackEnd::~StackEnd() {
  EXPECT_EQ(packets.in_use(), 0U) << "packets leaked";
  EXPECT_EQ(arena->pages_free(), arena->bytes() / kPageSize) << "private pages leaked";
  EXPECT_EQ(timers.armed(), 0U) << "timers still armed";
}

void StackEnd::begin_round() {
  context.now_ns = context.clock.now_ns();
  timers.poll(context.now_ns);
}

Frag StackEnd::make_frag(Bytes bytes, uint32_t offset) {
  unsigned order = 0;
  while ((kPageSize << order) < offset + bytes.size()) ++order;
  Page* page = arena->alloc(order);
  if (page == nullptr) {
    ADD_FAILURE() << "test arena is empty";
    return {};
  }
  page_write(*page, offset, bytes);
  return {page, offset, static_cast<uint32_t>(bytes.size())};
}

// ---- frames
// --------------------------------------------------------------------------------------

ByteVector flatten(const Packet& packet) {
  ByteVector bytes(packet.size());
  packet.read(0, bytes);
  return bytes;
}

WireFrame to_frame(const Packet& packet) {
  return {.bytes = flatten(packet),
          .checksum = packet.checksum,
          .csum_start = packet.csum_start,
          .csum_offset = packet.csum_offset,
          .gso = packet.gso,
          .gso_size = packet.gso_size};
}

PacketPtr make_received(ShardContext& context, const WireFrame& frame) {
  const Bytes bytes(frame.bytes);
  PacketPtr packet = context.packets.make(kHeadBytes - kHeaderWindow);
  if (packet == nullptr) return {};
  const size_t window = std::min(bytes.size(), kHeaderWindow);
  std::ranges::copy(bytes.first(window), packet->append(window).begin());

  size_t done = 0;
  do {  // also the empty frame gets its page
    Page* page = context.arena.alloc(0);
    if (page == nullptr) return {};
    const auto begin = done == 0 ? kFrameOffset : 0U;
    const auto part = static_cast<uint32_t>(std::min(bytes.size() - done, kPageSize - begin));
    page_write(*page, begin, bytes.subspan(done, part));
    // Of the first page the frag begins behind the window.
    const auto skip = done == 0 ? static_cast<uint32_t>(window) : 0U;
    if (!packet->add_frag(*page, begin + skip, part - skip)) {
      page_put(*page);
      return {};
    }
    done += part;
  } while (done < bytes.size());

  packet->checksum = frame.checksum;
  packet->csum_start = frame.csum_start;
  packet->csum_offset = frame.csum_offset;
  packet->gso = frame.gso;
  packet->gso_size = frame.gso_size;
  if (frame.gso != Gso::none && frame.gso_size != 0) {
    packet->gso_segments =
        static_cast<uint16_t>((frame.bytes.size() + frame.gso_size - 1) / frame.gso_size);
  }
  packet->time_ns = context.now_ns;
  return packet;
}

// ---- WireLink
// ------------------------------------------------------------------------------------

// One end: a NetDevice. `arrivals_` holds what is on its way to it, by time and order of sending.
class WireLink::End final : public NetDevice {
 public:
  End(WireLink& link, int index, ShardContext& context)
      : link_(link), index_(index), context_(context) {}

  [[nodiscard]] const char* name() const noexcept override {
    return index_ == 0 ? "wire-left" : "wire-right";
  }
  [[nodiscard]] MacAddress mac() const noexcept override {
    return {{0x02, 0, 0, 0, 0, static_cast<uint8_t>(index_ + 1)}};
  }
  [[nodiscard]] uint16_t mtu() const noexcept override { return link_.options.mtu; }
  [[nodiscard]] DeviceFeatures features() const noexcept override { return link_.options.features; }
  [[nodiscard]] bool link_up() const noexcept override { return link_.link_up_; }
  [[nodiscard]] bool is_broken() const noexcept override { return link_.broken_; }

  size_t transmit(uint16_t, PacketBurst& burst) noexcept override {
    size_t sent = 0;
    while (sent < burst.size() && transmit_room(0) > 0 && !link_.broken_) {
      PacketPtr packet = std::move(burst[sent++]);
      if (link_.link_up_) accept(std::move(packet));
    }
    burst.drop_front(sent);
    return sent;
  }

  size_t receive(uint16_t, PacketBurst& burst) noexcept override {
    const uint64_t now = link_.clock_.now_ns();
    size_t received = 0;
    while (!burst.full() && !link_.broken_ && !arrivals_.empty() &&
           arrivals_.begin()->first.first <= now) {
      PacketPtr packet = make_received(context_, arrivals_.begin()->second);
      arrivals_.erase(arrivals_.begin());
      if (packet == nullptr) {
        ++link_.facts.no_buffer;
        continue;
      }
      burst.push(std::move(packet));
      ++received;
    }
    return received;
  }

  void reclaim(uint16_t) noexcept override {}
  [[nodiscard]] size_t transmit_room(uint16_t) noexcept override {
    const size_t used = peer().arrivals_.size();
    return link_.options.queue_depth - std::min(link_.options.queue_depth, used);
  }
  [[nodiscard]] bool arm(uint16_t) noexcept override {
    return arrivals_.empty() || arrivals_.begin()->first.first > link_.clock_.now_ns();
  }
  void disarm(uint16_t) noexcept override {}
  [[nodiscard]] WaitHandle wait_handle(uint16_t) noexcept override { return {}; }
  void acknowledge(uint16_t) noexcept override {}

  void arrive(uint64_t due_ns, WireFrame frame) {
    arrivals_.emplace(std::pair{due_ns, link_.sequence_++}, std::move(frame));
  }
  // When the last bit of a frame has been clocked out.
  uint64_t departure_ns(size_t bytes) {
    const uint64_t now = link_.clock_.now_ns();
    if (link_.options.bytes_per_second == 0) return now;
    busy_until_ns_ =
        std::max(busy_until_ns_, now) + bytes * kNsPerSecond / link_.options.bytes_per_second;
    return busy_until_ns_;
  }

  std::map<std::pair<uint64_t, uint64_t>, WireFrame> arrivals_;

 private:
  End& peer() noexcept { return *link_.ends_[static_cast<size_t>(1 - index_)]; }

  // Segments what the other side does not take whole; each result goes on the wire.
  void accept(PacketPtr packet) {
    const DeviceFeatures& features = link_.options.features;
    const size_t frame_max = link_.options.mtu + wire::kEthernetHeaderSize;
    EXPECT_TRUE(packet->checksum != Checksum::partial || features.tx_checksum)
        << "partial checksum handed to a device without the feature";
    if (packet->gso == Gso::none) {
      if (packet->size() > frame_max) {
        ++link_.facts.too_big;
        return;
      }
      link_.put(index_, to_frame(*packet));
      return;
    }
    EXPECT_TRUE(packet->gso == Gso::tcp6 ? features.tso6 : features.tso4)
        << "super-frame handed to a device without the feature";
    ++link_.facts.super_frames;
    if (features.lro) {
      link_.put(index_, to_frame(*packet));
      return;
    }
    auto splitter = GsoSplitter::open(std::move(packet));
    EXPECT_TRUE(splitter.has_value()) << "super-frame that cannot be cut";
    if (!splitter) return;
    while (PacketPtr segment = splitter->next()) {
      if (segment->size() > frame_max) {
        ++link_.facts.too_big;
        continue;
      }
      link_.put(index_, to_frame(*segment));
    }
    EXPECT_TRUE(splitter->done()) << "packet pool empty while cutting a super-frame";
  }

  WireLink& link_;
  int index_;
  ShardContext& context_;
  uint64_t busy_until_ns_ = 0;
};

WireLink::WireLink(Clock& clock, uint64_t seed, ShardContext& left, ShardContext& right,
                   const WireOptions& wire_options)
    : options(wire_options), clock_(clock), random_(seed) {
  ends_[0] = std::make_unique<End>(*this, 0, left);
  ends_[1] = std::make_unique<End>(*this, 1, right);
}

WireLink::~WireLink() = default;

NetDevice& WireLink::left() noexcept { return *ends_[0]; }
NetDevice& WireLink::right() noexcept { return *ends_[1]; }

std::optional<uint64_t> WireLink::next_arrival_ns() const {
  std::optional<uint64_t> next;
  for (const auto& end : ends_) {
    if (end->arrivals_.empty()) continue;
    const uint64_t due = end->arrivals_.begin()->first.first;
    next = next ? std::min(*next, due) : due;
  }
  return next;
}

size_t WireLink::in_flight() const {
  return ends_[0]->arrivals_.size() + ends_[1]->arrivals_.size();
}

void WireLink::put(int from, WireFrame frame) {
  ++facts.frames;
  if (tap) tap(from, frame);
  if (random_.below(1000) < options.loss) {
    ++facts.lost;
    return;
  }
  if (random_.below(1000) < options.duplicate) {
    ++facts.duplicated;
    impair(from, frame);
  }
  impair(from, std::move(frame));
}

namespace {

// Fills the checksum in the flat bytes, as a device does.
void complete(WireFrame& frame) {
  if (frame.checksum != Checksum::partial) return;
  const size_t field = size_t{frame.csum_start} + frame.csum_offset;
  ASSERT_LE(field + 2, frame.bytes.size());
  uint16_t value = checksum_finish(checksum_add(0, Bytes(frame.bytes).subspan(frame.csum_start)));
  if (value == 0) value = 0xffff;
  store_be<uint16_t>(frame.bytes, field, value);
  frame.checksum = Checksum::none;
}

}  // namespace

void WireLink::impair(int from, WireFrame frame) {
  End& to = *ends_[static_cast<size_t>(1 - from)];
  const bool is_whole = frame.gso != Gso::none;
  if (!options.features.rx_checksum && !is_whole) complete(frame);
  const bool is_ipv4 = frame.bytes.size() > wire::kEthernetHeaderSize &&
                       load_be<uint16_t>(frame.bytes, 12) == wire::kEtherTypeIpv4;
  if (is_ipv4 && !is_whole && random_.below(1000) < options.corrupt) {
    complete(frame);
    const auto behind = static_cast<uint32_t>(frame.bytes.size() - wire::kEthernetHeaderSize);
    const size_t at = wire::kEthernetHeaderSize + random_.below(behind);
    frame.bytes[at] ^= std::byte{1} << random_.below(8);
    ++facts.corrupted;
  }
  uint64_t due = to.departure_ns(frame.bytes.size()) + options.delay_ns;
  if (random_.below(1000) < options.reorder) {
    ++facts.reordered;
    due += options.reorder_delay_ns;
  }
  to.arrive(due, std::move(frame));
}

// ---- ScriptDevice
// --------------------------------------------------------------------------------

ScriptDevice::ScriptDevice(ShardContext& context, Options options)
    : context_(context), options_(options) {}

void ScriptDevice::inject(WireFrame frame) { injected_.push_back(std::move(frame)); }

std::optional<WireFrame> ScriptDevice::pop() {
  if (sent_.empty()) return std::nullopt;
  WireFrame frame = std::move(sent_.front());
  sent_.pop_front();
  return frame;
}

size_t ScriptDevice::transmit(uint16_t, PacketBurst& burst) noexcept {
  ++transmit_calls;
  size_t sent = 0;
  while (sent < burst.size() && sent_.size() < options_.room && !broken_) {
    const PacketPtr packet = std::move(burst[sent++]);
    sent_.push_back(to_frame(*packet));
  }
  burst.drop_front(sent);
  return sent;
}

size_t ScriptDevice::receive(uint16_t, PacketBurst& burst) noexcept {
  size_t received = 0;
  while (!burst.full() && !injected_.empty()) {
    PacketPtr packet = make_received(context_, injected_.front());
    injected_.pop_front();
    if (packet == nullptr) {
      ADD_FAILURE() << "pools empty";
      continue;
    }
    burst.push(std::move(packet));
    ++received;
  }
  return received;
}

}  // namespace nobounce::test
