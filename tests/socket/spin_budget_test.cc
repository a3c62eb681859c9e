#include "socket/spin_budget.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

constexpr uint64_t kMax = 50 * kNsPerUs;

class SpinBudgetTest : public testing::Test {
 protected:
  void window(uint64_t forced) {
    now_ += SpinBudget::kWindowNs;
    switches_ += forced;
    budget_.judge(now_, switches_);
  }
  SpinBudget budget_{kMax};
  uint64_t now_ = 0, switches_ = 0;
};

TEST_F(SpinBudgetTest, a_core_of_its_own_has_all_of_it) {
  for (int i = 0; i < 100; ++i) {
    window(0);
    EXPECT_EQ(budget_.ns(), kMax);
  }
}

TEST_F(SpinBudgetTest, a_core_that_others_want_has_a_microsecond) {
  for (int i = 0; i < 6; ++i) window(3);
  EXPECT_EQ(budget_.ns(), SpinBudget::kFloorNs);
  window(1);
  EXPECT_EQ(budget_.ns(), SpinBudget::kFloorNs);
}

TEST_F(SpinBudgetTest, comes_back_when_they_have_left) {
  for (int i = 0; i < 10; ++i) window(1);
  for (int i = 0; i < 6; ++i) window(0);
  EXPECT_EQ(budget_.ns(), kMax);
}

TEST_F(SpinBudgetTest, is_judged_once_a_window) {
  window(0);
  EXPECT_FALSE(budget_.is_due(now_));
  EXPECT_FALSE(budget_.is_due(now_ + SpinBudget::kWindowNs - 1));
  EXPECT_TRUE(budget_.is_due(now_ + SpinBudget::kWindowNs));
}

TEST(SpinBudget, none_stays_none) {
  SpinBudget budget(0);
  budget.judge(kNsPerSecond, 0);
  EXPECT_EQ(budget.ns(), 0u);
  budget.judge(2 * kNsPerSecond, 1);
  EXPECT_EQ(budget.ns(), 0u);
}

}  // namespace
}  // namespace nobounce
