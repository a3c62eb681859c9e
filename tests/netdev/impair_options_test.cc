// The text form of impairments: what is written is what is done, and what is wrong is named.
#include "netdev/impair_options.hpp"

#include <gtest/gtest.h>

namespace nobounce::test {
namespace {

TEST(ImpairOptions, all_of_it) {
  const auto options =
      parse_impairments("loss=1%,reorder=2%,duplicate=1%,corrupt=0.1%,delay=10ms,rate=100M,seed=7");
  ASSERT_TRUE(options) << options.error().to_string();
  EXPECT_DOUBLE_EQ(options->loss, 0.01);
  EXPECT_DOUBLE_EQ(options->reorder, 0.02);
  EXPECT_DOUBLE_EQ(options->duplicate, 0.01);
  EXPECT_DOUBLE_EQ(options->corrupt, 0.001);
  EXPECT_EQ(options->delay_ns, 10'000'000U);
  EXPECT_EQ(options->rate, 100'000'000U);
  EXPECT_EQ(options->seed, 7U);
}

TEST(ImpairOptions, units) {
  EXPECT_DOUBLE_EQ(parse_impairments("loss=0.25")->loss, 0.25);
  EXPECT_DOUBLE_EQ(parse_impairments("loss=100%")->loss, 1);
  EXPECT_DOUBLE_EQ(parse_impairments("loss=0")->loss, 0);
  EXPECT_EQ(parse_impairments("delay=500us")->delay_ns, 500'000U);
  EXPECT_EQ(parse_impairments("delay=2.5ms")->delay_ns, 2'500'000U);
  EXPECT_EQ(parse_impairments("delay=1s")->delay_ns, 1'000'000'000U);
  EXPECT_EQ(parse_impairments("delay=7ns")->delay_ns, 7U);
  EXPECT_EQ(parse_impairments("rate=1G")->rate, 1'000'000'000U);
  EXPECT_EQ(parse_impairments("rate=64K")->rate, 64'000U);
  EXPECT_EQ(parse_impairments("rate=12345678")->rate, 12'345'678U);
  EXPECT_EQ(parse_impairments("seed=18446744073709551615")->seed, UINT64_MAX);
}

struct Refusal {
  const char* text;
  const char* cause;
  const char* hint;
};

TEST(ImpairOptions, refusals_name_the_key_or_value_and_what_would_be_right) {
  const Refusal refusals[] = {
      {"", "\"\" has no value", "KEY=VALUE"},
      {"loss", "\"loss\" has no value", "loss=1%"},
      {"loss=1%,", "\"\" has no value", "KEY=VALUE"},
      {"jitter=1ms", "\"jitter\" is no impairment", "loss, reorder, duplicate"},
      {"=1", "\"\" is no impairment", "loss"},
      {"Loss=1%", "\"Loss\" is no impairment", "loss"},
      {"loss=1%,loss=2%", "loss is given twice", "once"},
      {"loss=", "loss=", "1% or 0.01"},
      {"loss=101%", "loss=101%", "at most 100%"},
      {"loss=1.5", "loss=1.5", "at most 100%"},
      {"loss=-1%", "loss=-1%", "1% or 0.01"},
      {"loss=nan", "loss=nan", "1% or 0.01"},
      {"corrupt=1 %", "corrupt=1 %", "1% or 0.01"},
      {"delay=10", "delay=10", "10ms or 500us"},
      {"delay=11s", "delay=11s", "at most 10s"},
      {"delay=10mss", "delay=10mss", "10ms"},
      {"rate=100Mbit", "rate=100Mbit", "100M or 1G"},
      {"rate=0", "rate=0", "at least 8K"},
      {"rate=99999G", "rate=99999G", "100M"},
      {"seed=-1", "seed=-1", "whole number"},
      {"seed=0x7", "seed=0x7", "whole number"},
      {"seed=18446744073709551616", "seed=18446744073709551616", "whole number"},
  };
  for (const Refusal& refusal : refusals) {
    const auto options = parse_impairments(refusal.text);
    ASSERT_FALSE(options) << refusal.text;
    const std::string line = options.error().to_string();
    EXPECT_EQ(options.error().cause, refusal.cause);
    EXPECT_NE(line.find(refusal.hint), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
}

TEST(ImpairOptions, text_and_back) {
  EXPECT_EQ(to_string({}), "seed=1");
  const char* const text =
      "loss=1%,reorder=2%,duplicate=3%,corrupt=0.1%,delay=0.5ms,rate=100M,seed=7";
  EXPECT_EQ(to_string(*parse_impairments(text)), text);
}

}  // namespace
}  // namespace nobounce::test
