// --config: what a file says, what it may not say, and that the command line wins.
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <fstream>

#include "cli/guest_options.hpp"
#include "cli/program.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

class Config : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nobounce_config_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Parses as the program does; the error's line, or nothing.
  std::string parse(const std::string& file, std::vector<std::string> words) {
    std::ofstream(directory_ + "/c.toml") << file;
    CLI::App program("", "nobounce");
    CLI::App* perf = program.add_subcommand("perf");
    CLI::App* other = program.add_subcommand("other");
    other->add_option("--elsewhere");
    options_ = {};
    flag_ = false;
    add_guest_options(*perf, options_);
    perf->add_flag("--flag", flag_);
    perf->callback([&] { finish_guest_options(*perf, options_); });
    words.insert(words.begin(), "perf");
    words.insert(words.end(), {"--config", directory_ + "/c.toml"});
    std::ranges::reverse(words);
    try {
      program.parse(words);
    } catch (const CLI::ParseError& error) {
      return explain(program, error);
    }
    return {};
  }

  std::string directory_;
  GuestOptions options_;
  bool flag_ = false;
};

constexpr const char* kGood =
    "net = 'vhost-user:/run/nb.sock'\n"
    "ip = '10.77.0.2/24'\n"
    "mtu = 1400\n"
    "elsewhere = 1  # another command's\n"
    "[perf]\n"
    "mode = 'bounce'\n"
    "flag = true\n"
    "[other]\n"
    "elsewhere = 'not looked at'\n";

TEST_F(Config, gives_what_the_command_line_left_open) {
  EXPECT_EQ(parse(kGood, {}), "");
  EXPECT_EQ(options_.stack.net, "vhost-user:/run/nb.sock");
  EXPECT_EQ(options_.stack.address.to_string(), "10.77.0.2/24");
  EXPECT_EQ(options_.stack.mtu, 1400);
  EXPECT_EQ(options_.stack.mode, Mode::bounce);
  EXPECT_TRUE(flag_);
}

TEST_F(Config, what_to_do_on_a_disconnect) {
  EXPECT_EQ(parse(kGood, {}), "");
  EXPECT_EQ(options_.stack.on_disconnect, OnDisconnect::fail);
  EXPECT_EQ(parse("on-disconnect = 'wait'\n" + std::string(kGood), {}), "");
  EXPECT_EQ(options_.stack.on_disconnect, OnDisconnect::wait);
}

TEST_F(Config, the_command_line_wins) {
  EXPECT_EQ(parse(kGood, {"--mode", "nocopy", "--mtu", "1500"}), "");
  EXPECT_EQ(options_.stack.mode, Mode::nocopy);
  EXPECT_EQ(options_.stack.mtu, 1500);
}

TEST_F(Config, the_commands_own_table_wins_over_the_shared_part) {
  EXPECT_EQ(parse("mode = 'nocopy'\n" + std::string(kGood), {}), "");
  EXPECT_EQ(options_.stack.mode, Mode::bounce);
}

TEST_F(Config, lists_where_an_option_may_be_given_several_times) {
  const std::string file =
      "net = 'vhost-user:/x'\n"
      "ip = ['10.77.0.2/24', '10.78.0.2/24']\n"
      "route = ['10.88.0.0/16=10.77.0.9', '10.89.0.0/16=10.78.0.9']\n";
  EXPECT_EQ(parse(file, {}), "");
  EXPECT_EQ(options_.stack.address.to_string(), "10.77.0.2/24");
  ASSERT_EQ(options_.stack.more_addresses.size(), 1U);
  EXPECT_EQ(options_.stack.more_addresses[0].to_string(), "10.78.0.2/24");
  ASSERT_EQ(options_.stack.routes.size(), 2U);
  EXPECT_EQ(options_.stack.routes[1].to_string(), "10.89.0.0/16=10.78.0.9");
  // The command line wins, all of it.
  EXPECT_EQ(parse(file, {"--ip", "10.1.0.1/24", "--ip", "10.2.0.1/24", "--ip", "10.3.0.1/24",
                         "--route", "0.0.0.0/1=10.1.0.9"}),
            "");
  EXPECT_EQ(options_.stack.address.to_string(), "10.1.0.1/24");
  EXPECT_EQ(options_.stack.more_addresses.size(), 2U);
  EXPECT_EQ(options_.stack.routes.size(), 1U);
}

TEST_F(Config, says_what_is_wrong) {
  const struct {
    const char* file;
    const char* expected;  // part of the line
  } kCases[] = {
      {"mod = 'bounce'", "unknown key 'mod'; did you mean '--mode'?"},
      {"[pref]\nx = 1", "unknown table [pref]"},
      {"[perf]\nelsewhere = 1", "unknown key 'elsewhere'"},
      {"mode = 'copy'", "'copy' is not one of the two modes"},
      {"mtu = 'x'", "'x' is not a number of bytes"},
      {"mtu = [1, 2]", "'mtu' must be one value"},
      {"route = '10.88.0.0/16'", "'10.88.0.0/16' is not a prefix and its gateway"},
      {"route = ['10.88.0.0/16=10.0.0.9', 'x']", "'x' is not a prefix and its gateway"},
      {"route = [[1]]", "'route' must be"},
      {"route = []", "'route' must be"},
      {"config = 'again.toml'", "unknown key 'config'"},
      {"mode = ", "c.toml:1"},
  };
  for (const auto& test : kCases) {
    const std::string line = parse(test.file, {"--net", "vhost-user:/x", "--ip", "10.0.0.1/24"});
    EXPECT_NE(line.find(test.expected), std::string::npos) << test.file << "\n  " << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

TEST_F(Config, a_file_that_is_not_there) {
  GuestOptions options;
  CLI::App program("", "nobounce");
  CLI::App* perf = program.add_subcommand("perf");
  add_guest_options(*perf, options);
  options.config = directory_ + "/none.toml";
  try {
    finish_guest_options(*perf, options);
    FAIL() << "no error";
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(std::string(error.what()).find("none.toml"), std::string::npos) << error.what();
  }
}

// An option set by `--config PATH` as the program does it; the error's line, or nothing.
std::string config_error(const std::string& path) {
  GuestOptions options;
  CLI::App program("", "nobounce");
  CLI::App* perf = program.add_subcommand("perf");
  add_guest_options(*perf, options);
  try {
    apply_config(*perf, path);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return {};
}

TEST_F(Config, what_cannot_be_read_is_not_taken_for_empty) {
  EXPECT_EQ(config_error(directory_), "--config: " + directory_ + ": Is a directory");
  EXPECT_EQ(config_error(directory_ + "/x"),
            "--config: " + directory_ + "/x: No such file or directory");
  EXPECT_EQ(config_error("/proc/self/mem"), "--config: /proc/self/mem: Input/output error");
  EXPECT_NE(config_error("/dev/zero").find("larger than 1 MiB"), std::string::npos);
  EXPECT_EQ(config_error("/dev/null"), "");
  const std::string closed = directory_ + "/closed.toml";
  std::ofstream(closed) << "mtu = 1400\n";
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  if (access(closed.c_str(), R_OK) != 0) {  // root may read everything
    EXPECT_EQ(config_error(closed), "--config: " + closed + ": Permission denied");
  }
}

}  // namespace
}  // namespace nobounce::cli
