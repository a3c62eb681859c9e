#include "page_pool/page_pool.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(PagePool, gives_and_takes_back) {
  CounterRegistry counters;
  auto arena = PrivateArena::create(1 << 20, counters);
  ASSERT_TRUE(arena);
  {
    auto pool = PagePool::create({.arena = arena->get()});
    ASSERT_TRUE(pool);
    Page* page = (*pool)->alloc();
    ASSERT_NE(page, nullptr);
    PagePool::put(*page);
    EXPECT_EQ((*pool)->stats().recycle_ring, 1u);
  }
  EXPECT_EQ((*arena)->pages_free(), 256u);
}

}  // namespace
}  // namespace nobounce
