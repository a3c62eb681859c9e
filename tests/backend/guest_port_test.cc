#include "backend/guest_port.hpp"

#include <poll.h>

#include <algorithm>
#include <map>

#include "guest_driver.hpp"
#include "support/wire_link.hpp"

namespace nobounce::backend::test {
namespace {

using nobounce::test::StackEnd;
using Request = wire::VhostUserRequest;

constexpr MacAddress kMac{{2, 0, 0, 0, 0, 1}};
constexpr size_t kData = 1 << 20;  // buffers of the guest begin there
constexpr uint64_t kAll = ~uint64_t{0};
constexpr uint64_t kMrg = wire::kNetMrgRxbuf;

struct Options {
  uint64_t features = kAll;  // acknowledged, of what is offered
  uint16_t pairs = 1;
  uint16_t ring_size = 64;
  uint16_t mtu = 1500;
  uint64_t arena_bytes = 16 << 20;
  size_t packets = 512;
};

struct Fixture {
  explicit Fixture(const Options& options = {})
      : end(clock, {.packets = options.packets, .arena_bytes = options.arena_bytes}),
        counters(registry),
        session({.features = DeviceOffer::all_features(options.pairs, kAll),
                 .protocol_features = DeviceOffer::all_protocol_features(options.pairs),
                 .queue_pairs = options.pairs,
                 .queue_size_limit = 256,
                 .guest_mac = {{2, 0, 0, 0, 0, 2}},
                 .mtu = options.mtu},
                counters, nullptr),
        driver(session) {
    driver.set_features(session.offer().features & options.features);
    driver.set_memory(ram);
    for (uint32_t i = 0; i < 2u * options.pairs; ++i) {
      rings.push_back(std::make_unique<DriverRing>(ram, i * 65536, options.ring_size));
      kicks.push_back(make_event());
      calls.push_back(make_event());
      driver.start_ring(i, *rings[i], kicks[i].get(), calls[i].get());
    }
    auto opened = GuestPort::open(session, end.context, counters, {.mac = kMac});
    EXPECT_TRUE(opened);
    port = std::move(*opened);
  }
  ~Fixture() { burst.clear(); }

  DriverRing& rx(size_t pair = 0) { return *rings[2 * pair]; }
  DriverRing& tx(size_t pair = 0) { return *rings[2 * pair + 1]; }
  [[nodiscard]] uint64_t drops(Drop reason) const {
    return registry.value(std::string("backend.drop.") + to_string(reason));
  }
  [[nodiscard]] uint64_t all_drops() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kDrops; ++i) sum += drops(static_cast<Drop>(i));
    return sum;
  }

  // The guest sends `frame` behind `header`, cut into buffers of the given sizes (the last repeats).
  void guest_sends(const wire::VirtioNetHeader& header, Bytes frame,
                   const std::vector<uint32_t>& cuts = {UINT32_MAX}, size_t pair = 0) {
    ByteVector bytes(wire::kNetHeaderBytes);
    header.emit(bytes);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    guest_sends_raw(bytes, cuts, pair);
  }
  void guest_sends_raw(Bytes bytes, const std::vector<uint32_t>& cuts = {UINT32_MAX},
                       size_t pair = 0) {
    std::vector<Buffer> buffers;
    ram.write(kData, bytes);
    for (size_t at = 0; at < bytes.size();) {
      const uint32_t cut = cuts[std::min(buffers.size(), cuts.size() - 1)];
      const auto part = static_cast<uint32_t>(std::min<size_t>(cut, bytes.size() - at));
      buffers.push_back({kGuestBase + kData + at, part});
      at += part;
    }
    ASSERT_LE(buffers.size(), tx(pair).size());
    tx(pair).set_chain(0, buffers, false);
    tx(pair).offer(0);
  }
  size_t receive() { return port->receive(0, burst); }

  // `count` receive buffers of `bytes`, one descriptor each unless cut.
  void post(size_t count, uint32_t bytes, size_t pair = 0, uint16_t descriptors_each = 1) {
    for (size_t i = 0; i < count; ++i) {
      const auto head = static_cast<uint16_t>((posted_[pair] * descriptors_each) % rx(pair).size());
      std::vector<Buffer> buffers;
      const uint64_t at = kData + (posted_[pair] % 64) * (64 << 10) % (2 << 20);
      for (uint16_t n = 0; n < descriptors_each; ++n) {
        const uint32_t part = bytes / descriptors_each;
        buffers.push_back(
            {kGuestBase + at + n * part, n + 1 == descriptors_each ? bytes - n * part : part});
      }
      heads_[{pair, head}] = {at, bytes};
      rx(pair).set_chain(head, buffers, true);
      rx(pair).offer(head);
      ++posted_[pair];
    }
  }
  // Takes one frame out of the guest's used receive buffers; checks what drivers check.
  std::pair<wire::VirtioNetHeader, ByteVector> guest_takes(size_t pair = 0) {
    ByteVector bytes;
    wire::VirtioNetHeader header;
    size_t count = 1;
    for (size_t i = 0; i < count; ++i) {
      const UsedEntry used = rx(pair).take_used();
      const auto [at, size] = heads_.at({pair, static_cast<uint16_t>(used.id)});
      EXPECT_LE(used.length, size);
      const ByteVector part = ram.read(at, used.length);
      bytes.insert(bytes.end(), part.begin(), part.end());
      if (i == 0) {
        header = *wire::VirtioNetHeader::parse(bytes);
        count = header.num_buffers;
        EXPECT_GE(count, 1u);
      }
      if (i + 1 < count) {
        EXPECT_EQ(used.length, size);  // all but the last are full
      }
    }
    bytes.erase(bytes.begin(), bytes.begin() + wire::kNetHeaderBytes);
    return {header, bytes};
  }

  // A frame of ours: the first bytes in the head, the rest in private pages.
  PacketPtr make_packet(size_t bytes, uint64_t seed) {
    PacketPtr packet = end.packets.make(64);
    const size_t head = std::min<size_t>(bytes, 54);
    const MutableBytes space = packet->append(head);
    for (size_t i = 0; i < head; ++i) space[i] = pattern(seed, i);
    for (size_t at = head; at < bytes;) {
      Page* page = end.arena->alloc(0);
      const size_t part = std::min<size_t>(bytes - at, kPageSize);
      const MutableBytes to = private_bytes(*page, 0, part);
      for (size_t i = 0; i < part; ++i) to[i] = pattern(seed, at + i);
      EXPECT_TRUE(packet->add_frag(*page, 0, static_cast<uint32_t>(part)));
      at += part;
    }
    return packet;
  }
  size_t send(PacketPtr packet) {
    PacketBurst out;
    out.push(std::move(packet));
    return port->transmit(0, out);
  }

  ManualClock clock;
  StackEnd end;
  CounterRegistry registry;
  BackendCounters counters;
  GuestRam ram;
  Session session;
  SessionDriver driver;
  std::vector<std::unique_ptr<DriverRing>> rings;
  std::vector<UniqueFd> kicks;
  std::vector<UniqueFd> calls;
  std::unique_ptr<GuestPort> port;
  PacketBurst burst;

 private:
  std::map<size_t, size_t> posted_;
  std::map<std::pair<size_t, uint16_t>, std::pair<size_t, size_t>> heads_;
};

ByteVector make_frame(size_t bytes, uint64_t seed) {
  ByteVector frame(bytes);
  for (size_t i = 0; i < bytes; ++i) frame[i] = pattern(seed, i);
  return frame;
}

ByteVector bytes_of(const Packet& packet) {
  ByteVector bytes(packet.size());
  packet.read(0, bytes);
  return bytes;
}

// ---- from the guest -----------------------------------------------------------------------------

TEST(GuestPort, frames_arrive_whole_whatever_the_buffers) {
  const std::vector<std::vector<uint32_t>> layouts = {
      {UINT32_MAX},
      {12, UINT32_MAX},
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, UINT32_MAX},
      {5, 5, 5, UINT32_MAX},
      {13, 4096},
      {4096},
      {2048, 100, 3, UINT32_MAX}};
  for (const size_t size :
       {14u, 60u, 191u, 192u, 193u, 1514u, 4096u, 4097u, 9014u, 65535u, 65553u}) {
    for (const auto& cuts : layouts) {
      SCOPED_TRACE(testing::Message() << size << " cut at " << cuts[0]);
      Fixture f;
      const ByteVector frame = make_frame(size, size);
      f.guest_sends({}, frame, cuts);
      ASSERT_EQ(f.receive(), 1u);
      Packet& packet = *f.burst[0];
      EXPECT_EQ(packet.size(), size);
      EXPECT_EQ(packet.head().size(), std::min<size_t>(size, kHeaderWindow));
      EXPECT_EQ(packet.checksum, Checksum::none);
      EXPECT_EQ(packet.gso, Gso::none);
      EXPECT_EQ(bytes_of(packet), frame);
      packet.give_back_head(14);  // the convention of every driver
      EXPECT_EQ(packet.payload_size(), size - 14);
      EXPECT_EQ(bytes_of(packet), frame);
      EXPECT_EQ(f.tx().take_used(), (UsedEntry{0, 0}));
      EXPECT_EQ(f.registry.value("backend.guest_tx_frames"), 1u);
      EXPECT_EQ(f.registry.value("backend.guest_tx_bytes"), size);
      EXPECT_EQ(f.all_drops(), 0u);
    }
  }
}

TEST(GuestPort, frames_of_impossible_length_are_dropped_and_returned) {
  Fixture f;
  for (const size_t size : {1u, 11u, 12u, 13u, 25u}) {
    f.guest_sends_raw(make_frame(size, 1));
    EXPECT_EQ(f.receive(), 0u);
    EXPECT_EQ(f.tx().take_used().id, 0u);
  }
  EXPECT_EQ(f.drops(Drop::short_frame), 5u);
  f.guest_sends_raw(make_frame(12 + 65554, 1));
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::long_frame), 1u);
  EXPECT_EQ(f.tx().take_used().id, 0u);
  // The port goes on.
  f.guest_sends({}, make_frame(60, 2));
  EXPECT_EQ(f.receive(), 1u);
}

struct HeaderCase {
  const char* name;
  wire::VirtioNetHeader header;
  size_t frame_bytes;
  uint64_t features;
  std::optional<Drop> drop;
};

// CVE-2024-11614 and its kin: what the guest says about checksum and segmentation.
TEST(GuestPort, TM41_the_net_header_counts_only_when_negotiated_and_inside) {
  constexpr uint8_t kCsum = wire::kNetNeedsCsum;
  const HeaderCase cases[] = {
      {"plain", {}, 60, kAll, {}},
      {"partial tcp", {.flags = kCsum, .csum_start = 34, .csum_offset = 16}, 60, kAll, {}},
      {"field ends the frame", {.flags = kCsum, .csum_start = 34, .csum_offset = 16}, 52, kAll, {}},
      {"field one beyond",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 16},
       51,
       kAll,
       Drop::csum_range},
      {"start in the link header",
       {.flags = kCsum, .csum_start = 13, .csum_offset = 16},
       60,
       kAll,
       Drop::csum_range},
      {"start beyond",
       {.flags = kCsum, .csum_start = 60, .csum_offset = 0},
       60,
       kAll,
       Drop::csum_range},
      {"both at the top",
       {.flags = kCsum, .csum_start = 65535, .csum_offset = 65535},
       60,
       kAll,
       Drop::csum_range},
      {"sum wraps 16 bits",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 65535},
       60,
       kAll,
       Drop::csum_range},
      {"start without the flag is nothing",
       {.csum_start = 65535, .csum_offset = 65535},
       60,
       kAll,
       {}},
      {"partial, not negotiated",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 16},
       60,
       kAll & ~(wire::kNetCsum | wire::kNetHostTso4 | wire::kNetHostTso6),
       Drop::csum_not_negotiated},
      {"other flags are ignored", {.flags = 0xfe}, 60, kAll, {}},
      {"hdr_len and num_buffers are hints", {.hdr_len = 65535, .num_buffers = 65535}, 60, kAll, {}},
      {"tso4",
       {.flags = kCsum, .gso_type = 1, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll,
       {}},
      {"tso6",
       {.flags = kCsum, .gso_type = 4, .gso_size = 1440, .csum_start = 54, .csum_offset = 16},
       9014,
       kAll,
       {}},
      {"tso4 not negotiated",
       {.flags = kCsum, .gso_type = 1, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll & ~wire::kNetHostTso4,
       Drop::gso_not_negotiated},
      {"tso6 not negotiated",
       {.flags = kCsum, .gso_type = 4, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll & ~wire::kNetHostTso6,
       Drop::gso_not_negotiated},
      {"no segment size",
       {.flags = kCsum, .gso_type = 1, .gso_size = 0, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll,
       Drop::gso_invalid},
      {"no partial checksum", {.gso_type = 1, .gso_size = 1460}, 9014, kAll, Drop::gso_invalid},
      {"ufo",
       {.flags = kCsum, .gso_type = 3, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"uso",
       {.flags = kCsum, .gso_type = 5, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"ecn flag",
       {.flags = kCsum, .gso_type = 0x81, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"unknown type",
       {.flags = kCsum, .gso_type = 2, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
  };
  for (const HeaderCase& c : cases) {
    SCOPED_TRACE(c.name);
    Fixture f({.features = c.features});
    f.guest_sends(c.header, make_frame(c.frame_bytes, 3));
    EXPECT_EQ(f.receive(), c.drop ? 0u : 1u);
    if (c.drop) {
      EXPECT_EQ(f.drops(*c.drop), 1u);
    } else {
      const bool partial = (c.header.flags & kCsum) != 0;
      EXPECT_EQ(f.burst[0]->checksum, partial ? Checksum::partial : Checksum::none);
      EXPECT_EQ(f.burst[0]->gso_size, c.header.gso_type == 0 ? 0 : c.header.gso_size);
    }
    EXPECT_EQ(f.tx().take_used().id, 0u);  // returned either way
    EXPECT_EQ(f.session.transmit_ring(0).queue.broken(), RingBreak::none);
  }
}

TEST(GuestPort, super_frames_say_how_many_segments_they_stand_for) {
  Fixture f;
  ByteVector frame = make_frame(34 + 20 + 10 * 1460 + 1, 4);
  frame[34 + 12] = std::byte{0x50};
  f.guest_sends({.flags = wire::kNetNeedsCsum,
                 .gso_type = wire::kNetGsoTcp4,
                 .gso_size = 1460,
                 .csum_start = 34,
                 .csum_offset = 16},
                frame);
  ASSERT_EQ(f.receive(), 1u);
  EXPECT_EQ(f.burst[0]->gso, Gso::tcp4);
  EXPECT_EQ(f.burst[0]->gso_segments, 11);
  f.burst.clear();
  // A segment size of 1 and a data offset of 15 words: bounded, no more than a count.
  frame[34 + 12] = std::byte{0xf0};
  f.guest_sends({.flags = wire::kNetNeedsCsum,
                 .gso_type = wire::kNetGsoTcp4,
                 .gso_size = 1,
                 .csum_start = 34,
                 .csum_offset = 16},
                frame);
  ASSERT_EQ(f.receive(), 1u);
  EXPECT_EQ(f.burst[0]->gso_segments, frame.size() - 34 - 60);
}

TEST(GuestPort, bounds_that_are_hit_drop_and_count) {
  {
    Fixture f({.arena_bytes = 256 << 10});  // 64 pages; each frame takes 15
    for (int i = 0; i < 10; ++i) {
      f.guest_sends({}, make_frame(60000, 1));
      static_cast<void>(f.receive());  // kept in the burst
      EXPECT_EQ(f.tx().take_used().id, 0u);
    }
    EXPECT_EQ(f.burst.size(), 4u);
    EXPECT_EQ(f.drops(Drop::no_pages), 6u);
  }
  {
    Fixture f({.packets = 4});
    for (int i = 0; i < 6; ++i) {
      f.guest_sends({}, make_frame(60, 1));
      static_cast<void>(f.receive());
    }
    EXPECT_EQ(f.burst.size(), 4u);
    EXPECT_EQ(f.drops(Drop::no_packets), 2u);
  }
}

TEST(GuestPort, a_disabled_ring_is_emptied_and_nothing_is_delivered) {
  Fixture f;
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{1, 0})));
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{0, 0})));
  f.guest_sends({}, make_frame(60, 1));
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::disabled), 1u);
  EXPECT_TRUE(f.tx().has_used());
  f.post(4, 2048);
  EXPECT_FALSE(f.port->link_up());
  EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
  EXPECT_EQ(f.drops(Drop::not_ready), 1u);
  EXPECT_FALSE(f.rx().has_used());
}

TEST(GuestPort, TM13_work_a_call_is_bounded) {
  Fixture f({.ring_size = 256});
  for (uint16_t i = 0; i < 256; ++i) {
    f.tx().set_chain(i, {{kGuestBase + kData, 20}}, false);  // all too short
    f.tx().offer(i);
  }
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::short_frame), 2 * kBurstMax);
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::short_frame), 256u);
}

// ---- to the guest -------------------------------------------------------------------------------

TEST(GuestPort, C020_mergeable_frames_carry_their_payload_in_one_to_many_buffers) {
  for (const uint32_t buffer : {64u, 100u, 1526u, 2048u, 4096u, 65536u}) {
    for (const uint16_t pieces : {uint16_t{1}, uint16_t{3}}) {
      for (const size_t size : {14u, 60u, 1514u, 9014u, 65549u}) {
        SCOPED_TRACE(testing::Message() << size << " in buffers of " << buffer);
        Fixture f({.ring_size = 256});
        const size_t needed = (size + 12 + buffer - 1) / buffer;
        if (needed * pieces > 250) continue;
        // Buffers must not overlap for this test: one each in 64 KiB steps, at most 32.
        if (needed > 32) continue;
        f.post(needed, buffer, 0, pieces);
        ASSERT_EQ(f.send(f.make_packet(size, size + 5)), 1u);
        const auto [header, bytes] = f.guest_takes();
        EXPECT_EQ(header.num_buffers, needed);
        EXPECT_EQ(header.flags, 0);
        EXPECT_EQ(header.gso_type, 0);
        EXPECT_EQ(bytes, make_frame(size, size + 5));
        EXPECT_FALSE(f.rx().has_used());
        EXPECT_EQ(f.registry.value("backend.guest_rx_frames"), 1u);
        EXPECT_EQ(f.all_drops(), 0u);
      }
    }
  }
}

TEST(GuestPort, C020_bursts_of_jumbo_frames_in_two_to_five_buffers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f({.ring_size = 256});
    for (int round = 0; round < 20; ++round) {
      const uint32_t buffer = 9026 / (2 + random.below(4)) + 1;
      const size_t frames = 1 + random.below(4);
      f.post(frames * ((9026 + buffer - 1) / buffer), buffer);
      PacketBurst out;
      for (size_t i = 0; i < frames; ++i) out.push(f.make_packet(9014, seed + i));
      ASSERT_EQ(f.port->transmit(0, out), frames);
      for (size_t i = 0; i < frames; ++i) {
        const auto [header, bytes] = f.guest_takes();
        EXPECT_EQ(header.num_buffers, (9026 + buffer - 1) / buffer);
        EXPECT_EQ(bytes, make_frame(9014, seed + i));
      }
      EXPECT_FALSE(f.rx().has_used());
    }
  }
}

TEST(GuestPort, C115_the_header_is_written_whole_and_num_buffers_is_one_without_merging) {
  Fixture f({.features = kAll & ~kMrg});
  std::memset(f.ram.at(kData), 0xa5, 1 << 20);
  f.post(1, 1526);
  ASSERT_EQ(f.send(f.make_packet(60, 1)), 1u);
  const auto [header, bytes] = f.guest_takes();
  EXPECT_EQ(header, (wire::VirtioNetHeader{.num_buffers = 1}));
  EXPECT_EQ(bytes, make_frame(60, 1));
  EXPECT_EQ(*f.ram.at(kData + 72), std::byte{0xa5});  // nothing behind the frame
}

TEST(GuestPort, C021_frames_that_cannot_fit_are_dropped_and_counted) {
  // All combinations of what decides the size of a frame and of the buffers for it.
  for (uint32_t mask = 0; mask < 8; ++mask) {
    SCOPED_TRACE(mask);
    uint64_t features = kAll;
    if ((mask & 1) == 0) features &= ~kMrg;
    if ((mask & 2) == 0) features &= ~wire::kNetGuestTso4;
    if ((mask & 4) == 0) features &= ~wire::kNetGuestTso6;
    Fixture f({.features = features, .ring_size = 8});
    f.post(8, 2048);
    PacketPtr super = f.make_packet(65549, 1);
    super->checksum = Checksum::partial;
    super->csum_start = 34;
    super->csum_offset = 16;
    super->gso = Gso::tcp4;
    super->gso_size = 1460;
    ASSERT_EQ(f.send(std::move(super)), 1u);
    EXPECT_EQ(f.drops(Drop::gso_not_negotiated), (mask & 2) == 0 ? 1u : 0u);
    EXPECT_EQ(f.drops(Drop::cannot_fit), (mask & 2) == 0 ? 0u : 1u);
    EXPECT_FALSE(f.rx().has_used());
    // A large plain frame: fits merged buffers only.
    ASSERT_EQ(f.send(f.make_packet(9014, 1)), 1u);
    if ((mask & 1) != 0) {
      EXPECT_EQ(f.guest_takes().second, make_frame(9014, 1));
    } else {
      EXPECT_EQ(f.drops(Drop::cannot_fit), (mask & 2) == 0 ? 1u : 2u);
    }
    // And the buffers that were too small are not lost.
    ASSERT_EQ(f.send(f.make_packet(1514, 2)), 1u);
    EXPECT_EQ(f.guest_takes().second, make_frame(1514, 2));
    EXPECT_EQ(f.session.receive_ring(0).queue.broken(), RingBreak::none);
  }
}

TEST(GuestPort, partial_checksums_and_super_frames_are_announced) {
  Fixture f;
  EXPECT_TRUE(f.port->features().tx_checksum);
  EXPECT_TRUE(f.port->features().tso4);
  EXPECT_TRUE(f.port->features().lro);
  f.post(20, 4096);
  PacketPtr packet = f.make_packet(30000, 9);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp4;
  packet->gso_size = 1448;
  ASSERT_EQ(f.send(std::move(packet)), 1u);
  const auto [header, bytes] = f.guest_takes();
  EXPECT_EQ(header.flags, wire::kNetNeedsCsum);
  EXPECT_EQ(header.gso_type, wire::kNetGsoTcp4);
  EXPECT_EQ(header.gso_size, 1448);
  EXPECT_EQ(header.csum_start, 34);
  EXPECT_EQ(header.csum_offset, 16);
  EXPECT_EQ(header.hdr_len, 54);
  EXPECT_EQ(bytes, make_frame(30000, 9));
}

TEST(GuestPort, what_the_guest_did_not_negotiate_is_never_sent) {
  Fixture f({.features = wire::kVersion1 | wire::kVhostUserProtocolFeatures});
  const DeviceFeatures features = f.port->features();
  EXPECT_FALSE(features.tx_checksum || features.tso4 || features.tso6 || features.rx_checksum ||
               features.lro);
  f.post(4, 2048);
  PacketPtr packet = f.make_packet(1514, 1);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  EXPECT_EQ(f.send(std::move(packet)), 1u);
  EXPECT_EQ(f.drops(Drop::csum_not_negotiated), 1u);
  EXPECT_FALSE(f.rx().has_used());
}

TEST(GuestPort, TSO_without_GUEST_CSUM_is_not_believed) {
  Fixture f({.features = kAll & ~wire::kNetGuestCsum});
  EXPECT_FALSE(f.port->features().tso4);
}

TEST(GuestPort, frames_wait_for_buffers_and_go_when_they_come) {
  Fixture f;
  PacketBurst out;
  for (uint64_t i = 0; i < 3; ++i) out.push(f.make_packet(1514, i));
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  EXPECT_EQ(out.size(), 3u);
  EXPECT_EQ(f.port->transmit_room(0), 0u);
  f.post(2, 2048);
  EXPECT_EQ(f.port->transmit_room(0), 1u);
  EXPECT_EQ(f.port->transmit(0, out), 2u);
  EXPECT_EQ(out.size(), 1u);
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 0));
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 1));
  // It asks to be told of the next buffer, and is.
  EXPECT_TRUE(f.port->arm(0));
  EXPECT_EQ(f.rx().avail_event(), 2);
  f.post(1, 2048);
  EXPECT_FALSE(f.port->arm(0));
  EXPECT_EQ(f.port->transmit(0, out), 1u);
  EXPECT_TRUE(f.port->arm(0));  // buffers are no news now
  EXPECT_EQ(f.all_drops(), 0u);
}

TEST(GuestPort, a_frame_that_waits_too_long_lets_others_pass) {
  Fixture f;
  f.post(2, 2048);
  PacketBurst out;
  out.push(f.make_packet(9014, 1));
  out.push(f.make_packet(1514, 2));
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  f.clock.advance(GuestPort::kStallNs / 2);
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  f.clock.advance(GuestPort::kStallNs);
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 2u);
  EXPECT_EQ(f.drops(Drop::rx_stalled), 1u);
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 2));
}

TEST(GuestPort, a_receive_buffer_smaller_than_the_header_is_a_breach) {
  for (const uint32_t size : {0u, 1u, 11u}) {
    SCOPED_TRACE(size);
    Fixture f;
    f.post(4, size);
    EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
    EXPECT_EQ(f.session.receive_ring(0).queue.broken(), RingBreak::buffer_too_small);
    EXPECT_TRUE(f.port->is_broken());
    EXPECT_FALSE(f.port->link_up());
    EXPECT_EQ(f.all_drops(), 1u);
    EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
    EXPECT_EQ(f.drops(Drop::not_ready), 2u);
  }
}

TEST(GuestPort, TM64_memory_that_vanishes_drops_the_frame_and_breaks_the_ring) {
  {
    Fixture f;
    f.guest_sends({}, make_frame(1514, 1));
    ASSERT_EQ(::ftruncate(f.ram.fd(), kData), 0);
    EXPECT_EQ(f.receive(), 0u);
    EXPECT_EQ(f.drops(Drop::memory_fault), 1u);
    EXPECT_TRUE(f.port->is_broken());
  }
  {
    Fixture f;
    f.post(4, 2048);
    ASSERT_EQ(::ftruncate(f.ram.fd(), kData), 0);
    EXPECT_EQ(f.send(f.make_packet(1514, 1)), 1u);
    EXPECT_EQ(f.drops(Drop::memory_fault), 1u);
    EXPECT_FALSE(f.rx().has_used());
  }
}

TEST(GuestPort, C061_frames_go_to_the_pair_the_flow_uses_and_to_active_ones_only) {
  Fixture f({.pairs = 2});
  // Two flows of IPv4/UDP by hand: guest port 1000 + n, ours 7.
  const auto flow = [](uint16_t port, bool from_guest) {
    ByteVector frame(60);
    store_be<uint16_t>(frame, 12, 0x0800);
    frame[14] = std::byte{0x45};
    frame[23] = std::byte{17};
    store_be<uint32_t>(frame, from_guest ? 26 : 30, 0x0a4d0002);
    store_be<uint32_t>(frame, from_guest ? 30 : 26, 0x0a4d0001);
    store_be<uint16_t>(frame, from_guest ? 34 : 36, port);
    store_be<uint16_t>(frame, from_guest ? 36 : 34, 7);
    return frame;
  };
  const auto reply = [&](uint16_t port) {
    PacketPtr packet = f.end.packets.make(64);
    const ByteVector frame = flow(port, false);
    std::ranges::copy(frame, packet->append(frame.size()).begin());
    return packet;
  };
  f.guest_sends({}, flow(1000, true), {UINT32_MAX}, 0);
  ASSERT_EQ(f.receive(), 1u);
  f.guest_sends({}, flow(1001, true), {UINT32_MAX}, 1);
  ASSERT_EQ(f.receive(), 1u);
  f.post(2, 2048, 0);
  f.post(2, 2048, 1);
  ASSERT_EQ(f.send(reply(1001)), 1u);
  EXPECT_TRUE(f.rx(1).has_used());
  EXPECT_FALSE(f.rx(0).has_used());
  ASSERT_EQ(f.send(reply(1000)), 1u);
  EXPECT_TRUE(f.rx(0).has_used());
  // The second pair is switched off: its flows come on the first.
  static_cast<void>(f.guest_takes(0));
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{2, 0})));
  ASSERT_EQ(f.send(reply(1001)), 1u);
  EXPECT_TRUE(f.rx(0).has_used());
}

// ---- waking -------------------------------------------------------------------------------------

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(GuestPort, C022_kicks_wake_by_edge_and_are_never_read) {
  Fixture f;
  const int wait = f.port->wait_handle(0).fd;
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);  // what was signalled while the rings were set up
  const uint64_t before = f.registry.value("backend.kicks");
  EXPECT_FALSE(is_readable(wait));
  for (int i = 0; i < 3; ++i) {
    const uint64_t one = 1;
    ASSERT_EQ(::write(f.kicks[1].get(), &one, sizeof one), 8);
    EXPECT_TRUE(is_readable(wait));
    f.port->acknowledge(0);
    EXPECT_FALSE(is_readable(wait));
  }
  EXPECT_EQ(f.registry.value("backend.kicks"), before + 3);
  EXPECT_GE(event_count(f.kicks[1].get()), 3u);  // still all there
}

TEST(GuestPort, a_replaced_kick_is_watched_and_the_old_one_is_not) {
  Fixture f;
  const size_t fds = open_fds();
  const int wait = f.port->wait_handle(0).fd;
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);
  const UniqueFd fresh = make_event();
  f.driver.expect_accepted(f.driver.set_event(Request::set_vring_kick, 1, fresh.get()));
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);
  const uint64_t one = 1;
  ASSERT_EQ(::write(f.kicks[1].get(), &one, sizeof one), 8);
  EXPECT_FALSE(is_readable(wait));
  ASSERT_EQ(::write(fresh.get(), &one, sizeof one), 8);
  EXPECT_TRUE(is_readable(wait));
  EXPECT_LE(open_fds(), fds + 4);
}

// ---- hostile ------------------------------------------------------------------------------------

#ifdef NOBOUNCE_SHARED_LOAD_HOOK

// The guest rewrites what is about to be read, headers included: a frame or a drop or a latch.
TEST(GuestPort, C018_TM79_hostile_guest) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f({.features = random.below(2) == 0 ? kAll : kAll & ~kMrg,
               .ring_size = static_cast<uint16_t>(1u << (2 + random.below(5)))});
    set_shared_load_hook(
        [](void* context, std::byte* address, size_t bytes) {
          auto& source = *static_cast<SeededRandom*>(context);
          if (source.below(40) != 0) return;
          const size_t at = source.below(static_cast<uint32_t>(bytes));
          address[at] = static_cast<std::byte>(source.below(source.below(2) == 0 ? 3 : 256));
        },
        &random);
    for (int i = 0; i < 40; ++i) {
      wire::VirtioNetHeader header{.flags = static_cast<uint8_t>(random.below(4)),
                                   .gso_type = static_cast<uint8_t>(random.below(6)),
                                   .gso_size = static_cast<uint16_t>(random.next_u32()),
                                   .csum_start = static_cast<uint16_t>(random.below(80)),
                                   .csum_offset = static_cast<uint16_t>(random.below(20))};
      f.guest_sends(header, make_frame(1 + random.below(9000), seed),
                    {1 + random.below(64), 4096 + random.below(9000)});
      static_cast<void>(f.receive());
      f.burst.clear();
      f.post(random.below(4), random.below(5000));
      PacketBurst out;
      out.push(f.make_packet(60 + random.below(9000), seed));
      static_cast<void>(f.port->transmit(0, out));
      static_cast<void>(f.port->arm(0));
      f.port->disarm(0);
    }
    set_shared_load_hook(nullptr, nullptr);
  }
}

#endif

}  // namespace
}  // namespace nobounce::backend::test
