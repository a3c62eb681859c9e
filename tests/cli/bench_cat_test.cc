// scripts/bench cat at its smallest: the numbers a machine reads, and nothing left behind.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/process.hpp"
#include "support/namespace.hpp"
#include "support/paths.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::seconds;

class BenchCatTest : public testing::Test {
 protected:
  BenchCatTest() {
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~BenchCatTest() override { std::filesystem::remove_all(directory_); }
  void SetUp() override {
    if (const auto reason = test::why_no_tap()) GTEST_SKIP() << *reason;
    for (const char* tool : {"/usr/bin/socat", "/usr/bin/ip", "/usr/bin/nsenter"}) {
      if (!std::filesystem::exists(tool)) GTEST_SKIP() << "no " << tool << " (scripts/deps bench)";
    }
  }
  [[nodiscard]] Process start(std::vector<std::string> words) const {
    words.insert(words.begin(), {"/usr/bin/env", "TMPDIR=" + directory_,
                                 std::string(test::kSourceDir) + "/scripts/bench", "cat",
                                 "--program", test::kProgram, "--tool", "socat"});
    auto process = Process::start(words);
    EXPECT_TRUE(process) << process.error().to_string();
    return std::move(*process);
  }

  std::string directory_;
};

TEST_F(BenchCatTest, both_roles_directions_and_modes_are_measured) {
  Process bench = start({"--size", "300K", "--json"});
  std::string said;
  const auto output =
      bench.finish(seconds(200), [&](const std::string& line) { said += line + "\n"; });
  ASSERT_TRUE(output) << output.error().to_string();
  ASSERT_EQ(output->status, 0) << said;
  const auto json = nlohmann::json::parse(output->text, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << output->text;
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["bytes"], 300 << 10);
  std::set<std::string> seen;
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["result"], "ok");
    EXPECT_EQ(run["bytes"], 300 << 10);
    EXPECT_EQ(run["tool"], "socat");
    EXPECT_GT(run["mb_per_s"], 0.0);
    EXPECT_GE(run["longest_stall_ms"], 0);
    seen.insert(run["direction"].get<std::string>() + run["cat"].get<std::string>() +
                run["mode"].get<std::string>());
  }
  EXPECT_EQ(json["runs"].size(), 8u);
  EXPECT_EQ(seen.size(), 8u);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(BenchCatTest, a_stop_leaves_nothing) {
  Process bench = start({"--size", "8M", "--impair", "rate=10M", "--runs", "1"});
  bool signalled = false;
  const auto output = bench.finish(seconds(200), [&](const std::string& line) {
    if (signalled || line.find("making a file") == std::string::npos) return;
    signalled = true;
    ::usleep(1'500'000);
    bench.signal(SIGTERM);
  });
  ASSERT_TRUE(output) << output.error().to_string();
  EXPECT_TRUE(signalled);
  EXPECT_EQ(output->status, 143);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(BenchCatTest, what_cannot_be_is_said_in_one_line) {
  const struct {
    std::vector<std::string> words;
    const char* said;
  } kCases[] = {
      {{"--size", "much"}, "no size"},        {{"--runs", "0"}, "no number"},
      {{"--tool", "ncat"}, "neither"},        {{"--size"}, "no value"},
      {{"--sise", "1M"}, "unknown argument"}, {{"--impair", "loss=2"}, "back-end did not start"}};
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.words.front());
    Process bench = start(test.words);
    const auto output = bench.finish(seconds(60), [](const std::string&) {});
    ASSERT_TRUE(output) << output.error().to_string();
    EXPECT_NE(output->status, 0);
    EXPECT_NE(output->error.find(test.said), std::string::npos) << output->error;
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

}  // namespace
}  // namespace nobounce::cli
