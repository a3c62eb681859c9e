#include "base/clock.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace nobounce {
namespace {

TEST(Clock, monotonic_never_goes_back) {
  MonotonicClock clock;
  uint64_t last = clock.now_ns();
  EXPECT_GT(last, 0u);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, manual_stands_still_until_told) {
  ManualClock clock(5);
  EXPECT_EQ(clock.now_ns(), 5u);
  EXPECT_EQ(clock.now_ns(), 5u);
  clock.advance(7);
  EXPECT_EQ(clock.now_ns(), 12u);
  clock.set(100);
  EXPECT_EQ(clock.now_ns(), 100u);
}

TEST(Clock, thread_cpu_time_counts_work) {
  const uint64_t before = thread_cpu_ns();
  std::vector<char> memory(1 << 20);
  for (int i = 0; i < 20; ++i) std::memset(memory.data(), i, memory.size());
  EXPECT_EQ(memory[123], 19);
  EXPECT_GT(thread_cpu_ns(), before);
}

}  // namespace
}  // namespace nobounce
