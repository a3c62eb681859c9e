#include "memory/private_arena.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(PrivateArena, gives_and_takes_back) {
  CounterRegistry counters;
  auto arena = PrivateArena::create(1 << 20, counters);
  ASSERT_TRUE(arena);
  Page* page = (*arena)->alloc(0);
  ASSERT_NE(page, nullptr);
  page_put(*page);
  EXPECT_EQ((*arena)->pages_free(), 256u);
}

}  // namespace
}  // namespace nobounce
