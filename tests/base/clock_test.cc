#include "base/clock.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <thread>
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

// Both are held on one core and want it without a pause.
TEST(Clock, forced_switches_are_counted) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  std::atomic<bool> stop{false};
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  std::thread rival([&stop] {
    while (!stop) {
    }
  });
  const uint64_t before = thread_forced_switches();
  MonotonicClock clock;
  const uint64_t end = clock.now_ns() + 10 * kNsPerSecond;
  while (thread_forced_switches() == before && clock.now_ns() < end) {
  }
  EXPECT_GT(thread_forced_switches(), before);
  stop = true;
  rival.join();
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

}  // namespace
}  // namespace nobounce
