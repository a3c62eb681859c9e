#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

TEST(Blocks, NC18_block_looks_like_pages) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(3, BlockUse::transmit);
  ASSERT_NE(block, nullptr);
  EXPECT_TRUE(f.pool->is_lent(page_address(*block), 32768));
  EXPECT_FALSE(f.pool->is_lent(page_address(*block) + 1, 32768));
  page_put(*block);
}

}  // namespace
}  // namespace nobounce::test
