// `nobounce demo` at its smallest: all its rows, and nothing of it left, however it ends.
#include <gtest/gtest.h>
#include <net/if.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/process.hpp"
#include "support/namespace.hpp"
#include "support/paths.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::seconds;

class DemoTest : public testing::Test {
 protected:
  DemoTest() {
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~DemoTest() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] Process start(std::vector<std::string> before = {}) const {
    before.insert(before.end(), {"/usr/bin/env", "TMPDIR=" + directory_, test::kProgram, "demo",
                                 "--time", "50ms", "--rounds", "1", "--size", "1M"});
    auto process = Process::start(before);
    EXPECT_TRUE(process) << process.error().to_string();
    return std::move(*process);
  }
  static Process::Output finish(Process& process) {
    auto output = process.finish(seconds(280), [](const std::string&) {});
    EXPECT_TRUE(output) << output.error().to_string();
    return output ? *output : Process::Output{};
  }
  // Its namespaces have no name: they are gone when the processes are.
  void expect_nothing_left() const {
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
    EXPECT_EQ(::if_nametoindex("nb0"), 0u);
    EXPECT_EQ(::if_nametoindex("nbv0"), 0u);
    EXPECT_EQ(processes(), std::vector<std::string>{});
  }
  // Whose command line names our directory.
  [[nodiscard]] std::vector<std::string> processes() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      const std::string words{std::istreambuf_iterator<char>(file), {}};
      if (words.find(directory_) != std::string::npos) found.push_back(entry.path());
    }
    return found;
  }

  std::string directory_;
};

TEST_F(DemoTest, prints_its_rows_and_leaves_nothing) {
  if (const auto reason = test::why_no_tap()) GTEST_SKIP() << *reason;
  Process demo = start();
  const auto output = finish(demo);
  ASSERT_EQ(output.status, 0) << output.error << "\n" << output.text;
  for (const char* row :
       {"to the built-in peer\n", "\nGbit/s ", "over a TAP, MTU 1500 with TSO\n",
        "our TCP (NewReno) to the kernel's (", "beside the kernel's to itself (",
        "\nMTU 1500: Gbit/s ", "\nMTU 1500: CPU of both ends, ns per KiB ", "\nMTU 65521: Gbit/s ",
        "\nMTU 65521: CPU of both ends, ns per KiB ", "ratio: nocopy / kernel\n"}) {
    EXPECT_NE(output.text.find(row), std::string::npos) << row << "\n" << output.text;
  }
  expect_nothing_left();
}

TEST_F(DemoTest, without_root_the_legs_to_the_kernel_are_left_out_with_one_line) {
  std::vector<std::string> before;
  if (::geteuid() == 0) {
    before = {"/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all"};
    if (!std::filesystem::exists(before.front())) GTEST_SKIP() << "no setpriv to be without root";
  }
  Process demo = start(before);
  const auto output = finish(demo);
  ASSERT_EQ(output.status, 0) << output.error << "\n" << output.text;
  const std::string line = "the legs to the kernel's TCP are left out: ";
  const size_t first = output.text.find(line);
  ASSERT_NE(first, std::string::npos) << output.text;
  EXPECT_EQ(output.text.find(line, first + 1), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("this part needs root", first), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("to the built-in peer"), std::string::npos);
  EXPECT_EQ(output.text.find("MTU"), std::string::npos) << output.text;
  expect_nothing_left();
}

TEST_F(DemoTest, ctrl_c_leaves_nothing) {
  if (const auto reason = test::why_no_tap()) GTEST_SKIP() << *reason;
  // While a guest streams, and while the kernel's own client does.
  for (const char* sign : {"bounce transmit", "kernel receive"}) {
    SCOPED_TRACE(sign);
    Process demo = start();
    bool signalled = false;
    const auto output = demo.finish(seconds(280), [&](const std::string& line) {
      if (signalled || line.find(sign) == std::string::npos) return;
      signalled = true;
      demo.signal(SIGINT);
    });
    ASSERT_TRUE(output) << output.error().to_string();
    EXPECT_TRUE(signalled);
    EXPECT_EQ(output->status, 130) << output->error;
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace nobounce::cli
