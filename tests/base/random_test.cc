#include "base/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

namespace nobounce {
namespace {

TEST(Random, same_seed_same_sequence) {
  SeededRandom a(42);
  SeededRandom b(42);
  SeededRandom c(43);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = a.next_u64();
    EXPECT_EQ(value, b.next_u64());
    differs |= value != c.next_u64();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, below_stays_below_and_reaches_every_value) {
  SeededRandom random(7);
  for (const uint32_t bound : {1u, 2u, 3u, 7u, 64u}) {
    std::vector<unsigned> hits(bound);
    for (unsigned i = 0; i < bound * 200; ++i) {
      const uint32_t value = random.below(bound);
      ASSERT_LT(value, bound);
      ++hits[value];
    }
    for (const unsigned count : hits) EXPECT_GT(count, 100u);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_LT(random.below(~uint32_t{0}), ~uint32_t{0});
}

TEST(Random, fill_writes_every_byte_and_none_beyond) {
  SeededRandom random(8);
  for (size_t size = 0; size <= 40; ++size) {
    std::array<std::byte, 48> memory{};
    std::array<bool, 48> changed{};
    for (int round = 0; round < 64; ++round) {
      random.fill(MutableBytes(memory).first(size));
      for (size_t i = 0; i < memory.size(); ++i) changed[i] |= memory[i] != std::byte{0};
    }
    for (size_t i = 0; i < memory.size(); ++i) EXPECT_EQ(changed[i], i < size) << size << " " << i;
  }
}

TEST(Random, TM65_the_system_source_does_not_repeat_itself) {
  SystemRandom random;
  SystemRandom other;
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {  // several refills of its buffer
    seen.insert(random.next_u64());
    seen.insert(other.next_u64());
  }
  EXPECT_EQ(seen.size(), 2000u);
}

}  // namespace
}  // namespace nobounce
