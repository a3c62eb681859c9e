#include "cli/payload.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/sha256.hpp"

namespace nobounce::cli {
namespace {

TEST(Payload, same_seed_same_bytes) {
  Rotation a = Rotation::seeded(1000, 7);
  Rotation b = Rotation::seeded(1000, 7);
  Rotation c = Rotation::seeded(1000, 8);
  const auto bytes = a.next(1000);
  EXPECT_TRUE(std::ranges::equal(bytes, b.next(1000)));
  EXPECT_FALSE(std::ranges::equal(bytes, c.next(1000)));
}

TEST(Payload, turns_around_at_the_end_and_goes_back_what_was_not_used) {
  Rotation rotation = Rotation::seeded(100, 1);
  const auto* base = rotation.next(60).data();
  EXPECT_EQ(rotation.next(60).size(), 40u);
  EXPECT_EQ(rotation.next(10).data(), base);
  rotation.unused(4);
  EXPECT_EQ(rotation.next(10).data(), base + 6);
}

TEST(Sha256, vectors_of_fips_180) {
  Sha256 empty;
  EXPECT_EQ(empty.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.update(as_bytes("a"));
  abc.update(as_bytes("bc"));
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace nobounce::cli
