#include "swiotlb/areas.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

PoolLayout layout_of(uint32_t areas, uint32_t sets_per_area) {
  return {.end_slot = areas * sets_per_area * kSetSlots,
          .areas = areas,
          .sets_per_area = sets_per_area};
}

TEST(Areas, NC73_each_cpu_has_a_permutation_of_its_own) {
  const Areas areas(layout_of(16, 1));
  std::set<std::vector<uint16_t>> orders;
  std::set<std::vector<uint16_t>> seen_from_the_second;
  for (unsigned cpu = 0; cpu < 16; ++cpu) {
    const uint16_t* order = areas.order_of(cpu);
    EXPECT_EQ(order[0], cpu & 15U) << "SW-22: its own area first";
    const std::set<uint16_t> all(order, order + 16);
    EXPECT_EQ(all.size(), 16U);
    orders.emplace(order, order + 16);
    // A rotation would visit the same neighbours in the same distances.
    std::vector<uint16_t> steps;
    for (unsigned i = 1; i < 16; ++i) steps.push_back((order[i] - order[0]) & 15U);
    seen_from_the_second.insert(steps);
  }
  EXPECT_EQ(orders.size(), 16U);
  EXPECT_EQ(seen_from_the_second.size(), 16U);
}

TEST(Areas, any_cpu_number_has_an_order) {
  Areas areas(layout_of(2, 1));
  for (const unsigned cpu : {0U, 1U, 7U, 1023U, 1024U, ~0U}) {
    const auto slot = areas.alloc({.slots = 1}, cpu);
    ASSERT_TRUE(slot);
    areas.release(*slot, 1);
  }
  EXPECT_TRUE(areas.is_pristine());
}

TEST(Areas, SW22_fails_only_after_every_area) {
  Areas areas(layout_of(8, 1));
  std::set<uint32_t> heads;
  for (unsigned i = 0; i < 8; ++i) {
    const auto slot = areas.alloc({.slots = kSetSlots}, 3);
    ASSERT_TRUE(slot);
    heads.insert(*slot / kSetSlots);
  }
  EXPECT_EQ(heads.size(), 8U);
  for (unsigned cpu = 0; cpu < 8; ++cpu) EXPECT_FALSE(areas.alloc({.slots = 1}, cpu));
  EXPECT_EQ(areas.longest_free_run(), 0U);
  areas.release(5 * kSetSlots, kSetSlots);
  EXPECT_EQ(areas.longest_free_run(), kSetSlots);
  for (unsigned cpu = 0; cpu < 8; ++cpu) {
    const auto slot = areas.alloc({.slots = 100}, cpu);
    ASSERT_EQ(slot, 5 * kSetSlots);
    areas.release(*slot, 100);
  }
  for (const uint32_t set : heads) {
    if (set != 5) areas.release(set * kSetSlots, kSetSlots);
  }
  EXPECT_TRUE(areas.is_pristine());
}

TEST(Areas, SW71_refusals_leave_no_lock_behind) {
  Areas areas(layout_of(2, 1));
  const auto first = areas.alloc({.slots = kSetSlots}, 0);
  const auto second = areas.alloc({.slots = 127}, 0);
  // Passes the published bound and fails inside: a phase that no lane decides.
  EXPECT_FALSE(areas.alloc({.slots = 1, .align_shift = 3, .phase = 5}, 0));
  areas.release(*second, 127);
  EXPECT_TRUE(areas.alloc({.slots = 127}, 1)) << "would hang on a lock left behind";
  areas.release(*second, 127);
  areas.release(*first, kSetSlots);
  EXPECT_TRUE(areas.is_pristine());
}

// SW-72, SW-70: threads with random runs; each slot has one owner at every moment.
TEST(Areas, SW72_no_two_threads_own_a_slot) {
  constexpr uint32_t kAreas = 4;
  constexpr uint32_t kSets = 3;
  constexpr uint32_t kSlots = kAreas * kSets * kSetSlots;
  Areas areas(layout_of(kAreas, kSets));
  const auto owners = std::make_unique<std::atomic<uint32_t>[]>(kSlots);
  std::atomic<unsigned> overlaps{0};
  const auto work = [&](uint32_t id) {
    struct Taken {
      uint32_t start;
      unsigned slots;
    };
    SeededRandom random(100 + id);
    std::vector<Taken> live;
    const auto give_back = [&](size_t index) {
      const Taken taken = live[index];
      live[index] = live.back();
      live.pop_back();
      for (unsigned i = 0; i < taken.slots; ++i) {
        if (owners[taken.start + i].exchange(0, std::memory_order_relaxed) != id) ++overlaps;
      }
      areas.release(taken.start, taken.slots);
    };
    for (unsigned step = 0; step < 8000; ++step) {
      if (live.size() < 40 && random.below(5) < 3) {
        const unsigned shift = random.below(6);
        const RunRequest request{.slots = 1 + random.below(48),
                                 .align_shift = shift,
                                 .phase = random.below(4) == 0 ? random.below(1U << shift) : 0,
                                 .from = random.below(2) == 0 ? SearchFrom::low : SearchFrom::high};
        const auto start = areas.alloc(request, random.below(8));
        if (!start) continue;
        for (unsigned i = 0; i < request.slots; ++i) {
          if (owners[*start + i].exchange(id, std::memory_order_relaxed) != 0) ++overlaps;
        }
        live.push_back({*start, request.slots});
      } else if (!live.empty()) {
        give_back(random.below(static_cast<uint32_t>(live.size())));
      }
    }
    while (!live.empty()) give_back(0);
  };
  std::vector<std::thread> threads;
  for (uint32_t id = 1; id <= 4; ++id) threads.emplace_back(work, id);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overlaps.load(), 0U);
  EXPECT_TRUE(areas.is_pristine());
}

}  // namespace
}  // namespace nobounce
