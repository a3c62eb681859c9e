#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

TEST(Bounce, SW33_device_that_writes_less_leaves_the_rest_as_it_was) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  original.fill(std::byte{'A'});
  const auto address = f.pool->map(
      {.original = original.at(0), .size = 4096, .direction = DmaDirection::from_device});
  ASSERT_TRUE(address);
  f.device_fill(*address, 100, std::byte{'B'});
  f.pool->unmap(*address, 4096, DmaDirection::from_device, {});
  EXPECT_TRUE(all_equal(original.bytes().first(100), std::byte{'B'}));
  EXPECT_TRUE(all_equal(original.bytes().subspan(100), std::byte{'A'}));
}

}  // namespace
}  // namespace nobounce::test
