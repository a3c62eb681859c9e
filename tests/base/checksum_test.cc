#include "base/checksum.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

// RFC 1071, word by word: the definition, not a fast way.
uint16_t naive(Bytes bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const auto high = std::to_integer<uint32_t>(bytes[i]);
    const auto low = i + 1 < bytes.size() ? std::to_integer<uint32_t>(bytes[i + 1]) : 0;
    sum += high << 8 | low;
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<uint16_t>(sum);
}

// 0 and 0xffff are the same number in one's complement.
bool same(uint16_t a, uint16_t b) { return a % 0xffff == b % 0xffff; }

std::vector<std::byte> random_bytes(Random& random, size_t size) {
  std::vector<std::byte> bytes(size);
  random.fill(bytes);
  return bytes;
}

TEST(Checksum, the_example_of_rfc_1071) {
  const std::byte bytes[] = {std::byte{0x00}, std::byte{0x01}, std::byte{0xf2}, std::byte{0x03},
                             std::byte{0xf4}, std::byte{0xf5}, std::byte{0xf6}, std::byte{0xf7}};
  EXPECT_EQ(checksum_fold(checksum_add(0, bytes)), 0xddf2);
  EXPECT_EQ(checksum_finish(checksum_add(0, bytes)), 0x220d);
}

TEST(Checksum, every_length_and_alignment_against_the_definition) {
  SeededRandom random(1);
  const auto memory = random_bytes(random, 320);
  for (size_t size = 0; size <= 300; ++size) {
    for (size_t start = 0; start < 9; ++start) {
      const Bytes bytes = Bytes(memory).subspan(start, size);
      EXPECT_TRUE(same(checksum_fold(checksum_add(0, bytes)), naive(bytes)))
          << size << " bytes at " << start;
    }
  }
}

TEST(Checksum, all_ones_and_all_zeros) {
  for (const size_t size : {1, 2, 3, 31, 32, 33, 1500, 65535}) {
    const std::vector<std::byte> ones(size, std::byte{0xff});
    const std::vector<std::byte> zeros(size, std::byte{0});
    EXPECT_TRUE(same(checksum_fold(checksum_add(0, ones)), naive(ones))) << size;
    EXPECT_EQ(checksum_fold(checksum_add(0, zeros)), 0) << size;
  }
}

TEST(Checksum, a_message_with_its_checksum_sums_to_all_ones) {
  SeededRandom random(2);
  for (size_t size = 2; size <= 300; size += 2) {
    auto bytes = random_bytes(random, size);
    store_be<uint16_t>(bytes, 0, 0);
    store_be<uint16_t>(bytes, 0, checksum_finish(checksum_add(0, bytes)));
    EXPECT_EQ(checksum_fold(checksum_add(0, bytes)), 0xffff) << size;
  }
}

TEST(Checksum, pieces_join_at_odd_and_even_offsets) {
  SeededRandom random(3);
  const auto bytes = random_bytes(random, 300);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const Bytes front = Bytes(bytes).first(cut);
    const Bytes back = Bytes(bytes).subspan(cut);
    const uint64_t whole = checksum_join(checksum_add(0, front), checksum_add(0, back), cut);
    EXPECT_TRUE(same(checksum_fold(whole), naive(bytes))) << "cut at " << cut;
  }
}

TEST(Checksum, many_pieces_in_any_order) {
  for (uint64_t seed = 10; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const auto bytes = random_bytes(random, 1 + random.below(5000));
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(1 + random.below(97), bytes.size() - at);
      sum = checksum_join(sum, checksum_add(0, Bytes(bytes).subspan(at, size)), at);
      at += size;
    }
    EXPECT_TRUE(same(checksum_fold(sum), naive(bytes)));
  }
}

TEST(Checksum, NC55_copy_sums_what_it_copied) {
  SeededRandom random(4);
  for (const size_t size : {0, 1, 2, 3, 63, 64, 299, 4095, 4096, 4097, 8192, 10001, 65535}) {
    const auto from = random_bytes(random, size);
    std::vector<std::byte> to(size + 8, std::byte{0x5a});
    const uint64_t sum = checksum_copy(7, to, from);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << size;
    EXPECT_EQ(to[size], std::byte{0x5a}) << "wrote past the source's size";
    EXPECT_TRUE(same(checksum_fold(sum), checksum_fold(uint64_t{naive(from)} + 7))) << size;
  }
}

TEST(Checksum, the_accumulator_does_not_wrap_at_the_largest_sums) {
  // Far more pieces than any packet has, all ones, on top of a large start.
  const std::vector<std::byte> ones(65535, std::byte{0xff});
  uint64_t sum = uint64_t{1} << 40;
  for (int i = 0; i < 1000; ++i) sum = checksum_add(sum, ones);
  EXPECT_TRUE(same(checksum_fold(sum),
                   static_cast<uint16_t>(((uint64_t{1} << 40) + 1000ULL * naive(ones)) % 0xffff)));
}

TEST(Checksum, copy_into_too_small_a_place_is_our_bug) {
  std::vector<std::byte> to(3);
  const std::vector<std::byte> from(4);
  EXPECT_DEATH((void)checksum_copy(0, to, from), "assertion failed");
}

}  // namespace
}  // namespace nobounce
