#include "base/bytes.hpp"

#include <gtest/gtest.h>

#include <array>

namespace nobounce {
namespace {

TEST(Bytes, orders_at_every_alignment) {
  std::array<std::byte, 32> memory{};
  for (size_t offset = 0; offset + 8 <= memory.size(); ++offset) {
    memory.fill(std::byte{0xee});
    store_be<uint64_t>(memory, offset, 0x0102030405060708);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(memory[offset + i], std::byte(i + 1));
    EXPECT_EQ(load_be<uint64_t>(memory, offset), 0x0102030405060708u);
    EXPECT_EQ(load_le<uint64_t>(memory, offset), 0x0807060504030201u);
    EXPECT_EQ(load_be<uint16_t>(memory, offset), 0x0102);
    EXPECT_EQ(load_be<uint32_t>(memory, offset), 0x01020304u);
    store_le<uint32_t>(memory, offset, 0x01020304);
    EXPECT_EQ(memory[offset], std::byte{4});
    EXPECT_EQ(load_le<uint32_t>(memory, offset), 0x01020304u);
    EXPECT_EQ(load_le<uint8_t>(memory, offset), 4);
  }
}

TEST(Bytes, the_last_byte_is_in_reach_and_the_next_is_not) {
  std::array<std::byte, 4> memory{};
  store_be<uint16_t>(memory, 2, 0xffff);
  EXPECT_EQ(load_be<uint16_t>(memory, 2), 0xffff);
  EXPECT_DEATH((void)load_be<uint16_t>(memory, 3), "assertion failed");
  EXPECT_DEATH(store_le<uint32_t>(memory, 1, 0), "assertion failed");
  EXPECT_DEATH((void)load_le<uint8_t>(Bytes{}, 0), "assertion failed");
}

TEST(Bytes, rounding) {
  EXPECT_EQ(round_up(0, 4096), 0u);
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_up(4097, 4096), 8192u);
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_FALSE(is_power_of_two(6));
  EXPECT_TRUE(is_power_of_two(uint64_t{1} << 63));
}

TEST(Bytes, views_of_text) {
  EXPECT_EQ(as_bytes("").size(), 0u);
  EXPECT_EQ(as_bytes("ab")[1], std::byte{'b'});
}

}  // namespace
}  // namespace nobounce
