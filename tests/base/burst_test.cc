#include "base/burst.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace nobounce {
namespace {

using Small = Burst<std::unique_ptr<int>, 4>;

TEST(Burst, fills_to_its_capacity) {
  Small burst;
  EXPECT_TRUE(burst.empty());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(burst.room(), 4u - static_cast<size_t>(i));
    burst.push(std::make_unique<int>(i));
  }
  EXPECT_TRUE(burst.full());
  EXPECT_DEATH(burst.push(nullptr), "assertion failed");
  int expected = 0;
  for (const auto& item : burst) EXPECT_EQ(*item, expected++);
  EXPECT_EQ(expected, 4);
}

TEST(Burst, drop_front_closes_the_gap_and_keeps_order) {
  for (size_t dropped = 0; dropped <= 4; ++dropped) {
    Small burst;
    for (int i = 0; i < 4; ++i) burst.push(std::make_unique<int>(i));
    for (size_t i = 0; i < dropped; ++i) burst[i] = nullptr;  // moved from, as the contract says
    burst.drop_front(dropped);
    ASSERT_EQ(burst.size(), 4 - dropped);
    for (size_t i = 0; i < burst.size(); ++i) EXPECT_EQ(*burst[i], static_cast<int>(i + dropped));
  }
  Small burst;
  EXPECT_DEATH(burst.drop_front(1), "assertion failed");
}

TEST(Burst, what_left_is_given_back_at_once) {
  const auto shared = std::make_shared<int>(1);
  Burst<std::shared_ptr<int>, 4> burst;
  for (int i = 0; i < 4; ++i) burst.push(shared);
  EXPECT_EQ(shared.use_count(), 5);
  burst.drop_front(3);
  EXPECT_EQ(shared.use_count(), 2);
  burst.clear();
  EXPECT_EQ(shared.use_count(), 1);
  EXPECT_TRUE(burst.empty());
}

}  // namespace
}  // namespace nobounce
