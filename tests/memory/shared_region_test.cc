#include "memory/shared_region.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(SharedRegion, carves_and_maps_for_the_peer) {
  auto region = SharedRegion::create({.bytes = 4 << 20});
  ASSERT_TRUE(region) << region.error().to_string();
  SharedBytes ring = (*region)->carve(4096, 4096);
  ring.store_le<uint32_t>(8, 0x12345678);
  auto peer = SharedRegion::map_peer({.fd = (*region)->fd(), .bytes = (*region)->size()});
  ASSERT_TRUE(peer) << peer.error().to_string();
  EXPECT_EQ((*peer)->bytes().load_le<uint32_t>(8), 0x12345678u);
}

}  // namespace
}  // namespace nobounce
