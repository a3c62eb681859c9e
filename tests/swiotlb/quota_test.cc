#include "swiotlb/quota.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

constexpr uint64_t kSlots = 1000;

TEST(Quota, NC1_accepts_0_to_90_and_together_90) {
  EXPECT_TRUE(Quota::check({.tx_percent = 0, .rx_percent = 0}));
  EXPECT_TRUE(Quota::check({.tx_percent = 90, .rx_percent = 0}));
  EXPECT_TRUE(Quota::check({.tx_percent = 0, .rx_percent = 90}));
  EXPECT_TRUE(Quota::check({.tx_percent = 45, .rx_percent = 45}));
  for (const NocopyQuotas bad :
       {NocopyQuotas{.tx_percent = 91, .rx_percent = 0},
        NocopyQuotas{.tx_percent = 0, .rx_percent = 91},
        NocopyQuotas{.tx_percent = 46, .rx_percent = 45},
        NocopyQuotas{.tx_percent = ~0U, .rx_percent = 1},
        NocopyQuotas{.tx_percent = 1, .rx_percent = 1, .tx_reserve_percent = 91}}) {
    const auto checked = Quota::check(bad);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, std::errc::invalid_argument);
    EXPECT_FALSE(checked.error().hint.empty());
  }
}

TEST(Quota, NC3_default_is_45_and_45) {
  const NocopyQuotas quotas;
  EXPECT_EQ(quotas.tx_percent, 45U);
  EXPECT_EQ(quotas.rx_percent, 45U);
}

TEST(Quota, NC4_budget_is_the_floor_and_is_met_exactly) {
  Quota quota(999, {.tx_percent = 33, .rx_percent = 10});
  EXPECT_EQ(quota.budget(BlockUse::transmit), 329U);  // 329.67
  for (unsigned i = 0; i < 329; ++i) {
    ASSERT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::none);
  }
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::budget);
  quota.give_back(BlockUse::transmit, 329);
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 330), Refusal::budget);
  EXPECT_EQ(quota.lent(BlockUse::transmit), 0U) << "a refusal leaves no trace";
}

TEST(Quota, NC1_zero_is_off) {
  Quota quota(kSlots, {.tx_percent = 0, .rx_percent = 50});
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::off);
  EXPECT_EQ(quota.reserve(BlockUse::receive, 1), Refusal::none);
  quota.give_back(BlockUse::receive, 1);
}

TEST(Quota, NC6_lowering_revokes_nothing_raising_takes_effect_at_once) {
  Quota quota(kSlots, {.tx_percent = 50, .rx_percent = 40});
  ASSERT_EQ(quota.reserve(BlockUse::transmit, 400), Refusal::none);
  quota.set({.tx_percent = 10, .rx_percent = 40});
  EXPECT_EQ(quota.lent(BlockUse::transmit), 400U);
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::budget);
  quota.give_back(BlockUse::transmit, 350);
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 50), Refusal::none);
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::budget);
  quota.set({.tx_percent = 50, .rx_percent = 40});
  EXPECT_EQ(quota.reserve(BlockUse::transmit, 1), Refusal::none);
  quota.give_back(BlockUse::transmit, 101);
  EXPECT_EQ(quota.lent(BlockUse::transmit), 0U);
}

TEST(Quota, NC9_SW81_receive_in_all_stays_out_of_the_reserve) {
  Quota quota(kSlots, {.tx_percent = 0, .rx_percent = 90, .tx_reserve_percent = 10});
  EXPECT_EQ(quota.receive_limit(), 800U);
  ASSERT_TRUE(quota.reserve_receive_bounce(500));
  EXPECT_EQ(quota.reserve(BlockUse::receive, 301), Refusal::share);
  ASSERT_EQ(quota.reserve(BlockUse::receive, 300), Refusal::none);
  EXPECT_FALSE(quota.reserve_receive_bounce(1));
  EXPECT_EQ(quota.reserve(BlockUse::receive, 1), Refusal::share);
  quota.give_back(BlockUse::receive, 100);
  EXPECT_TRUE(quota.reserve_receive_bounce(100));
  EXPECT_EQ(quota.receive_bounces(), 600U);
  quota.give_back_receive_bounce(600);
  quota.give_back(BlockUse::receive, 200);
  EXPECT_EQ(quota.receive_bounces(), 0U);
  EXPECT_EQ(quota.lent(BlockUse::receive), 0U);
}

TEST(Quota, a_reserve_of_everything_leaves_receive_nothing) {
  Quota quota(kSlots, {.tx_percent = 0, .rx_percent = 90, .tx_reserve_percent = 90});
  EXPECT_EQ(quota.receive_limit(), 0U);
  EXPECT_FALSE(quota.reserve_receive_bounce(1));
  EXPECT_EQ(quota.reserve(BlockUse::receive, 1), Refusal::share);
}

TEST(Quota, NC63_over_budget_means_evict) {
  Quota quota(kSlots, {.tx_percent = 45, .rx_percent = 45});
  ASSERT_EQ(quota.reserve(BlockUse::receive, 450), Refusal::none);
  EXPECT_FALSE(quota.receive_should_evict()) << "a full budget is no pressure";
  quota.set({.tx_percent = 45, .rx_percent = 20});
  EXPECT_TRUE(quota.receive_should_evict());
  quota.give_back(BlockUse::receive, 250);
  EXPECT_FALSE(quota.receive_should_evict());
  quota.set({.tx_percent = 45, .rx_percent = 0});
  EXPECT_TRUE(quota.receive_should_evict());
  quota.give_back(BlockUse::receive, 200);
  EXPECT_FALSE(quota.receive_should_evict());
}

TEST(Quota, NC63_a_transmit_that_found_no_room_is_a_wish_that_ends) {
  Quota quota(kSlots, {.tx_percent = 45, .rx_percent = 45});
  ASSERT_EQ(quota.reserve(BlockUse::receive, 200), Refusal::none);
  quota.note_transmit_short(16);
  EXPECT_TRUE(quota.receive_should_evict());
  quota.give_back(BlockUse::receive, 16);
  EXPECT_TRUE(quota.receive_should_evict()) << "one block does not end it: hysteresis";
  for (unsigned i = 0; i < 7; ++i) quota.give_back(BlockUse::receive, 16);
  EXPECT_FALSE(quota.receive_should_evict());
  quota.note_transmit_short(16);
  for (unsigned i = 0; i < 8; ++i) quota.note_transmit_served(16);
  EXPECT_FALSE(quota.receive_should_evict()) << "transmit is served again";
  quota.give_back(BlockUse::receive, 72);
}

// Concurrent reservations while the percentages change: never above the largest budget in force,
// never below zero, nothing left at the end.
TEST(Quota, NC4_NC6_concurrent) {
  Quota quota(kSlots, {.tx_percent = 45, .rx_percent = 45});
  std::atomic<bool> above{false};
  std::atomic<unsigned> running{3};
  const auto work = [&](uint64_t seed) {
    SeededRandom random(seed);
    uint32_t tx = 0;
    uint32_t rx = 0;
    uint32_t bounces = 0;
    for (unsigned step = 0; step < 20000; ++step) {
      const uint32_t slots = 1 + random.below(30);
      switch (random.below(3)) {
        case 0:
          if (quota.reserve(BlockUse::transmit, slots) == Refusal::none) tx += slots;
          break;
        case 1:
          if (quota.reserve(BlockUse::receive, slots) == Refusal::none) rx += slots;
          break;
        default:
          if (quota.reserve_receive_bounce(slots)) bounces += slots;
      }
      if (quota.lent(BlockUse::transmit) > 450 || quota.lent(BlockUse::receive) > 450) above = true;
      if (quota.lent(BlockUse::receive) > kSlots || quota.receive_bounces() > 800) above = true;
      if (random.below(4) == 0) {
        quota.give_back(BlockUse::transmit, tx);
        quota.give_back(BlockUse::receive, rx);
        quota.give_back_receive_bounce(bounces);
        tx = rx = bounces = 0;
      }
    }
    quota.give_back(BlockUse::transmit, tx);
    quota.give_back(BlockUse::receive, rx);
    quota.give_back_receive_bounce(bounces);
    --running;
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (unsigned percent = 0; running != 0; percent = (percent + 5) % 50) {
    quota.set({.tx_percent = std::min(percent, 45U), .rx_percent = std::min(percent, 45U)});
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(above);
  EXPECT_EQ(quota.lent(BlockUse::transmit), 0U);
  EXPECT_EQ(quota.lent(BlockUse::receive), 0U);
  EXPECT_EQ(quota.receive_bounces(), 0U);
}

}  // namespace
}  // namespace nobounce
