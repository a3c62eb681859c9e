// The small parts alone: sequence numbers, RTT estimator, congestion window, reassembly, limits.
#include <gtest/gtest.h>

#include <map>

#include "support/wire_link.hpp"
#include "tcp/congestion.hpp"
#include "tcp/limits.hpp"
#include "tcp/reassembly.hpp"
#include "tcp/rtt.hpp"
#include "tcp/seqnum.hpp"

namespace nobounce::test {
namespace {

using tcp::Congestion;
using tcp::Reassembly;
using tcp::RttEstimator;
using tcp::Seq;

TEST(SeqNum, T6_compares_by_distance_across_the_wrap) {
  const Seq before(0xfffffff0);
  const Seq after = before + 0x20;
  EXPECT_EQ(after.value(), 0x10U);
  EXPECT_TRUE(before < after);
  EXPECT_TRUE(after > before);
  EXPECT_EQ(after - before, 0x20);
  EXPECT_EQ(before - after, -0x20);
  EXPECT_EQ(max(before, after), after);
  EXPECT_EQ(min(before, after), before);
  EXPECT_EQ(tcp::bytes_between(before, after), 0x20U);
  EXPECT_EQ(tcp::bytes_between(after, before), 0U);
  EXPECT_TRUE(Seq(5) <= Seq(5));
}

TEST(Rtt, T34_rfc6298_numbers) {
  RttEstimator rtt(200 * kNsPerMs, 120 * kNsPerSecond);
  EXPECT_EQ(rtt.rto_ns(), kNsPerSecond);
  rtt.sample(100 * kNsPerMs);
  EXPECT_EQ(rtt.smoothed_ns(), 100 * kNsPerMs);
  EXPECT_EQ(rtt.variation_ns(), 50 * kNsPerMs);
  EXPECT_EQ(rtt.rto_ns(), 300 * kNsPerMs);
  rtt.sample(200 * kNsPerMs);  // var 3/4*50 + 1/4*100 = 62.5, srtt 112.5
  EXPECT_EQ(rtt.smoothed_ns(), 112'500'000U);
  EXPECT_EQ(rtt.variation_ns(), 62'500'000U);
  EXPECT_EQ(rtt.rto_ns(), 362'500'000U);
  rtt.back_off();
  EXPECT_EQ(rtt.rto_ns(), 725'000'000U);
  for (int i = 0; i < 100; ++i) rtt.back_off();
  EXPECT_EQ(rtt.rto_ns(), 120 * kNsPerSecond);
  rtt.progress();
  EXPECT_EQ(rtt.rto_ns(), 362'500'000U);
  rtt.sample(100'000 * kNsPerSecond);  // absurd: dropped (T-35)
  EXPECT_EQ(rtt.rto_ns(), 362'500'000U);
  for (int i = 0; i < 200; ++i) rtt.sample(kNsPerUs);
  EXPECT_EQ(rtt.rto_ns(), 200 * kNsPerMs);  // the minimum
}

TEST(Congestion, T44_initial_window_by_mss) {
  EXPECT_EQ(Congestion::initial_window(1460), 14600U);
  EXPECT_EQ(Congestion::initial_window(536), 5360U);
  EXPECT_EQ(Congestion::initial_window(8960), 17920U);
  EXPECT_EQ(Congestion::initial_window(65000), 130'000U);
}

TEST(Congestion, T44_slow_start_avoidance_and_timeout) {
  Congestion c;
  c.start(1000);
  EXPECT_EQ(c.window(), 10'000U);
  c.acknowledged(1000, Congestion::Use::limited_by_window);
  EXPECT_EQ(c.window(), 11'000U);
  c.acknowledged(50'000, Congestion::Use::limited_by_window);  // at most 2 MSS an ACK
  EXPECT_EQ(c.window(), 13'000U);
  c.acknowledged(1000, Congestion::Use::limited_by_sender);
  EXPECT_EQ(c.window(), 13'000U);
  c.timed_out(13'000, Congestion::Timeout::first);
  EXPECT_EQ(c.window(), 1000U);
  EXPECT_EQ(c.threshold(), 6500U);
  c.timed_out(1000, Congestion::Timeout::repeated);
  EXPECT_EQ(c.threshold(), 6500U);
  while (c.window() < c.threshold()) c.acknowledged(1000, Congestion::Use::limited_by_window);
  const uint32_t at = c.window();
  for (uint32_t acked = 0; acked < at; acked += 1000) {
    c.acknowledged(1000, Congestion::Use::limited_by_window);
  }
  EXPECT_EQ(c.window(), at + 1000);  // one MSS a round trip
}

TEST(Congestion, T43_recovery) {
  Congestion c;
  c.start(1000);
  c.enter_recovery(10'000);
  EXPECT_EQ(c.threshold(), 5000U);
  EXPECT_EQ(c.window(), 8000U);
  c.duplicate_in_recovery();
  EXPECT_EQ(c.window(), 9000U);
  c.partial_in_recovery(3000);
  EXPECT_EQ(c.window(), 7000U);
  c.partial_in_recovery(100'000);
  EXPECT_GE(c.window(), 1000U);
  c.leave_recovery(0);
  EXPECT_EQ(c.window(), 2000U);
  c.enter_recovery(0);
  EXPECT_EQ(c.threshold(), 2000U);  // never below two segments
}

TEST(Congestion, never_overflows) {
  Congestion c;
  c.start(65000);
  for (int i = 0; i < 100'000; ++i) c.acknowledged(1u << 30, Congestion::Use::limited_by_window);
  EXPECT_LE(c.window(), Congestion::kWindowMax);
  for (int i = 0; i < 100'000; ++i) c.duplicate_in_recovery();
  EXPECT_LE(c.window(), Congestion::kWindowMax);
}

TEST(Limits, bucket_and_budget) {
  tcp::TokenBucket bucket(10);
  uint64_t now = 5 * kNsPerSecond;
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += bucket.take(now) ? 1 : 0;
  EXPECT_EQ(taken, 10);
  now += 300 * kNsPerMs;
  taken = 0;
  for (int i = 0; i < 100; ++i) taken += bucket.take(now) ? 1 : 0;
  EXPECT_EQ(taken, 3);

  SeededRandom random(1);
  tcp::ChallengeBudget budget;
  std::map<int, int> sizes;  // T-21: not the same twice
  for (int second = 0; second < 20; ++second) {
    int size = 0;
    while (budget.take(now, random)) ++size;
    EXPECT_GE(size, 500);
    EXPECT_LT(size, 1000);
    ++sizes[size];
    now += kNsPerSecond;
  }
  EXPECT_GT(sizes.size(), 10U);
}

// ---- reassembly against a model ---------------------------------------------------------------

struct ReassemblyTest : testing::Test {
  PacketPtr packet(uint8_t fill, uint32_t bytes) {
    PacketPtr p = end.packets.make();
    const Frag frag = end.make_frag(ByteVector(bytes, std::byte{fill}));
    EXPECT_TRUE(p->add_frag(*frag.page, frag.offset, frag.size));
    return p;
  }
  ManualClock clock;
  StackEnd end{clock};
};

TEST_F(ReassemblyTest, T24_first_copy_wins_against_a_model) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Reassembly reassembly;
    const Seq base(0xffffffff - 2000);  // wraps
    std::map<uint32_t, uint8_t> model;
    for (int i = 0; i < 60; ++i) {
      const uint32_t from = random.below(4000);
      const uint32_t size = 1 + random.below(600);
      const auto fill = static_cast<uint8_t>(i + 1);
      const auto result =
          reassembly.insert(packet(fill, size), base + from, {.packets = 1000, .frags = 4000});
      bool any = false;
      for (uint32_t k = from; k < from + size; ++k) any |= model.emplace(k, fill).second;
      EXPECT_EQ(result, any ? Reassembly::Result::queued : Reassembly::Result::duplicate);
    }
    EXPECT_EQ(reassembly.bytes(), model.size());
    // Take it out from every beginning.
    uint32_t at = 0;
    while (at < 5000) {
      PacketPtr p = reassembly.take(base + at);
      if (p == nullptr) {
        EXPECT_EQ(model.count(at), 0U) << at;
        ++at;
        continue;
      }
      ByteVector bytes(p->size());
      p->read(0, bytes);
      for (const std::byte byte : bytes) {
        ASSERT_EQ(model.count(at), 1U);
        EXPECT_EQ(std::to_integer<uint8_t>(byte), model[at]);
        ++at;
      }
    }
    EXPECT_TRUE(reassembly.empty());
    reassembly.clear();
  }
}

TEST_F(ReassemblyTest, T24_bounds) {
  Reassembly reassembly;
  for (uint32_t i = 0; i < 10; ++i) {
    const auto result =
        reassembly.insert(packet(1, 1), Seq(10 + 2 * i), {.packets = 5, .frags = 20});
    EXPECT_EQ(result, i < 5 ? Reassembly::Result::queued : Reassembly::Result::full);
  }
  EXPECT_EQ(reassembly.packets(), 5U);
  reassembly.clear();
  for (uint32_t i = 0; i < 10; ++i) {
    const auto result = reassembly.insert(packet(1, 1), Seq(10 + i), {.packets = 5, .frags = 4});
    EXPECT_EQ(result, i < 4 ? Reassembly::Result::queued : Reassembly::Result::full);
  }
  reassembly.clear();
}

TEST_F(ReassemblyTest, T56_the_first_fin_is_kept) {
  Reassembly reassembly;
  reassembly.remember_fin(Seq(100));
  reassembly.remember_fin(Seq(50));
  EXPECT_FALSE(reassembly.fin_at(Seq(50)));
  EXPECT_TRUE(reassembly.fin_at(Seq(100)));
}

TEST_F(ReassemblyTest, T39_blocks_merge_and_forget_what_was_taken) {
  Reassembly reassembly;
  const Reassembly::Limits limits{.packets = 100, .frags = 400};
  for (const uint32_t at : {100u, 300u, 500u, 700u, 900u}) {
    (void)reassembly.insert(packet(1, 50), Seq(at), limits);
  }
  std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax> blocks{};
  ASSERT_EQ(reassembly.blocks(blocks, Seq(1), 4), 4U);
  EXPECT_EQ(blocks[0].left, 900U);
  EXPECT_EQ(blocks[3].left, 300U);
  (void)reassembly.insert(packet(1, 150), Seq(550), limits);  // joins 500 and 700
  ASSERT_EQ(reassembly.blocks(blocks, Seq(1), 3), 3U);
  EXPECT_EQ(blocks[0].left, 500U);
  EXPECT_EQ(blocks[0].right, 750U);
  EXPECT_EQ(blocks[1].left, 900U);
  ASSERT_EQ(reassembly.blocks(blocks, Seq(800), 4), 1U);
  reassembly.clear();
}

}  // namespace
}  // namespace nobounce::test
