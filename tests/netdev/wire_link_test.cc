// The test bench itself: the wire does what its options say, the same for the same seed.
#include "support/wire_link.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "support/frames.hpp"

namespace nobounce::test {
namespace {

const IpAddress kFrom = IpAddress::v4(10, 0, 0, 1);
const IpAddress kTo = IpAddress::v4(10, 0, 0, 2);

ByteVector numbered(uint32_t n) {
  ByteVector payload = pattern(100);
  store_be<uint32_t>(payload, 0, n);
  return ethernet({.destination = {}, .source = {}, .ether_type = wire::kEtherTypeIpv4},
                  ipv4({.protocol = 17, .source = kFrom, .destination = kTo},
                       udp({kFrom, 1}, {kTo, 2}, payload)));
}

struct Outcome {
  std::vector<ByteVector> received;
  WireLink::Facts facts;
};

Outcome run(uint64_t seed, const WireOptions& options, uint32_t frames = 2000) {
  ManualClock clock;
  StackEnd left(clock, 1), right(clock, 2);
  WireLink link(clock, seed, left.context, right.context, options);
  Outcome result;
  for (uint32_t i = 0; i < frames + 100; ++i) {
    PacketBurst burst;
    if (i < frames) {
      PacketPtr packet = left.packets.make();
      const ByteVector frame = numbered(i);
      std::ranges::copy(Bytes(frame).first(42), packet->append(42).begin());
      const Frag frag = left.make_frag(Bytes(frame).subspan(42));
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
      burst.push(std::move(packet));
      EXPECT_EQ(link.left().transmit(0, burst), 1U);
    }
    clock.advance(50'000);
    link.right().receive(0, burst);
    for (PacketPtr& packet : burst) result.received.push_back(flatten(*packet));
  }
  EXPECT_EQ(link.in_flight(), 0U);
  result.facts = link.facts;
  return result;
}

TEST(WireLink, perfect_by_default) {
  const Outcome result = run(1, {}, 500);
  ASSERT_EQ(result.received.size(), 500U);
}

TEST(WireLink, same_seed_same_run_other_seed_other_run) {
  const WireOptions bad{
      .loss = 50, .reorder = 50, .duplicate = 50, .corrupt = 50, .delay_ns = 200'000};
  const Outcome a = run(7, bad), b = run(7, bad), c = run(8, bad);
  EXPECT_EQ(a.received, b.received);
  EXPECT_NE(a.received, c.received);
}

TEST(WireLink, rates_are_per_mille) {
  const Outcome lossy = run(3, {.loss = 100});
  EXPECT_EQ(lossy.facts.lost + lossy.received.size(), 2000U);
  EXPECT_NEAR(static_cast<double>(lossy.facts.lost), 200, 60);
  const Outcome twice = run(3, {.duplicate = 1000});
  EXPECT_EQ(twice.received.size(), 4000U);
  EXPECT_EQ(run(3, {.loss = 1000}).received.size(), 0U);
}

TEST(WireLink, corruption_flips_one_bit_and_a_check_finds_it) {
  const Outcome result = run(5, {.corrupt = 1000}, 500);
  ASSERT_EQ(result.received.size(), 500U);
  for (uint32_t i = 0; i < 500; ++i) {
    const ByteVector right = numbered(i);
    int flipped = 0;
    for (size_t at = 0; at < right.size(); ++at) {
      flipped += std::popcount(std::to_integer<unsigned>(right[at] ^ result.received[i][at]));
    }
    EXPECT_EQ(flipped, 1);
    EXPECT_FALSE(has_right_checksums(result.received[i]));
  }
}

TEST(WireLink, reordered_frames_are_overtaken) {
  const Outcome result = run(5, {.reorder = 100, .delay_ns = 10'000}, 1000);
  ASSERT_EQ(result.received.size(), 1000U);
  size_t overtaken = 0;
  uint32_t highest = 0;
  for (const ByteVector& frame : result.received) {
    const uint32_t n = load_be<uint32_t>(frame, 42);
    if (n < highest) ++overtaken;
    highest = std::max(highest, n);
  }
  EXPECT_GT(overtaken, 50U);
}

TEST(WireLink, delay_rate_and_depth) {
  ManualClock clock;
  StackEnd left(clock, 1), right(clock, 2);
  WireLink link(clock, 1, left.context, right.context,
                {.delay_ns = 1000, .bytes_per_second = 1'000'000, .queue_depth = 3});
  PacketBurst burst;
  for (uint32_t i = 0; i < 5; ++i) {
    PacketPtr packet = left.packets.make();
    std::ranges::fill(packet->append(100), std::byte{0});
    burst.push(std::move(packet));
  }
  EXPECT_EQ(link.left().transmit(0, burst), 3U);  // then the queue is full
  EXPECT_EQ(burst.size(), 2U);
  EXPECT_EQ(link.left().transmit_room(0), 0U);
  burst.clear();
  EXPECT_EQ(link.next_arrival_ns(), clock.now_ns() + 100'000 + 1000);
  for (int i = 0; i < 3; ++i) {
    clock.advance(i == 0 ? 100'999 : 99'999);
    EXPECT_EQ(link.right().receive(0, burst), 0U);
    clock.advance(1);
    EXPECT_EQ(link.right().receive(0, burst), 1U);
  }
  EXPECT_EQ(link.next_arrival_ns(), std::nullopt);
}

}  // namespace
}  // namespace nobounce::test
