#include "base/assert.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(Assert, says_what_and_where_and_stops) {
  const int three = 3;
  NB_ASSERT(three == 3);
  EXPECT_DEATH(NB_ASSERT(three == 4), "assertion failed: three == 4 .*assert_test.cc:");
}

TEST(Assert, evaluates_once) {
  int count = 0;
  NB_ASSERT(++count == 1);
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace nobounce
