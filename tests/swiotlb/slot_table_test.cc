#include "swiotlb/slot_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace nobounce {
namespace {

TEST(SlotTable, any_slot_of_a_run_leads_to_its_head) {
  SlotTable table(512);
  table.open(128, 128, SlotState::lent);
  for (uint32_t slot = 128; slot < 256; ++slot) {
    ASSERT_EQ(table.head_of(slot), 128U);
    ASSERT_EQ(table.tag(slot).state, SlotState::lent);
  }
  EXPECT_EQ(table.tag(127).state, SlotState::free);
  EXPECT_EQ(table.tag(256).state, SlotState::free);
  ASSERT_TRUE(table.begin_close(128, SlotState::lent));
  table.close(128, 128);
  for (uint32_t slot = 0; slot < 512; ++slot) ASSERT_EQ(table.tag(slot).state, SlotState::free);
}

TEST(SlotTable, SW50_one_caller_closes_a_run) {
  SlotTable table(8);
  table.open(2, 3, SlotState::bounce);
  EXPECT_FALSE(table.begin_close(2, SlotState::lent)) << "another state";
  EXPECT_FALSE(table.begin_close(3, SlotState::bounce)) << "not the first slot";
  EXPECT_TRUE(table.begin_close(2, SlotState::bounce));
  EXPECT_FALSE(table.begin_close(2, SlotState::bounce)) << "a second time";
  table.close(2, 3);
  EXPECT_FALSE(table.begin_close(2, SlotState::bounce)) << "free";
}

TEST(SlotTable, SW50_one_of_two_racing_callers_closes) {
  for (unsigned round = 0; round < 200; ++round) {
    SlotTable table(4);
    table.open(0, 4, SlotState::bounce);
    std::atomic<unsigned> winners{0};
    std::atomic<unsigned> ready{0};
    const auto race = [&] {
      ready.fetch_add(1);
      while (ready.load() != 2) std::this_thread::yield();
      if (table.begin_close(0, SlotState::bounce)) winners.fetch_add(1);
    };
    std::thread other(race);
    race();
    other.join();
    ASSERT_EQ(winners.load(), 1U);
  }
}

TEST(SlotTable, SW45_a_closed_run_leaves_nothing_in_its_record) {
  SlotTable table(4);
  table.record(0).original = CpuAddr{0x1234};
  table.record(0).size = 77;
  table.record(0).slots = 2;
  table.open(0, 2, SlotState::bounce);
  ASSERT_TRUE(table.begin_close(0, SlotState::bounce));
  table.close(0, 2);
  EXPECT_EQ(table.record(0).original, CpuAddr{});
  EXPECT_EQ(table.record(0).size, 0U);
}

TEST(SlotTableDeathTest, closing_what_nobody_claimed) {
  SlotTable table(4);
  table.open(0, 2, SlotState::bounce);
  EXPECT_DEATH(table.close(0, 2), "");
  EXPECT_DEATH((void)table.tag(4), "");
}

}  // namespace
}  // namespace nobounce
