#include "base/object_pool.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

struct Counted {
  static inline int alive = 0;
  explicit Counted(int v = 0) : value(v) { ++alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --alive; }
  alignas(64) int value;
};

TEST(ObjectPool, constructs_and_destroys_and_counts_refusals) {
  ObjectPool<Counted> pool(3);
  EXPECT_EQ(pool.capacity(), 3u);
  EXPECT_EQ(pool.room(), 3u);
  std::vector<Counted*> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool.acquire(i));
  EXPECT_EQ(Counted::alive, 3);
  EXPECT_EQ(pool.acquire(9), nullptr);
  EXPECT_EQ(pool.acquire(9), nullptr);
  EXPECT_EQ(pool.refused(), 2u);
  EXPECT_EQ(pool.room(), 0u);
  EXPECT_EQ(held[2]->value, 2);
  EXPECT_EQ(std::set<Counted*>(held.begin(), held.end()).size(), 3u);
  for (Counted* object : held) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(object) % alignof(Counted), 0u);
    pool.release(object);
  }
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_EQ(pool.high_water(), 3u);
}

TEST(ObjectPool, against_a_model) {
  SeededRandom random(3);
  ObjectPool<Counted> pool(17);
  std::vector<Counted*> held;
  size_t high_water = 0;
  uint64_t refused = 0;
  for (int step = 0; step < 5000; ++step) {
    if (random.below(2) == 0) {
      Counted* object = pool.acquire(step);
      ASSERT_EQ(object == nullptr, held.size() == 17);
      object == nullptr ? static_cast<void>(++refused) : held.push_back(object);
      high_water = std::max(high_water, held.size());
    } else if (!held.empty()) {
      const size_t index = random.below(static_cast<uint32_t>(held.size()));
      pool.release(held[index]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
    ASSERT_EQ(pool.in_use(), held.size());
    ASSERT_EQ(Counted::alive, static_cast<int>(held.size()));
  }
  EXPECT_EQ(pool.high_water(), high_water);
  EXPECT_EQ(pool.refused(), refused);
  for (Counted* object : held) pool.release(object);
}

TEST(ObjectPool, what_is_not_its_own_is_our_bug) {
  ObjectPool<Counted> pool(2);
  Counted stranger;
  EXPECT_DEATH(pool.release(nullptr), "assertion failed");
  EXPECT_DEATH(pool.release(&stranger), "assertion failed");
}

TEST(ObjectPool, objects_still_out_at_the_end_are_our_bug) {
  EXPECT_DEATH(
      {
        ObjectPool<Counted> pool(1);
        (void)pool.acquire();
      },
      "assertion failed");
}

}  // namespace
}  // namespace nobounce
