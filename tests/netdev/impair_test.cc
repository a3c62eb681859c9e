// A bad wire: each impairment at its rate, the same for the same seed, damage that is noticed and
// touches nobody else's bytes, bounds, and times. The clock is the test's.
#include "netdev/impair.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "netdev/checksum.hpp"
#include "nobounce/stack.hpp"
#include "socket/set_up.hpp"
#include "support/frames.hpp"
#include "support/pipe_device.hpp"

namespace nobounce::test {
namespace {

const IpAddress kFrom = IpAddress::v4(10, 0, 0, 1);
const IpAddress kTo = IpAddress::v4(10, 0, 0, 2);
const wire::EthernetHeader kLink{.destination = {{2, 0, 0, 0, 0, 2}},
                                 .source = {{2, 0, 0, 0, 0, 1}},
                                 .ether_type = wire::kEtherTypeIpv4};

// A frame that carries its number; 58 bytes of headers and number, then a filling.
ByteVector numbered(uint32_t n, size_t filling = 0) {
  ByteVector payload(4);
  store_be<uint32_t>(payload, 0, n);
  return ethernet(kLink, ipv4({.protocol = 6, .source = kFrom, .destination = kTo},
                              tcp(kFrom, kTo, {.source_port = 1, .destination_port = 2},
                                  concat(payload, pattern(filling, n)))));
}
uint32_t number_of(const ByteVector& frame) { return load_be<uint32_t>(frame, 54); }

class Impair : public testing::Test {
 protected:
  ~Impair() override {
    burst.clear();
    device.reset();
  }

  void open(const std::string& text) {
    const auto options = parse_impairments(text);
    ASSERT_TRUE(options) << options.error().to_string();
    auto inner = std::make_unique<ScriptDevice>(
        end.context, ScriptDevice::Options{.features = {}, .room = 100'000});
    script = inner.get();
    device = ImpairedDevice::open(std::move(inner), *options, end.context, end.counters).value();
  }
  PacketPtr make(const ByteVector& frame, size_t head = 54) {
    PacketPtr packet = end.packets.make();
    head = std::min(head, frame.size());
    std::ranges::copy(Bytes(frame).first(head), packet->append(head).begin());
    for (size_t at = head; at < frame.size(); at += kPageSize) {
      const size_t part = std::min(frame.size() - at, kPageSize);
      const Frag frag = end.make_frag(Bytes(frame).subspan(at, part));
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    return packet;
  }
  size_t send(PacketPtr packet) {
    PacketBurst out;
    out.push(std::move(packet));
    const size_t sent = device->transmit(0, out);
    out.clear();
    return sent;
  }
  void at(uint64_t ns) {
    clock.set(kStart + ns);
    end.begin_round();
  }
  void later(uint64_t ns) {
    clock.advance(ns);
    end.begin_round();
  }
  // All that has left, in order.
  std::vector<ByteVector> sent() {
    device->reclaim(0);
    std::vector<ByteVector> frames;
    while (auto frame = script->pop()) {
      EXPECT_EQ(frame->checksum, Checksum::none);
      EXPECT_EQ(frame->gso, Gso::none);
      frames.push_back(std::move(frame->bytes));
    }
    return frames;
  }
  // All that has come up, in order.
  std::vector<ByteVector> received() {
    std::vector<ByteVector> frames;
    while (device->receive(0, burst) > 0) {
      for (PacketPtr& packet : burst) {
        EXPECT_EQ(packet->checksum, Checksum::none);
        EXPECT_EQ(packet->gso, Gso::none);
        frames.push_back(flatten(*packet));
        // Whatever it went through, it can be parsed: the longest headers here have 66 bytes.
        packet->give_back_head(std::min<size_t>(packet->head().size(), 66));
        EXPECT_TRUE(flatten(*packet) == frames.back());
      }
      burst.clear();
    }
    return frames;
  }
  uint64_t count(const std::string& name) const { return end.count("impair." + name); }

  static constexpr uint64_t kStart = kNsPerSecond;
  ManualClock clock{kStart};
  StackEnd end{clock, StackEndOptions{.packets = 8192, .arena_bytes = 64 << 20}};
  ScriptDevice* script = nullptr;
  std::unique_ptr<ImpairedDevice> device;
  PacketBurst burst;
};

TEST_F(Impair, a_perfect_wire_changes_nothing) {
  open("seed=1");
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(send(make(numbered(i, 1000))), 1U);
    script->inject(numbered(i, i));
  }
  const auto out = sent();
  const auto in = received();
  ASSERT_EQ(out.size(), 100U);
  ASSERT_EQ(in.size(), 100U);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(out[i], numbered(i, 1000));
    EXPECT_EQ(in[i], numbered(i, i));
  }
  EXPECT_EQ(count("tx.packets"), 100U);
  EXPECT_EQ(count("rx.packets"), 100U);
  EXPECT_EQ(device->next_due_ns(), std::nullopt);
}

// Within five standard deviations: a right implementation fails for one seed in two million.
void expect_share(uint64_t hits, uint64_t of, double share, const char* what) {
  const double mean = static_cast<double>(of) * share;
  const double deviation = std::sqrt(mean * (1 - share));
  EXPECT_NEAR(static_cast<double>(hits), mean, 5 * deviation) << what;
}

TEST_F(Impair, each_impairment_has_its_rate_both_ways) {
  constexpr uint64_t kFrames = 20'000;
  open("loss=10%,reorder=5%,duplicate=3%,corrupt=2%,seed=42");
  std::cout << "seed 42\n";
  uint64_t arrived = 0;
  uint64_t came_up = 0;
  for (uint32_t i = 0; i < kFrames; ++i) {
    EXPECT_EQ(send(make(numbered(i))), 1U);
    script->inject(numbered(i));
    came_up += received().size();
    arrived += sent().size();
  }
  later(ImpairLane::kHoldNs);
  came_up += received().size();
  arrived += sent().size();
  for (const std::string way : {"tx.", "rx."}) {
    const uint64_t lost = count(way + "lost");
    const uint64_t duplicated = count(way + "duplicated");
    EXPECT_EQ(count(way + "packets"), kFrames);
    expect_share(lost, kFrames, 0.10, "loss");
    expect_share(duplicated, kFrames - lost, 0.03, "duplicate");
    expect_share(count(way + "reordered"), kFrames - lost, 0.05, "reorder");
    expect_share(count(way + "corrupted"), kFrames - lost, 0.02, "corrupt");
    EXPECT_EQ(count(way + "no_packets"), 0U);
    EXPECT_EQ(count(way + "dropped_queue_full"), 0U);
    EXPECT_EQ(way == "tx." ? arrived : came_up, kFrames - lost + duplicated);
  }
}

TEST_F(Impair, the_same_seed_gives_the_same_fate_whatever_the_other_direction_does) {
  const char* const kText = "loss=10%,reorder=10%,duplicate=10%,corrupt=10%,seed=";
  const auto run = [&](uint64_t seed, bool with_receive) {
    open(kText + std::to_string(seed));
    std::vector<ByteVector> out;
    for (uint32_t i = 0; i < 500; ++i) {
      if (with_receive) script->inject(numbered(i));
      EXPECT_EQ(send(make(numbered(i))), 1U);
      received();
      for (ByteVector& frame : sent()) out.push_back(std::move(frame));
    }
    later(ImpairLane::kHoldNs);
    received();
    for (ByteVector& frame : sent()) out.push_back(std::move(frame));
    return out;
  };
  const auto once = run(7, false);
  EXPECT_EQ(run(7, false), once);
  EXPECT_EQ(run(7, true), once);
  EXPECT_NE(run(8, false), once);
}

TEST_F(Impair, the_directions_have_fates_of_their_own) {
  open("loss=50%,seed=3");
  std::vector<ByteVector> out;
  for (uint32_t i = 0; i < 200; ++i) {
    script->inject(numbered(i));
    EXPECT_EQ(send(make(numbered(i))), 1U);
  }
  EXPECT_NE(sent(), received());
}

// ---- corruption -------------------------------------------------------------------------------

size_t bits_different(const ByteVector& a, const ByteVector& b) {
  EXPECT_EQ(a.size(), b.size());
  size_t bits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    bits += static_cast<size_t>(std::popcount(static_cast<unsigned>(a[i] ^ b[i])));
  }
  return bits;
}

TEST_F(Impair, corrupt_flips_one_bit_behind_the_link_header_and_is_noticed) {
  open("corrupt=100%,seed=9");
  std::array<uint64_t, 4> quarters{};
  for (uint32_t i = 0; i < 1000; ++i) {
    const ByteVector frame = numbered(i, 400);
    EXPECT_EQ(send(make(frame)), 1U);
    script->inject(WireFrame{.bytes = frame, .checksum = Checksum::verified});
    const std::vector<ByteVector> both{sent().at(0), received().at(0)};
    for (const ByteVector& damaged : both) {
      ASSERT_EQ(bits_different(damaged, frame), 1U);
      EXPECT_TRUE(std::equal(frame.begin(), frame.begin() + 14, damaged.begin()));
      EXPECT_FALSE(has_right_checksums(damaged)) << i;
      const auto at = std::ranges::mismatch(damaged, frame).in1 - damaged.begin();
      ++quarters.at(static_cast<size_t>(at - 14) * 4 / (frame.size() - 14));
    }
  }
  for (const uint64_t hits : quarters) expect_share(hits, 2000, 0.25, "anywhere");
}

TEST_F(Impair, corrupt_reaches_every_page_of_a_large_frame) {
  open("corrupt=100%,seed=10");
  const ByteVector frame = numbered(1, 9000);
  std::array<uint64_t, 3> pages{};
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(send(make(frame)), 1U);
    const ByteVector damaged = sent().at(0);
    ASSERT_EQ(bits_different(damaged, frame), 1U);
    const auto at = std::ranges::mismatch(damaged, frame).in1 - damaged.begin();
    ++pages.at(static_cast<size_t>(at) / kPageSize);
  }
  for (const uint64_t hits : pages) EXPECT_GT(hits, 0U);
}

TEST_F(Impair, corrupt_and_duplicate_leave_the_senders_clone_as_it_was) {
  open("corrupt=100%,duplicate=100%,seed=11");
  const ByteVector frame = numbered(1, 3000);
  for (int i = 0; i < 50; ++i) {
    PacketPtr kept = make(frame);
    PacketPtr clone = end.packets.clone(*kept);  // as TCP sends: a head of its own, the data shared
    std::ranges::copy(kept->head(), clone->push(kept->head().size()).begin());
    EXPECT_EQ(send(std::move(clone)), 1U);
    const auto out = sent();
    ASSERT_EQ(out.size(), 2U);
    EXPECT_EQ(bits_different(out[0], frame), 1U);
    EXPECT_EQ(out[1], frame);
    EXPECT_EQ(flatten(*kept), frame);
  }
}

TEST_F(Impair, what_nobody_could_notice_is_not_corrupted) {
  open("corrupt=100%,seed=12");
  const ByteVector arp = arp_frame(kLink.destination, wire::ArpPacket{});
  EXPECT_EQ(send(make(arp, arp.size())), 1U);
  EXPECT_EQ(sent().at(0), arp);
  EXPECT_EQ(send(make(ByteVector(5), 5)), 1U);  // no frame at all: is passed on as it is
  EXPECT_EQ(sent().at(0), ByteVector(5));
  EXPECT_EQ(count("tx.corrupted"), 0U);
}

// ---- wire packets -----------------------------------------------------------------------------

struct Super {
  ByteVector frame;
  ByteVector payload;
};

Super make_super(size_t bytes) {
  Super super;
  super.payload = pattern(bytes, 77);
  const wire::TcpHeader header{.source_port = 1000,
                               .destination_port = 80,
                               .sequence = 5000,
                               .acknowledgement = 1,
                               .flags = wire::kTcpAck | wire::kTcpPsh,
                               .window = 100,
                               .options = {.timestamps = wire::TcpTimestamps{5, 6}}};
  super.frame = ethernet(kLink, ipv4({.protocol = 6, .source = kFrom, .destination = kTo},
                                     tcp(kFrom, kTo, header, super.payload)));
  const Bytes bytes_of(super.frame);
  const uint64_t pseudo = checksum_add(0, bytes_of.subspan(26, 8)) + 6 + super.frame.size() - 34;
  store_be<uint16_t>(super.frame, 50, checksum_fold(pseudo));
  return super;
}

void expect_segments(const std::vector<ByteVector>& segments, const Super& super, size_t size) {
  ByteVector payload;
  ASSERT_EQ(segments.size(), (super.payload.size() + size - 1) / size);
  for (const ByteVector& segment : segments) {
    EXPECT_TRUE(has_right_checksums(segment));
    EXPECT_EQ(load_be<uint32_t>(segment, 38), 5000 + payload.size());
    EXPECT_LE(segment.size(), 66 + size);
    payload.insert(payload.end(), segment.begin() + 66, segment.end());
  }
  EXPECT_EQ(payload, super.payload);
}

TEST_F(Impair, G4_super_frames_become_wire_packets_with_the_same_bytes) {
  open("seed=1");
  const DeviceFeatures features = device->features();
  EXPECT_TRUE(features.tx_checksum && features.tso4 && features.tso6);
  EXPECT_FALSE(features.rx_checksum || features.lro);
  const Super super = make_super(30'000);
  const auto describe = [](Packet& packet) {
    packet.checksum = Checksum::partial;
    packet.csum_start = 34;
    packet.csum_offset = 16;
    packet.gso = Gso::tcp4;
    packet.gso_size = 1400;
  };
  PacketPtr exact = make(super.frame, 66);  // as a stack sends it
  describe(*exact);
  EXPECT_EQ(send(std::move(exact)), 1U);
  expect_segments(sent(), super, 1400);

  WireFrame frame{.bytes = super.frame};
  PacketPtr window = make_received(end.context, frame);  // as it comes from another device
  describe(*window);
  EXPECT_EQ(send(std::move(window)), 1U);
  expect_segments(sent(), super, 1400);

  frame = {.bytes = super.frame,
           .checksum = Checksum::partial,
           .csum_start = 34,
           .csum_offset = 16,
           .gso = Gso::tcp4,
           .gso_size = 1000};
  script->inject(frame);
  expect_segments(received(), super, 1000);
  EXPECT_EQ(count("tx.packets"), 44U);
  EXPECT_EQ(count("rx.packets"), 30U);
}

TEST_F(Impair, a_burst_of_super_frames_loses_nothing_on_a_wire_without_delay) {
  open("seed=1");
  const Super super = make_super(60'000);
  const WireFrame frame{.bytes = super.frame,
                        .checksum = Checksum::partial,
                        .csum_start = 34,
                        .csum_offset = 16,
                        .gso = Gso::tcp4,
                        .gso_size = 500};
  PacketBurst out;
  for (int i = 0; i < 40; ++i) {
    out.push(make_received(end.context, frame));
    script->inject(frame);
  }
  while (!out.empty()) ASSERT_GT(device->transmit(0, out), 0U);
  EXPECT_EQ(sent().size(), 40U * 120);
  EXPECT_EQ(received().size(), 40U * 120);
  EXPECT_EQ(count("tx.dropped_queue_full") + count("rx.dropped_queue_full"), 0U);
}

TEST_F(Impair, partial_checksums_are_completed) {
  open("seed=1");
  const ByteVector whole = numbered(1, 333);
  ByteVector partial = whole;
  const uint64_t pseudo = checksum_add(0, Bytes(whole).subspan(26, 8)) + 6 + whole.size() - 34;
  store_be<uint16_t>(partial, 50, checksum_fold(pseudo));
  PacketPtr packet = make(partial);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  EXPECT_EQ(send(std::move(packet)), 1U);
  EXPECT_EQ(sent().at(0), whole);
  script->inject(WireFrame{
      .bytes = partial, .checksum = Checksum::partial, .csum_start = 34, .csum_offset = 16});
  EXPECT_EQ(received().at(0), whole);
}

TEST_F(Impair, fields_that_make_no_sense_drop_the_packet_and_are_counted) {
  open("seed=1");
  script->inject(WireFrame{.bytes = numbered(1, 1000),
                           .checksum = Checksum::partial,
                           .csum_start = 900,
                           .csum_offset = 16});
  script->inject(WireFrame{.bytes = numbered(2, 3000), .gso = Gso::tcp4, .gso_size = 1000});
  script->inject(WireFrame{.bytes = numbered(3, 3000),
                           .checksum = Checksum::partial,
                           .csum_start = 34,
                           .csum_offset = 16,
                           .gso = Gso::tcp6,
                           .gso_size = 1000});
  EXPECT_TRUE(received().empty());
  EXPECT_EQ(count("rx.dropped_headers"), 3U);
}

// ---- order and time ---------------------------------------------------------------------------

TEST_F(Impair, reordered_packets_are_passed_by_a_few_and_none_is_missing) {
  open("reorder=20%,seed=5");
  std::vector<uint32_t> order;
  const auto take = [&] {
    for (const ByteVector& frame : sent()) order.push_back(number_of(frame));
  };
  for (uint32_t i = 0; i < 2000; ++i) {
    EXPECT_EQ(send(make(numbered(i))), 1U);
    take();
  }
  later(ImpairLane::kHoldNs);
  take();
  ASSERT_EQ(order.size(), 2000U);
  size_t moved = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    // How many later ones came before it; held ones that it waits with count too.
    const auto passed =
        std::ranges::count_if(order.begin(), order.begin() + static_cast<ptrdiff_t>(i),
                              [&](uint32_t other) { return other > order[i]; });
    EXPECT_LE(passed, 3 * ptrdiff_t{ImpairLane::kPassedMax});
    moved += passed > 0 ? 1 : 0;
  }
  EXPECT_EQ(moved, count("tx.reordered"));
  std::ranges::sort(order);
  for (uint32_t i = 0; i < 2000; ++i) ASSERT_EQ(order[i], i);
}

TEST_F(Impair, a_lone_packet_held_back_leaves_when_its_time_is_over) {
  open("reorder=100%,seed=1");
  EXPECT_EQ(send(make(numbered(1))), 1U);
  EXPECT_TRUE(sent().empty());
  EXPECT_EQ(device->next_due_ns(), kStart + ImpairLane::kHoldNs);
  at(ImpairLane::kHoldNs - 1);
  EXPECT_TRUE(sent().empty());
  at(ImpairLane::kHoldNs);
  EXPECT_EQ(sent().size(), 1U);
}

TEST_F(Impair, more_than_can_be_held_back_stays_in_order) {
  open("reorder=100%,delay=1ms,seed=1");
  for (uint32_t i = 0; i < ImpairLane::kHeldMax + 10; ++i) EXPECT_EQ(send(make(numbered(i))), 1U);
  EXPECT_EQ(count("tx.reordered"), ImpairLane::kHeldMax);
  EXPECT_EQ(count("tx.reorder_queue_full"), 10U);
  at(kNsPerMs + ImpairLane::kHoldNs);
  EXPECT_EQ(sent().size(), ImpairLane::kHeldMax + 10);
}

TEST_F(Impair, delay_is_constant_and_keeps_order) {
  open("delay=10ms,seed=1");
  for (uint32_t i = 0; i < 10; ++i) {
    at(i * kNsPerMs);
    EXPECT_EQ(send(make(numbered(i))), 1U);
    script->inject(numbered(i));
    EXPECT_TRUE(received().empty());
  }
  EXPECT_EQ(device->next_due_ns(), kStart + 10 * kNsPerMs);
  for (uint32_t i = 0; i < 10; ++i) {
    at((10 + i) * kNsPerMs - 1);
    EXPECT_TRUE(sent().empty());
    EXPECT_TRUE(received().empty());
    at((10 + i) * kNsPerMs);
    const auto out = sent();
    const auto in = received();
    ASSERT_EQ(out.size(), 1U);
    ASSERT_EQ(in.size(), 1U);
    EXPECT_EQ(number_of(out[0]), i);
    EXPECT_EQ(number_of(in[0]), i);
  }
  EXPECT_EQ(count("tx.delayed"), 10U);
}

TEST_F(Impair, rate_spaces_packets_by_their_size) {
  open("rate=8M,seed=1");  // a byte a microsecond
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(send(make(numbered(i, 1000 - 58))), 1U);
  for (uint32_t i = 0; i < 10; ++i) {
    at((i + 1) * kNsPerMs - 1);
    EXPECT_TRUE(sent().empty()) << i;
    EXPECT_EQ(device->next_due_ns(), kStart + (i + 1) * kNsPerMs);
    at((i + 1) * kNsPerMs);
    EXPECT_EQ(sent().size(), 1U) << i;
  }
}

TEST_F(Impair, a_slow_wire_drops_what_its_queue_cannot_hold) {
  open("rate=80M,seed=1");  // 50 ms: 500,000 bytes
  for (uint32_t i = 0; i < 600; ++i) EXPECT_EQ(send(make(numbered(i, 1000 - 58))), 1U);
  EXPECT_EQ(count("tx.dropped_queue_full"), 100U);
  at(ImpairLane::kQueueNs);
  const auto out = sent();
  EXPECT_EQ(out.size(), 500U);
  EXPECT_EQ(number_of(out.back()), 499U);  // drop-tail
}

TEST_F(Impair, a_very_slow_wire_still_holds_a_window) {
  open("rate=64K,seed=1");
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(send(make(numbered(i, 1514 - 58))), 1U);
  EXPECT_EQ(count("tx.dropped_queue_full"), 8U);
}

TEST_F(Impair, the_line_is_bounded_and_what_is_on_it_goes_with_the_device) {
  open("delay=1s,seed=1");
  constexpr uint64_t kOver = 100;
  for (uint32_t i = 0; i < ImpairLane::kLineMax + kOver; ++i) {
    EXPECT_EQ(send(make(numbered(i))), 1U);
    script->inject(numbered(i));
  }
  EXPECT_TRUE(received().empty());
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(received().empty());
  EXPECT_EQ(count("tx.dropped_queue_full"), kOver);
  EXPECT_EQ(count("rx.dropped_queue_full"), kOver);
  device.reset();
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(Impair, without_packets_for_copies_traffic_goes_on_undamaged) {
  open("duplicate=100%,corrupt=100%,seed=1");
  PacketPtr packet = make(numbered(1));
  std::vector<PacketPtr> held;
  while (PacketPtr other = end.packets.make()) held.push_back(std::move(other));
  EXPECT_EQ(send(std::move(packet)), 1U);
  EXPECT_EQ(count("tx.no_packets"), 2U);
  const auto out = sent();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0], numbered(1));
}

// ---- the device inside ------------------------------------------------------------------------

TEST_F(Impair, an_inner_device_without_room_holds_the_caller_back) {
  open("seed=1");
  script->set_room(0);
  PacketBurst out;
  uint32_t next = 0;
  size_t taken = 0;
  for (int i = 0; i < 10; ++i) {
    while (!out.full()) out.push(make(numbered(next++)));
    taken += device->transmit(0, out);
  }
  EXPECT_LE(taken, kBurstMax);
  EXPECT_EQ(device->transmit_room(0), 0U);
  EXPECT_TRUE(device->arm(0));  // the inner device will say when; time has nothing to do with it
  script->set_room(100'000);
  EXPECT_GT(device->transmit_room(0), 0U);
  EXPECT_GT(device->transmit(0, out), 0U);
  const auto frames = sent();
  ASSERT_EQ(frames.size(), next);
  for (uint32_t i = 0; i < next; ++i) EXPECT_EQ(number_of(frames[i]), i);
  EXPECT_EQ(count("tx.dropped_queue_full"), 0U);
}

TEST_F(Impair, what_is_due_forbids_sleep) {
  open("delay=5ms,seed=1");
  EXPECT_TRUE(device->arm(0));
  script->inject(numbered(1));
  EXPECT_FALSE(device->arm(0));  // the inner device has it
  EXPECT_TRUE(received().empty());
  EXPECT_TRUE(device->arm(0));
  at(5 * kNsPerMs);
  EXPECT_FALSE(device->arm(0));
  device->set_receive_wanted(false);
  EXPECT_TRUE(device->arm(0));
  EXPECT_TRUE(received().empty());
  device->set_receive_wanted(true);
  EXPECT_EQ(received().size(), 1U);
  EXPECT_TRUE(device->arm(0));
}

TEST_F(Impair, passes_the_inner_device_through) {
  open("seed=1");
  EXPECT_EQ(device->mtu(), script->mtu());
  EXPECT_EQ(device->mac(), script->mac());
  EXPECT_EQ(device->leaf(), script);
  EXPECT_STREQ(device->name(), "script");
  EXPECT_LT(device->wait_handle(0).fd, 0);  // must be polled, as the inner one
  script->set_broken(true);
  EXPECT_TRUE(device->is_broken());
  script->set_link_up(false);
  EXPECT_FALSE(device->link_up());
}

bool becomes_ready(int fd, int timeout_ms) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, timeout_ms) == 1;
}

TEST(ImpairWake, the_handle_wakes_for_the_inner_device_and_for_the_time) {
  ManualClock clock;
  StackEnd left(clock, 1), right(clock, 2);
  Pipe pipe;
  PipeDevice peer(pipe, 1, right.context);
  auto device = ImpairedDevice::open(std::make_unique<PipeDevice>(pipe, 0, left.context),
                                     {.delay_ns = 1000}, left.context, left.counters)
                    .value();
  const int fd = device->wait_handle(0).fd;
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(device->arm(0));
  EXPECT_FALSE(becomes_ready(fd, 0));
  PacketBurst burst;
  burst.push(make_received(right.context, {.bytes = numbered(1)}));
  EXPECT_EQ(peer.transmit(0, burst), 1U);
  EXPECT_TRUE(becomes_ready(fd, 0));  // the inner device
  device->acknowledge(0);
  device->disarm(0);
  EXPECT_EQ(device->receive(0, burst), 0U);  // on the wire
  EXPECT_TRUE(device->arm(0));
  EXPECT_TRUE(becomes_ready(fd, 5000));  // a microsecond later
  device->acknowledge(0);
  EXPECT_FALSE(becomes_ready(fd, 0));
  clock.advance(1000);
  left.begin_round();
  EXPECT_EQ(device->receive(0, burst), 1U);
  EXPECT_TRUE(device->arm(0));
  EXPECT_FALSE(becomes_ready(fd, 0));
  burst.clear();
}

// Two stacks with threads of their own: every byte comes out as it went in, over a wire that does
// everything at once.
TEST(ImpairStacks, a_stream_survives_all_of_it) {
  const auto impairments =
      parse_impairments("loss=1%,reorder=2%,duplicate=1%,corrupt=1%,delay=500us,rate=400M,seed=7");
  ASSERT_TRUE(impairments);
  Pipe pipe;
  CounterRegistry counters;
  const auto open = [&](int end) {
    StackOptions options;
    options.private_bytes = 32 << 20;
    options.connections_max = 64;
    options.address = {IpAddress::v4(10, 0, 0, static_cast<uint8_t>(end + 1)), 24};
    return StackSetUp::open_on(
        options,
        [&, end](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
          auto inner = std::make_unique<PipeDevice>(pipe, end, *contexts[0]);
          if (end == 1) return inner;
          auto device =
              ImpairedDevice::open(std::move(inner), *impairments, *contexts[0], counters);
          if (!device) return std::unexpected(device.error());
          return std::move(*device);
        });
  };
  auto left = open(0);
  auto right = open(1);
  ASSERT_TRUE(left && right);
  using namespace std::chrono_literals;
  const Endpoint there{kTo, 80};
  auto listener = (*right)->tcp_listen(there);
  ASSERT_TRUE(listener.has_value());
  auto client = (*left)->tcp_connect(there, 20s);
  ASSERT_TRUE(client.has_value());
  auto server = listener->accept(20s);
  ASSERT_TRUE(server.has_value());
  constexpr size_t kBytes = 2 << 20;
  const ByteVector data = pattern(kBytes, 3);
  std::thread sender([&] {
    EXPECT_EQ(client->send(data), kBytes);
    EXPECT_TRUE(client->shutdown(Shutdown::send).has_value());
  });
  ByteVector got(kBytes + 1);
  size_t size = 0;
  for (;;) {
    const auto part = server->recv(MutableBytes(got).subspan(size));
    EXPECT_TRUE(part.has_value());
    if (!part || *part == 0) break;
    size += *part;
  }
  sender.join();
  got.resize(size);
  EXPECT_TRUE(got == data);
  for (const char* what : {"lost", "reordered", "duplicated", "corrupted", "delayed"}) {
    EXPECT_GT(counters.value(std::string("impair.tx.") + what), 0U) << what;
  }
  client->close();
  server->close();
  listener->close();
  left->reset();
  right->reset();
}

}  // namespace
}  // namespace nobounce::test
