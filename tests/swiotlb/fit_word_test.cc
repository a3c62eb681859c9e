#include "swiotlb/fit_word.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace nobounce {
namespace {

bool bit(SetBits bits, unsigned slot) { return ((bits >> slot) & 1) != 0; }

unsigned run_from(SetBits free, unsigned start) {
  unsigned length = 0;
  while (start + length < kSetSlots && bit(free, start + length)) ++length;
  return length;
}

// Lane by lane, slot by slot: what the fit word must say.
unsigned lane_by_scan(SetBits free, unsigned lane) {
  unsigned longest = 0;
  for (unsigned start = 0; start < kSetSlots; ++start) {
    const bool permitted = lane == FitWord::kOddLane ? start % 2 == 1 : start % (1U << lane) == 0;
    if (permitted) longest = std::max(longest, run_from(free, start));
  }
  return longest;
}

// Holes of random size, so that long and short runs both occur.
SetBits random_set(SeededRandom& random) {
  SetBits free = random.below(2) == 0 ? kSetAllFree : 0;
  const unsigned edits = random.below(40);
  for (unsigned i = 0; i < edits; ++i) {
    const unsigned start = random.below(kSetSlots);
    const unsigned count = 1 + random.below(std::min(kSetSlots - start, 1 + random.below(40)));
    const SetBits run = set_run(start, count);
    free = random.below(2) == 0 ? free | run : free & ~run;
  }
  return free;
}

TEST(SetBitsOps, ends_of_the_word) {
  EXPECT_EQ(set_run(0, 128), kSetAllFree);
  EXPECT_EQ(set_run(127, 1), SetBits{1} << 127);
  EXPECT_EQ(set_trailing_zeros(SetBits{1} << 64), 64U);
  EXPECT_EQ(set_leading_zeros(1), 127U);
  const SlotRun all = first_free_run(kSetAllFree);
  EXPECT_EQ(all.begin, 0U);
  EXPECT_EQ(all.end, 128U);
  const SlotRun top = free_run_around(set_run(100, 28), 127);
  EXPECT_EQ(top.begin, 100U);
  EXPECT_EQ(top.end, 128U);
}

TEST(SetBitsOps, run_around_equals_a_scan) {
  SeededRandom random(11);
  for (unsigned round = 0; round < 2000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 11 round " << round);
    const SetBits free = random_set(random);
    const unsigned slot = random.below(kSetSlots);
    if (!bit(free, slot)) continue;
    unsigned begin = slot;
    while (begin > 0 && bit(free, begin - 1)) --begin;
    const SlotRun run = free_run_around(free, slot);
    ASSERT_EQ(run.begin, begin);
    ASSERT_EQ(run.end, begin + run_from(free, begin));
  }
}

TEST(FitWord, every_lane_equals_a_scan) {
  SeededRandom random(12);
  for (unsigned round = 0; round < 3000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 12 round " << round);
    const SetBits free = random_set(random);
    const FitWord fit = fit_of(free);
    for (unsigned lane = 0; lane < 8; ++lane) ASSERT_EQ(fit.lane(lane), lane_by_scan(free, lane));
  }
}

TEST(FitWord, empty_and_full) {
  EXPECT_EQ(fit_of(0).raw(), 0U);
  const FitWord full = fit_of(kSetAllFree);
  for (unsigned lane = 0; lane < FitWord::kAlignLanes; ++lane) EXPECT_EQ(full.lane(lane), 128U);
  EXPECT_EQ(full.lane(FitWord::kOddLane), 127U);
}

// A word that "exceeds" a run does not change when slots of that run are taken.
TEST(FitWord, exceeds_means_the_run_is_no_witness) {
  SeededRandom random(13);
  unsigned exceeded = 0;
  for (unsigned round = 0; round < 5000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 13 round " << round);
    const SetBits free = random_set(random);
    const unsigned slot = random.below(kSetSlots);
    if (!bit(free, slot)) continue;
    const SlotRun run = free_run_around(free, slot);
    if (!fit_of(free).exceeds(FitWord::of_run(run))) continue;
    ++exceeded;
    const unsigned count = 1 + random.below(run.end - slot);
    ASSERT_EQ(fit_of(free & ~set_run(slot, count)).raw(), fit_of(free).raw());
  }
  EXPECT_GT(exceeded, 100U);
}

}  // namespace
}  // namespace nobounce
