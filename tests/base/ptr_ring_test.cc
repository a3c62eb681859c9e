// The producer-locked ring of pointers: order, bounds, counts, close, and threads.
#include "base/ptr_ring.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace nobounce {
namespace {

struct Item {
  unsigned producer = 0;
  unsigned number = 0;
  std::atomic<int> seen{0};
};

TEST(PtrRing, gives_back_in_order) {
  PtrRing<int> ring(8);
  int values[8];
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.pop(), nullptr);
  for (int& value : values) EXPECT_EQ(ring.try_push(&value), RingPush::pushed);
  EXPECT_EQ(ring.size(), 8u);
  EXPECT_EQ(ring.room(), 0u);
  for (int& value : values) EXPECT_EQ(ring.pop(), &value);
  EXPECT_TRUE(ring.empty());
}

TEST(PtrRing, holds_exactly_its_capacity) {
  for (const uint32_t capacity : {1u, 2u, 3u, 7u, 8u, 1000u, 16384u}) {
    PtrRing<int> ring(capacity);
    int value = 0;
    EXPECT_EQ(ring.capacity(), capacity);
    for (int lap = 0; lap < 3; ++lap) {  // indices run over the end of the array
      for (uint32_t i = 0; i < capacity; ++i) ASSERT_EQ(ring.try_push(&value), RingPush::pushed);
      EXPECT_EQ(ring.try_push(&value), RingPush::full);
      for (uint32_t i = 0; i < capacity; ++i) ASSERT_EQ(ring.pop(), &value);
      EXPECT_EQ(ring.pop(), nullptr);
    }
    EXPECT_EQ(ring.pushed(), 3 * capacity);
    EXPECT_EQ(ring.refused(), 3u);
    EXPECT_EQ(ring.high_water(), capacity);
  }
}

TEST(PtrRing, many_at_once_are_as_many_as_fit) {
  PtrRing<int> ring(10);
  int values[16];
  int* items[16];
  for (size_t i = 0; i < 16; ++i) items[i] = &values[i];
  EXPECT_EQ(ring.push_some(items, 0), 0u);
  EXPECT_EQ(ring.push_some(items, 6), 6u);
  EXPECT_EQ(ring.push_some(items + 6, 10), 4u);
  EXPECT_EQ(ring.refused(), 6u);
  int* out[16] = {};
  EXPECT_EQ(ring.pop_some(out, 0), 0u);
  EXPECT_EQ(ring.pop_some(out, 3), 3u);
  EXPECT_EQ(ring.pop_some(out + 3, 16), 7u);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(out[i], &values[i]);
  EXPECT_EQ(ring.pushed(), 10u);
}

TEST(PtrRing, the_high_water_mark_is_the_most_it_ever_held) {
  PtrRing<int> ring(100);
  int value = 0;
  const auto push = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_EQ(ring.try_push(&value), RingPush::pushed);
  };
  const auto pop = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_NE(ring.pop(), nullptr);
  };
  push(5);
  pop(5);
  push(3);
  EXPECT_EQ(ring.high_water(), 5u) << "what was taken does not count";
  pop(1);
  push(4);
  EXPECT_EQ(ring.high_water(), 6u);
  pop(6);
  EXPECT_EQ(ring.high_water(), 6u);
}

TEST(PtrRing, takes_nothing_once_closed_and_still_gives) {
  PtrRing<int> ring(8);
  int value = 0;
  int* items[] = {&value, &value};
  EXPECT_EQ(ring.try_push(&value), RingPush::pushed);
  ring.close();
  EXPECT_EQ(ring.try_push(&value), RingPush::closed);
  EXPECT_EQ(ring.push_some(items, 2), 0u);
  EXPECT_EQ(ring.refused(), 0u) << "closed is not full";
  EXPECT_EQ(ring.pop(), &value);
  EXPECT_EQ(ring.pop(), nullptr);
}

TEST(PtrRing, many_producers_lose_and_double_nothing) {
  constexpr unsigned kProducers = 4;
  constexpr unsigned kItems = 20000;
  PtrRing<Item> ring(128);
  std::vector<Item> items(kProducers * kItems);
  std::vector<std::thread> threads;
  for (unsigned p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (unsigned i = 0; i < kItems;) {
        Item* batch[3];
        size_t count = 0;
        for (; count < 1 + i % 3 && i + count < kItems; ++count) {
          Item& item = items[p * kItems + i + count];
          item.producer = p;
          item.number = i + static_cast<unsigned>(count);
          batch[count] = &item;
        }
        const size_t pushed = count == 1 ? (ring.try_push(batch[0]) == RingPush::pushed ? 1 : 0)
                                         : ring.push_some(batch, count);
        if (pushed == 0) std::this_thread::yield();
        i += static_cast<unsigned>(pushed);
      }
    });
  }
  std::vector<unsigned> next(kProducers, 0);
  for (unsigned taken = 0; taken < kProducers * kItems;) {
    Item* batch[64];
    const size_t count = ring.pop_some(batch, 64);
    if (count == 0) std::this_thread::yield();
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(batch[i]->seen.fetch_add(1), 0);
      EXPECT_EQ(batch[i]->number, next[batch[i]->producer]++) << "out of order";
    }
    taken += static_cast<unsigned>(count);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.pushed(), uint64_t{kProducers} * kItems);
  EXPECT_LE(ring.high_water(), 128u);
}

// What PagePool's end relies on: after close(), a drain finds everything that was ever accepted.
TEST(PtrRing, what_was_accepted_before_close_is_found_by_the_drain) {
  for (int round = 0; round < 50; ++round) {
    PtrRing<int> ring(1024);
    int value = 0;
    std::atomic<unsigned> accepted{0};
    std::vector<std::thread> threads;
    for (int p = 0; p < 2; ++p) {
      threads.emplace_back([&] {
        for (;;) {
          const RingPush result = ring.try_push(&value);
          if (result == RingPush::closed) return;
          if (result == RingPush::pushed) accepted.fetch_add(1);
          if (result == RingPush::full) std::this_thread::yield();
        }
      });
    }
    unsigned drained = 0;
    while (drained < 50) drained += ring.pop() != nullptr ? 1 : 0;
    ring.close();
    while (ring.pop() != nullptr) ++drained;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ring.pop(), nullptr);
    EXPECT_EQ(drained, accepted.load());
  }
}

TEST(PtrRingDeathTest, it_is_empty_when_it_goes) {
  EXPECT_DEATH(
      {
        PtrRing<int> ring(2);
        int value = 0;
        (void)ring.try_push(&value);
      },
      "assertion");
}

}  // namespace
}  // namespace nobounce
