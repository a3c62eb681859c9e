#include "base/siphash.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace nobounce {
namespace {

SipKey reference_key() { return {0x0706050403020100, 0x0f0e0d0c0b0a0908}; }

std::vector<std::byte> counting(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(i);
  return bytes;
}

TEST(SipHash, the_vector_of_the_paper) {
  // Appendix A: key 00..0f, input 00..0e.
  EXPECT_EQ(siphash(reference_key(), counting(15)), 0xa129ca6149be45e5u);
}

TEST(SipHash, every_tail_length_gives_a_hash_of_its_own) {
  std::set<uint64_t> seen;
  for (size_t size = 0; size < 64; ++size) seen.insert(siphash(reference_key(), counting(size)));
  EXPECT_EQ(seen.size(), 64u);
  // Trailing zeros count too: the length is part of the input.
  const std::vector<std::byte> zeros(16);
  EXPECT_NE(siphash(reference_key(), Bytes(zeros).first(7)),
            siphash(reference_key(), Bytes(zeros).first(8)));
}

TEST(SipHash, each_input_and_key_bit_matters) {
  const auto base = counting(24);
  const uint64_t hash = siphash(reference_key(), base);
  for (size_t bit = 0; bit < base.size() * 8; ++bit) {
    auto changed = base;
    changed[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_NE(siphash(reference_key(), changed), hash) << bit;
  }
  for (unsigned bit = 0; bit < 64; ++bit) {
    SipKey key = reference_key();
    key.k0 ^= uint64_t{1} << bit;
    EXPECT_NE(siphash(key, base), hash) << bit;
    key = reference_key();
    key.k1 ^= uint64_t{1} << bit;
    EXPECT_NE(siphash(key, base), hash) << bit;
  }
}

TEST(SipHash, keys_come_from_the_random_source) {
  SeededRandom a(5);
  SeededRandom b(5);
  const SipKey key = SipKey::make(a);
  EXPECT_EQ(key.k0, b.next_u64());
  EXPECT_EQ(key.k1, b.next_u64());
}

}  // namespace
}  // namespace nobounce
