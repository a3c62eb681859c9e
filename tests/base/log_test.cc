#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"

namespace nobounce {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override { set_log_level(before_); }
  LogLevel before_ = log_level();
};

TEST_F(Log, levels_let_through_what_they_name) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::warning);
  log_info("an info");
  log_warning("a warning");
  log_debug("a detail");
  set_log_level(LogLevel::quiet);
  log_warning("nothing");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "nobounce: a warning\n");
}

TEST_F(Log, a_long_message_is_cut_and_keeps_its_line_end) {
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  log_info(std::string(5000, 'x'));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LE(text.size(), 512u);
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(Log, TM71_one_line_a_second_and_a_count_of_the_rest) {
  LogLimit limit;
  uint64_t held_back = 99;
  EXPECT_TRUE(limit.admit(1, held_back));
  EXPECT_EQ(held_back, 0u);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(limit.admit(kNsPerSecond / 2, held_back));
  EXPECT_TRUE(limit.admit(kNsPerSecond + 1, held_back));
  EXPECT_EQ(held_back, 1000u);
  EXPECT_TRUE(limit.admit(10 * kNsPerSecond, held_back));
  EXPECT_EQ(held_back, 0u);
}

TEST_F(Log, TM71_the_line_says_how_many_were_held_back) {
  set_log_level(LogLevel::warning);
  testing::internal::CaptureStderr();
  LogLimit limit;
  warn_limited(limit, 1, "odd packet");
  warn_limited(limit, 2, "odd packet");
  warn_limited(limit, 3, "odd packet");
  warn_limited(limit, 2 * kNsPerSecond, "odd packet");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nobounce: odd packet\nnobounce: odd packet (and 2 more like it)\n");
}

TEST_F(Log, TM71_threads_together_print_one_line_and_lose_no_count) {
  LogLimit limit;
  std::atomic<uint64_t> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        uint64_t held_back = 0;
        if (limit.admit(5, held_back)) admitted.fetch_add(1 + held_back);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t rest = 0;
  EXPECT_TRUE(limit.admit(5 + kNsPerSecond, rest));
  EXPECT_EQ(admitted + rest, 40'000u);
}

}  // namespace
}  // namespace nobounce
