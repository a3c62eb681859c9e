#include "swiotlb/slot_allocator.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

// The allocator's rules, written as a scan over one flag a slot.
class Model {
 public:
  Model(uint32_t first, uint32_t slots) : free_(slots, true) {
    for (uint32_t slot = 0; slot < first; ++slot) free_[slot] = false;
  }

  [[nodiscard]] bool fits_at(const RunRequest& request, uint32_t start) const {
    const uint32_t in_set = start % kSetSlots;
    if (start + request.slots > free_.size()) return false;
    if (in_set + request.slots > kSetSlots) return false;  // SW-19
    if (in_set % (1U << request.align_shift) != request.phase) return false;
    if (start / request.boundary != (start + request.slots - 1) / request.boundary) return false;
    for (uint32_t slot = start; slot < start + request.slots; ++slot) {
      if (!free_[slot]) return false;
    }
    return true;
  }
  [[nodiscard]] bool fits_anywhere(const RunRequest& request) const {
    for (uint32_t start = 0; start < free_.size(); ++start) {
      if (fits_at(request, start)) return true;
    }
    return false;
  }
  void set(uint32_t start, unsigned count, bool free) {
    for (uint32_t slot = start; slot < start + count; ++slot) {
      ASSERT_NE(free_[slot], free);
      free_[slot] = free;
    }
  }

 private:
  std::vector<bool> free_;
};

struct Taken {
  uint32_t start;
  unsigned slots;
};

RunRequest random_request(SeededRandom& random) {
  RunRequest request;
  const unsigned spread[] = {4, 16, 64, 128};
  request.slots = 1 + random.below(spread[random.below(4)]);
  if (random.below(2) == 0) request.align_shift = random.below(8);
  if (random.below(3) == 0) request.phase = random.below(1U << request.align_shift);
  if (random.below(4) == 0) request.boundary = 1U << random.below(8);
  request.from = random.below(2) == 0 ? SearchFrom::low : SearchFrom::high;
  return request;
}

struct Shape {
  uint32_t first;
  uint32_t slots;
  uint64_t seed;
};

class SlotAllocatorRandom : public testing::TestWithParam<Shape> {};

// Alignment, phase, boundary, set limits, no overlap, completeness, and all free at the end.
TEST_P(SlotAllocatorRandom, SW19_SW46_equals_a_full_scan) {
  const Shape shape = GetParam();
  SlotAllocator allocator(shape.first, shape.slots);
  Model model(shape.first, shape.slots);
  SeededRandom random(shape.seed);
  std::vector<Taken> live;
  unsigned refused = 0;
  for (unsigned step = 0; step < 6000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed " << shape.seed << " step " << step);
    // Waves of filling and draining, so that both ends are met.
    const bool fill = random.below(100) < ((step / 500) % 2 == 0 ? 70U : 35U);
    if (fill || live.empty()) {
      const RunRequest request = random_request(random);
      const bool possible = model.fits_anywhere(request);
      const bool may = SlotAllocator::may_fit(allocator.fit(), request);
      const auto start = allocator.alloc(request);
      ASSERT_EQ(start.has_value(), possible);
      ASSERT_TRUE(may || !possible);
      if (!start) {
        ++refused;
        continue;
      }
      ASSERT_TRUE(model.fits_at(request, *start));
      model.set(*start, request.slots, false);
      live.push_back({*start, request.slots});
    } else {
      const uint32_t victim = random.below(static_cast<uint32_t>(live.size()));
      const Taken run = live[victim];
      live[victim] = live.back();
      live.pop_back();
      model.set(run.start, run.slots, true);
      allocator.release(run.start, run.slots);
    }
    if (step % 64 == 0) {
      ASSERT_TRUE(allocator.is_consistent());
    }
  }
  EXPECT_GT(refused, 50U) << "the area was never full: the test says less than it should";
  for (const Taken& run : live) allocator.release(run.start, run.slots);
  EXPECT_TRUE(allocator.is_pristine());
}

INSTANTIATE_TEST_SUITE_P(Shapes, SlotAllocatorRandom,
                         testing::Values(Shape{0, 128, 1}, Shape{0, 512, 2}, Shape{0, 1280, 3},
                                         Shape{2, 130, 4}, Shape{126, 700, 5}, Shape{0, 2, 6},
                                         Shape{64, 100, 7}, Shape{0, 10 * 128 + 34, 8}));

TEST(SlotAllocator, SW19_run_stays_in_one_set) {
  SlotAllocator allocator(0, 256);
  ASSERT_EQ(allocator.alloc({.slots = 100}), 0U);
  ASSERT_EQ(allocator.alloc({.slots = 100}), 128U);
  // 28 + 28 slots are free and not one run of 29.
  EXPECT_FALSE(allocator.alloc({.slots = 29}));
  EXPECT_EQ(allocator.alloc({.slots = 28}), 100U);
  allocator.release(0, 128);
  allocator.release(128, 100);
  EXPECT_TRUE(allocator.is_pristine());
}

TEST(SlotAllocator, SW45_released_neighbours_merge_and_never_across_sets) {
  SlotAllocator allocator(0, 256);
  ASSERT_TRUE(allocator.alloc({.slots = 128}));
  ASSERT_TRUE(allocator.alloc({.slots = 128}));
  allocator.release(64, 64);
  allocator.release(128, 64);
  EXPECT_EQ(allocator.fit().lane(0), 64U);
  EXPECT_FALSE(allocator.alloc({.slots = 65}));
  allocator.release(0, 32);
  allocator.release(32, 32);  // closes the gap: 0..127 is one run again
  EXPECT_EQ(allocator.fit().lane(0), 128U);
  EXPECT_EQ(allocator.alloc({.slots = 128}), 0U);
  allocator.release(0, 128);
  allocator.release(192, 64);
  EXPECT_TRUE(allocator.is_pristine());
}

TEST(SlotAllocator, SW46_order_of_release_is_irrelevant) {
  SeededRandom random(21);
  for (unsigned round = 0; round < 50; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 21 round " << round);
    SlotAllocator allocator(0, 384);
    std::vector<Taken> runs;
    for (;;) {
      const unsigned slots = 1 + random.below(20);
      const auto start = allocator.alloc({.slots = slots});
      if (!start) break;
      runs.push_back({*start, slots});
    }
    while (!runs.empty()) {
      const uint32_t victim = random.below(static_cast<uint32_t>(runs.size()));
      allocator.release(runs[victim].start, runs[victim].slots);
      runs.erase(runs.begin() + victim);
    }
    ASSERT_TRUE(allocator.is_pristine());
  }
}

TEST(SlotAllocator, NC76_blocks_and_bounces_come_from_opposite_ends) {
  SlotAllocator allocator(0, 1024);
  const auto low = allocator.alloc({.slots = 1});
  const auto high = allocator.alloc({.slots = 16, .align_shift = 4, .from = SearchFrom::high});
  EXPECT_EQ(low, 0U);
  EXPECT_EQ(high, 1008U);
  allocator.release(*low, 1);
  allocator.release(*high, 16);
}

// Every block order fits exactly as often as there are aligned places, and then no more.
TEST(SlotAllocator, blocks_of_every_order_fill_the_area) {
  for (unsigned shift = 0; shift <= 7; ++shift) {
    SlotAllocator allocator(0, 512);
    const unsigned slots = 1U << shift;
    for (unsigned i = 0; i < 512 / slots; ++i) {
      ASSERT_TRUE(allocator.alloc({.slots = slots, .align_shift = shift}));
    }
    EXPECT_EQ(allocator.fit().raw(), 0U);
    EXPECT_FALSE(allocator.alloc({.slots = 1}));
    for (unsigned i = 0; i < 512 / slots; ++i) allocator.release(i * slots, slots);
    EXPECT_TRUE(allocator.is_pristine());
  }
}

// Where a lane decides, the root alone says yes or no: NC-74's bounded failure.
TEST(SlotAllocator, NC74_the_root_decides_aligned_requests_exactly) {
  SeededRandom random(22);
  SlotAllocator allocator(0, 1024);
  std::vector<Taken> live;
  for (unsigned step = 0; step < 4000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed 22 step " << step);
    RunRequest request;
    request.align_shift = random.below(7);
    request.slots = 1 + random.below(128);
    const bool promised = SlotAllocator::may_fit(allocator.fit(), request);
    const auto start = allocator.alloc(request);
    ASSERT_EQ(start.has_value(), promised);
    if (start) live.push_back({*start, request.slots});
    while (!live.empty() && random.below(3) == 0) {
      allocator.release(live.back().start, live.back().slots);
      live.pop_back();
    }
    if (live.size() > 30) std::swap(live.front(), live.back());
  }
  for (const Taken& run : live) allocator.release(run.start, run.slots);
  EXPECT_TRUE(allocator.is_pristine());
}

TEST(SlotAllocator, every_phase_of_an_empty_set_is_found) {
  SlotAllocator allocator(0, 128);
  for (unsigned shift = 1; shift <= 7; ++shift) {
    for (unsigned phase = 0; phase < (1U << shift); ++phase) {
      const unsigned slots = kSetSlots - phase;
      const auto start = allocator.alloc({.slots = slots, .align_shift = shift, .phase = phase});
      ASSERT_EQ(start, phase);
      allocator.release(*start, slots);
    }
  }
  EXPECT_TRUE(allocator.is_pristine());
}

TEST(SlotAllocator, SW19_boundary_inside_a_set) {
  SlotAllocator allocator(0, 128);
  const auto first = allocator.alloc({.slots = 3, .boundary = 4});
  const auto second = allocator.alloc({.slots = 2, .boundary = 4});
  EXPECT_EQ(first, 0U);
  EXPECT_EQ(second, 4U) << "slots 3 and 4 lie on both sides of a boundary";
  EXPECT_FALSE(allocator.alloc({.slots = 5, .boundary = 4}));
  allocator.release(*first, 3);
  allocator.release(*second, 2);
}

TEST(SlotAllocatorDeathTest, giving_back_a_free_slot_is_caught) {
  SlotAllocator allocator(2, 128);
  EXPECT_DEATH(allocator.release(4, 1), "");
  EXPECT_DEATH(allocator.release(0, 1), "");    // does not exist
  EXPECT_DEATH(allocator.release(120, 9), "");  // leaves the set
}

}  // namespace
}  // namespace nobounce
