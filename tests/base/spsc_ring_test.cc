#include "base/spsc_ring.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <thread>

#include "base/barrier.hpp"
#include "base/random.hpp"

namespace nobounce {
namespace {

TEST(SpscRing, first_in_first_out_and_full_means_full) {
  SpscRing<int> ring(4);
  EXPECT_EQ(ring.capacity(), 4u);
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.front(), nullptr);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.try_push(i));
  EXPECT_EQ(ring.room(), 0u);
  EXPECT_FALSE(ring.try_push(4));
  EXPECT_FALSE(ring.try_push(4));
  EXPECT_EQ(ring.refused(), 2u);
  EXPECT_EQ(ring.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    int value = -1;
    EXPECT_TRUE(ring.try_pop(value));
    EXPECT_EQ(value, i);
  }
  int value = -1;
  EXPECT_FALSE(ring.try_pop(value));
  EXPECT_EQ(ring.room(), 4u);
}

TEST(SpscRing, a_refused_value_stays_with_the_caller) {
  SpscRing<std::unique_ptr<int>> ring(1);
  EXPECT_TRUE(ring.try_push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(ring.try_push(std::move(second)));
  ASSERT_NE(second, nullptr);  // NOLINT(bugprone-use-after-move): the contract says it is kept
  EXPECT_EQ(*second, 2);
  ASSERT_NE(ring.front(), nullptr);
  ring.pop();
  EXPECT_TRUE(ring.try_push(std::move(second)));
}

TEST(SpscRing, sizes_that_are_no_power_of_two_and_pops_of_nothing_are_our_bugs) {
  EXPECT_DEATH(SpscRing<int>(3), "assertion failed");
  EXPECT_DEATH(SpscRing<int>(0), "assertion failed");
  SpscRing<int> ring(2);
  EXPECT_DEATH(ring.pop(), "assertion failed");
}

TEST(SpscRing, against_a_model) {
  for (const uint32_t capacity : {1u, 2u, 8u}) {
    SeededRandom random(capacity);
    SpscRing<uint64_t> ring(capacity);
    std::deque<uint64_t> model;
    for (uint64_t step = 0; step < 20000; ++step) {
      if (random.below(2) == 0) {
        const bool pushed = ring.try_push(step);
        ASSERT_EQ(pushed, model.size() < capacity);
        if (pushed) model.push_back(step);
      } else {
        uint64_t value = 0;
        const bool popped = ring.try_pop(value);
        ASSERT_EQ(popped, !model.empty());
        if (popped) {
          ASSERT_EQ(value, model.front());
          model.pop_front();
        }
      }
      ASSERT_EQ(ring.size(), model.size());
      ASSERT_EQ(ring.room(), capacity - model.size());
    }
  }
}

// For the thread sanitizer: what lies behind the pointer is published by the push and given back by
// the pop.
TEST(SpscRing, two_threads_hand_over_everything_in_order) {
  constexpr uint64_t kCount = 200'000;
  SpscRing<std::unique_ptr<uint64_t>> ring(64);
  std::thread producer([&ring] {
    for (uint64_t i = 0; i < kCount; ++i) {
      auto value = std::make_unique<uint64_t>(i);
      while (!ring.try_push(std::move(value))) std::this_thread::yield();
    }
  });
  uint64_t expected = 0;
  while (expected < kCount) {
    std::unique_ptr<uint64_t> value;
    if (!ring.try_pop(value)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(*value, expected);
    ++expected;
  }
  producer.join();
  EXPECT_TRUE(ring.empty());
}

// A sleeper announces itself, fences, looks again; a waker publishes, fences, looks for sleepers:
// one of the two always sees the other (VIRTIO 1.2 2.7.7, 2.7.10). A lost wake-up hangs this test.
TEST(Barrier, full_fence_on_both_sides_loses_no_wake_up) {
  constexpr uint32_t kRounds = 20'000;
  std::atomic<uint32_t> published{0};
  std::atomic<bool> wants_wake{false};
  std::atomic<uint32_t> wakes{0};
  std::thread waker([&] {
    for (uint32_t i = 1; i <= kRounds; ++i) {
      published.store(i, std::memory_order_release);
      full_fence();
      if (wants_wake.exchange(false, std::memory_order_acq_rel)) {
        wakes.fetch_add(1, std::memory_order_release);
      }
      if ((i & 63) == 0) std::this_thread::yield();
    }
  });
  uint32_t seen = 0;
  uint32_t sleeps = 0;
  while (seen < kRounds) {
    const uint32_t now = published.load(std::memory_order_acquire);
    if (now != seen) {
      seen = now;
      continue;
    }
    const uint32_t before = wakes.load(std::memory_order_acquire);
    wants_wake.store(true, std::memory_order_release);
    full_fence();
    if (published.load(std::memory_order_acquire) != seen) {
      wants_wake.store(false, std::memory_order_release);
      continue;
    }
    ++sleeps;
    while (wakes.load(std::memory_order_acquire) == before && wants_wake.load()) {
      cpu_relax();
      std::this_thread::yield();
    }
  }
  waker.join();
  SUCCEED() << sleeps << " sleeps";
}

}  // namespace
}  // namespace nobounce
