#include "swiotlb/pool_layout.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "base/random.hpp"

namespace nobounce {
namespace {

constexpr uint64_t kSet = kMappingMax;

PoolLayout plan(uint64_t iova, uint64_t bytes, unsigned areas) {
  const auto layout = plan_pool(DmaAddr{iova}, bytes, areas);
  EXPECT_TRUE(layout) << layout.error().to_string();
  return *layout;
}

TEST(PoolLayout, SW2_area_count_is_rounded_up_to_a_power_of_two) {
  EXPECT_EQ(plan(0, 64 << 20, 1).areas, 1U);
  EXPECT_EQ(plan(0, 64 << 20, 3).areas, 4U);
  EXPECT_EQ(plan(0, 64 << 20, 8).areas, 8U);
  EXPECT_TRUE(std::has_single_bit(plan(0, 64 << 20, 0).areas));
}

TEST(PoolLayout, SW3_an_area_has_at_least_one_set) {
  EXPECT_EQ(plan(0, 4 * kSet, 64).areas, 4U);
  EXPECT_EQ(plan(0, kSet, 64).areas, 1U);
  EXPECT_EQ(plan(0, kPageSize, 64).areas, 1U);
}

// Every slot in one existing area, areas of equal size, whatever was asked for.
TEST(PoolLayout, SW5_invariant_of_every_pool) {
  SeededRandom random(31);
  for (unsigned round = 0; round < 20000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 31 round " << round);
    const uint64_t iova = uint64_t{random.below(1 << 20)} * kPageSize;
    const uint64_t bytes = uint64_t{1 + random.below(1 << (1 + random.below(16)))} * kPageSize;
    const PoolLayout layout = plan(iova, bytes, random.below(200));
    ASSERT_GE(layout.areas, 1U);
    ASSERT_TRUE(std::has_single_bit(layout.areas));
    if (layout.areas > 1) {
      ASSERT_EQ(layout.first_slot, 0U);
      ASSERT_EQ(layout.slots() % layout.areas, 0U);
      ASSERT_EQ(layout.slots() / layout.areas % kSlotSet, 0U);
    }
    ASSERT_LE(layout.skipped_bytes + uint64_t{layout.slots()} * kSlotSize, bytes);
    ASSERT_GE(uint64_t{layout.slots()} * 16, (bytes >> kSlotShift) * 15);
    ASSERT_LT(layout.area_of(layout.end_slot - 1), layout.areas);
    // Sets lie on the device's 256 KiB: slot 0 does.
    ASSERT_EQ((iova + layout.skipped_bytes - uint64_t{layout.first_slot} * kSlotSize) % kSet, 0U);
  }
}

TEST(PoolLayout, SW11_pools_beyond_4_GiB) {
  const uint64_t bytes = uint64_t{6} << 30;
  const PoolLayout layout = plan(uint64_t{1} << 40, bytes, 2);
  EXPECT_EQ(uint64_t{layout.slots()} * kSlotSize, bytes);
  EXPECT_FALSE(plan_pool(DmaAddr{0}, uint64_t{16} << 40, 1));
}

TEST(PoolLayout, SW59_a_tail_shorter_than_a_set_is_used) {
  const PoolLayout layout = plan(0, kSet + 3 * kPageSize, 1);
  EXPECT_EQ(layout.slots(), 128U + 6U);
}

TEST(PoolLayout, refuses_what_is_no_pool) {
  EXPECT_FALSE(plan_pool(DmaAddr{0}, 0, 1));
  EXPECT_FALSE(plan_pool(DmaAddr{1}, kSet, 1));
  EXPECT_FALSE(plan_pool(DmaAddr{0}, kSet + 1, 1));
  EXPECT_FALSE(plan_pool(DmaAddr{~uint64_t{0} & ~(kPageSize - 1)}, 2 * kPageSize, 1));
}

}  // namespace
}  // namespace nobounce
