#include "swiotlb/run_plan.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace nobounce {
namespace {

constexpr uint64_t kNoBoundary = ~uint64_t{0};

BounceRequest request(uint64_t original, size_t size, uint64_t device_mask, uint64_t alloc_mask = 0,
                      uint64_t boundary = kNoBoundary) {
  return {.original = CpuAddr{original},
          .size = size,
          .alloc_align_mask = alloc_mask,
          .limits = {.min_align_mask = device_mask, .segment_boundary = boundary}};
}

TEST(RunPlan, SW14_SW15_address_meets_both_masks) {
  SeededRandom random(41);
  const uint64_t masks[] = {0, 0x1ff, 0x7ff, 0xfff, 0x1fff, 0xffff, 0x1ffff};
  unsigned planned = 0;
  for (unsigned round = 0; round < 20000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 41 round " << round);
    const uint64_t device_mask = masks[random.below(7)];
    const uint64_t alloc_mask = masks[random.below(7)];
    const uint64_t original = random.below(1 << 30);
    const size_t size = 1 + random.below(1 << (1 + random.below(18)));
    const auto plan = plan_run(request(original, size, device_mask, alloc_mask));
    if (!plan) continue;
    ++planned;
    // The run at its least permitted slot; others differ by multiples of the alignment.
    const uint64_t start = uint64_t{plan->run.phase} * kSlotSize;
    const uint64_t address = start + plan->padding_slots * kSlotSize + plan->offset;
    ASSERT_EQ(address & device_mask, original & device_mask);
    ASSERT_EQ(start & alloc_mask, 0U);
    const uint64_t alignment = kSlotSize << plan->run.align_shift;
    ASSERT_EQ(alignment & device_mask & ~alloc_mask & (kMappingMax - 1), 0U);
    ASSERT_EQ(alignment & alloc_mask, 0U);
    ASSERT_GE(plan->run.slots * kSlotSize, address - start + size);
    ASSERT_EQ(plan->run.slots * kSlotSize % (alloc_mask + 1) % kSlotSize, 0U);
    if (alloc_mask >= kSlotSize) {
      ASSERT_EQ(plan->run.slots * kSlotSize % (alloc_mask + 1), 0U);
    }
    ASSERT_LT(plan->offset, kSlotSize);
  }
  EXPECT_GT(planned, 10000U);
}

TEST(RunPlan, SW12_more_than_a_set_is_refused) {
  EXPECT_TRUE(plan_run(request(0, kMappingMax, 0)));
  EXPECT_EQ(plan_run(request(0, kMappingMax + 1, 0)).error(), MapError::too_large);
  EXPECT_EQ(plan_run(request(1, kMappingMax, 0x1ff)).error(), MapError::too_large);
  EXPECT_EQ(plan_run(request(0, ~size_t{0}, 0)).error(), MapError::too_large);
}

TEST(RunPlan, SW16_masks_are_not_merged) {
  // Device mask 0xfff and run alignment 0xffff: the run begins at 64 KiB, the address keeps 12 bits.
  const auto plan = plan_run(request(0x1234'5a10, 100, 0xfff, 0xffff));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->run.align_shift, 5U);
  EXPECT_EQ(plan->run.phase, 0U);
  EXPECT_EQ(plan->padding_slots, 1U);
  EXPECT_EQ(plan->offset, 0x210U);
  EXPECT_EQ(plan->run.slots, 32U);
}

TEST(RunPlan, SW16_device_bits_above_a_slot_choose_the_slot) {
  const auto plan = plan_run(request(0x1234'5a10, 100, 0xfff));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->run.align_shift, 1U);
  EXPECT_EQ(plan->run.phase, 1U);
  EXPECT_EQ(plan->padding_slots, 0U);
  EXPECT_EQ(plan->offset, 0x210U);
  EXPECT_EQ(plan->run.slots, 1U);
}

TEST(RunPlan, SW17_whole_pages_without_masks_are_page_aligned) {
  EXPECT_EQ(plan_run(request(0x800, 4095, 0))->run.align_shift, 0U);
  EXPECT_EQ(plan_run(request(0x800, 4096, 0))->run.align_shift, 1U);
  EXPECT_EQ(plan_run(request(0x800, 4096, 0))->run.phase, 0U);
  // Only without masks: the device's wish comes first (field fault 2).
  EXPECT_EQ(plan_run(request(0x800, 4096, 0x1ff))->run.align_shift, 0U);
}

TEST(RunPlan, SW18_original_at_address_0_is_an_address_like_others) {
  const auto plan = plan_run(request(0, 100, 0xfff));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->run.align_shift, 1U);
  EXPECT_EQ(plan->run.phase, 0U);
}

TEST(RunPlan, SW19_boundary_of_all_ones_is_no_limit) {
  EXPECT_EQ(plan_run(request(0, kMappingMax, 0))->run.boundary, kSetSlots);
  EXPECT_EQ(plan_run(request(0, 4096, 0, 0, 0xfff))->run.boundary, 2U);
  EXPECT_EQ(plan_run(request(0, 4097, 0, 0, 0xfff)).error(), MapError::too_large);
  EXPECT_EQ(plan_run(request(0, 10, 0, 0, 0x3ff)).error(), MapError::too_large);
}

TEST(RunPlan, SW20_largest_request_for_every_original) {
  EXPECT_EQ(Swiotlb::max_mapping_size(0), 262144U);
  EXPECT_EQ(Swiotlb::max_mapping_size(0x1ff), 260096U);
  EXPECT_EQ(Swiotlb::max_mapping_size(0xfff), 258048U);
  EXPECT_EQ(Swiotlb::max_mapping_size(0xffff), 196608U);
  EXPECT_EQ(Swiotlb::max_mapping_size(0x3ffff), 0U);
  EXPECT_EQ(Swiotlb::max_mapping_size(~uint64_t{0}), 0U);
  for (const uint64_t mask : {0x0, 0x1ff, 0x7ff, 0xfff, 0xffff}) {
    for (uint64_t original = 0; original <= mask; original += 1 + mask / 4099) {
      const auto plan = plan_run(request(original, Swiotlb::max_mapping_size(mask), mask));
      ASSERT_TRUE(plan) << mask << ' ' << original;
      ASSERT_LE(plan->run.phase + plan->run.slots, kSetSlots);
    }
  }
}

TEST(RunPlan, SW21_alignment_above_a_page) {
  const auto plan = plan_run(request(0, 1, 0, 0x1ffff));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->run.slots, 64U);
  EXPECT_EQ(plan_run(request(0, 1, 0, 0xfffff)).error(), MapError::too_large);
}

TEST(RunPlan, wide_device_masks_are_refused) {
  EXPECT_EQ(plan_run(request(0, 1, ~uint64_t{0})).error(), MapError::too_large);
  EXPECT_EQ(plan_run(request(0, 1, 0x3ffff)).value().run.align_shift, 7U);
}

}  // namespace
}  // namespace nobounce
