#include "cli/process.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/clock.hpp"

namespace nobounce::cli {
namespace {

Process start(const std::string& script) {
  auto process = Process::start({"/bin/sh", "-c", script});
  EXPECT_TRUE(process.has_value());
  return *std::move(process);
}

TEST(Process, knows_its_own_program) {
  const auto program = this_program();
  ASSERT_TRUE(program.has_value());
  EXPECT_TRUE(program->ends_with("test_cli")) << *program;
}

TEST(Process, gives_status_output_and_the_last_line_of_error) {
  Process process = start("echo first >&2; echo second >&2; echo spoken; exit 3");
  std::vector<std::string> lines;
  const auto output = process.finish(std::chrono::seconds(30),
                                     [&](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(output.has_value()) << output.error().to_string();
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(output->text, "spoken\n");
  EXPECT_EQ(output->error, "second");
  EXPECT_EQ(lines, (std::vector<std::string>{"first", "second"}));
  EXPECT_FALSE(process.is_running());
}

TEST(Process, one_that_runs_beside_is_read_meanwhile) {
  // Far more than a pipe holds; the other ends only when all of it was taken.
  char name[] = "/tmp/nobounce-process-XXXXXX";
  const UniqueFd file(mkstemp(name));
  ASSERT_TRUE(file.is_open());
  const std::string flag = std::string(name) + ".done";
  Process talker =
      start("i=0; while [ $i -lt 20000 ]; do echo line $i >&2; i=$((i+1)); done; : > " + flag +
            "; exec sleep 60");
  Process waiter = start("while [ ! -e " + flag + " ]; do sleep 0.05; done");
  const auto output = waiter.finish(std::chrono::seconds(30), [](const std::string&) {}, &talker);
  EXPECT_TRUE(output.has_value()) << output.error().to_string();
  const std::string text = talker.error_text();
  EXPECT_LE(text.size(), 4096u);
  EXPECT_TRUE(text.ends_with("line 19999\n")) << text;
  unlink(flag.c_str());
  unlink(name);
}

TEST(Process, its_cpu_time_grows_while_it_works_and_is_nothing_when_it_has_ended) {
  Process process = start("while :; do :; done");
  uint64_t used_ns = 0;
  for (int i = 0; i < 3000 && used_ns < kNsPerMs; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    used_ns = process.cpu_ns();
  }
  EXPECT_GE(used_ns, kNsPerMs);
  process.kill_now();
  EXPECT_EQ(process.cpu_ns(), 0u);
}

TEST(Process, that_does_not_end_in_time_is_killed_and_said_so) {
  Process process = start("exec sleep 60");
  const auto output = process.finish(std::chrono::milliseconds(300), [](const std::string&) {});
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().code, std::errc::timed_out);
  EXPECT_FALSE(process.is_running());
}

TEST(Process, ends_with_its_handle_even_when_it_will_not) {
  MonotonicClock clock;
  const uint64_t start_ns = clock.now_ns();
  {
    Process process = start("trap '' TERM; echo hanging >&2; while :; do sleep 1; done");
    while (process.is_running() && process.error_text().empty()) std::this_thread::yield();
    EXPECT_TRUE(process.is_running());
  }
  EXPECT_LT(clock.now_ns() - start_ns, 20 * kNsPerSecond);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left behind";
}

}  // namespace
}  // namespace nobounce::cli
