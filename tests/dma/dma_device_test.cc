#include "dma/dma_device.hpp"

#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

TEST(DmaDevice, NC31_lent_block_maps_where_it_is) {
  PoolFixture f;
  DmaDevice device(*f.pool, {}, f.counters);
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  ASSERT_NE(block, nullptr);
  const auto address = device.map({.address = page_address(*block) + 7, .size = 100});
  ASSERT_TRUE(address);
  EXPECT_EQ(*address, f.pool->dma_of(page_address(*block) + 7));
  device.unmap(*address, 100, DmaDirection::to_device);
  EXPECT_EQ(f.counters.value("dma.map.nocopy"), 1U);
  page_put(*block);
}

}  // namespace
}  // namespace nobounce::test
