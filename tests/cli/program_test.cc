// The program from outside: what it refuses and how it says so. No device is needed here.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/counters.hpp"
#include "support/paths.hpp"

namespace nobounce::cli {
namespace {

struct Ran {
  int status = -1;
  std::string output;  // standard output and error together
};

Ran run_command(const std::string& command) {
  Ran result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.output.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

Ran run(const std::string& arguments) {
  return run_command(std::string(test::kProgram) + " " + arguments + " 2>&1 </dev/null");
}

// Standard error alone; standard output goes where `output` says.
Ran run_error(const std::string& arguments, const std::string& output) {
  return run_command(std::string(test::kProgram) + " " + arguments + " 2>&1 " + output +
                     " </dev/null");
}

constexpr const char* kGuest = "--net vhost-user:/nowhere/nb.sock --ip 10.77.0.2/24 ";

TEST(Program, wrong_command_lines_get_one_line_and_status_2) {
  const struct {
    std::string arguments;
    const char* expected;
  } kCases[] = {
      {"", "no command; there are: backend,"},
      {"prf", "unknown command 'prf'; did you mean 'perf'?"},
      {"frobnicate", "unknown command 'frobnicate'; there are:"},
      {"--quick", "unknown option '--quick'"},
      {"perf --moed bounce", "unknown option '--moed'; did you mean '--mode'?"},
      {"perf --modes=bounce", "did you mean '--mode'?"},
      {"version now", "'now' is one word too many"},
      {"perf", "--net: missing"},
      {"perf --net tap0", "'tap0' is not a device, e.g. vhost-user:"},
      {"perf --net vhost-user:", "is not a device"},
      {"perf --net vhost-user:/x", "--ip: missing"},
      {"perf --ip 10.77.0.2", "'10.77.0.2' is not an address a host can have with its prefix"},
      {"perf --ip 10.77.0.2/24 --ip 10.78.0.255/24", "'10.78.0.255/24' is not an address"},
      {"perf --route 10.88.0.0/16", "'10.88.0.0/16' is not a prefix and its gateway, e.g."},
      {std::string("perf ") + kGuest + "10.78.0.2/24", "'10.78.0.2/24' is one word too many"},
      {"perf --mac 02:00", "'02:00' is not a unicast MAC address"},
      {"perf --mtu 10", "'10' is not a number of bytes from 576 to 65535"},
      {"perf --pool-size 64X", "'64X' is not a size from 4M to 64G"},
      {"perf --queue-size 100", "'100' is not a power of two"},
      {"perf --mode copy", "'copy' is not one of the two modes, bounce or nocopy"},
      {"perf --on-disconnect retry", "'retry' is not one of wait, fail"},
      {std::string("perf ") + kGuest, "missing: --client ADDR, or --server"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1 --server", "exclude each other"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1 --reverse --echo", "exclude each other"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1 --file x --time 3", "the whole file"},
      {std::string("perf ") + kGuest + "--server --time 3", "they are the client's"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1:0", "is not an address with or without"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1 --time never", "is not a time"},
      {std::string("perf ") + kGuest + "--client 10.77.0.1 --bytes 0", "is not a size"},
      {std::string("ping ") + kGuest, "missing: whom to ask"},
      {std::string("ping ") + kGuest + "host", "'host' is not an address"},
      {std::string("ping ") + kGuest + "-s 70000 10.77.0.1", "is not a number of bytes"},
      {"backend", "--socket: missing"},
      {"backend --socket /x --net tap",
       "'tap' is not a network of the device; there are: peer, link, tap:NAME"},
      {"backend --socket /x --net link --ip 10.77.0.1/24", "--ip: only with --net peer"},
      {"backend --socket /x --net link --mac 02:00:00:00:00:01", "--mac: only with --net peer"},
      {"backend --mtu 100", "'100' is not a number of bytes from 576 to 65535"},
      {"backend --queue-size 16", "'16' is not a power of two from 32 to 32768"},
      {"backend --config /tmp", "--config: /tmp: Is a directory"},
      {"perf --config /no/such/file", "--config: /no/such/file: No such file or directory"},
      {"perf --config /proc/self/mem", "--config: /proc/self/mem: Input/output error"},
      {"perf --config /dev/zero", "--config: /dev/zero: it is larger than 1 MiB"},
      {"demo --rounds 0", "'0' is not a number from 1 to 100"},
  };
  for (const auto& test : kCases) {
    const Ran result = run(test.arguments);
    EXPECT_EQ(result.status, 2) << test.arguments << "\n" << result.output;
    EXPECT_NE(result.output.find(test.expected), std::string::npos) << test.arguments << "\n"
                                                                    << result.output;
    EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << test.arguments << "\n"
                                                          << result.output;
  }
}

TEST(Program, help_has_examples) {
  for (const char* command : {"", "backend ", "perf ", "ping ", "stat ", "demo "}) {
    const Ran result = run(std::string(command) + "--help");
    EXPECT_EQ(result.status, 0) << command;
    EXPECT_NE(result.output.find("Example"), std::string::npos) << command << result.output;
  }
}

TEST(Program, says_its_version) {
  EXPECT_EQ(run("version").output, "nobounce " NOBOUNCE_VERSION "\n");
  EXPECT_EQ(run("--version").output, "nobounce " NOBOUNCE_VERSION "\n");
}

// Standard output that takes nothing: no room, and not there.
void expect_output_refused(const std::string& arguments) {
  const Ran full = run_error(arguments, ">/dev/full");
  EXPECT_EQ(full.status, 1) << arguments;
  EXPECT_EQ(full.output, "nobounce: write to standard output: No space left on device\n");
  const Ran closed = run_error(arguments, ">&-");
  EXPECT_EQ(closed.status, 1) << arguments;
  EXPECT_EQ(closed.output, "nobounce: write to standard output: Bad file descriptor\n");
}

TEST(Program, output_that_cannot_be_written_is_one_clear_line_and_status_1) {
  for (const char* arguments : {"version", "--version", "perf --help"}) {
    expect_output_refused(arguments);
  }
}

TEST(Program, a_device_that_is_not_there_is_one_clear_line_and_status_1) {
  const Ran result = run(std::string("ping ") + kGuest + "10.77.0.1");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.output.find("/nowhere/nb.sock"), std::string::npos) << result.output;
}

class Stat : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/nobounce_stat_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    before_.empty() ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }
  std::string directory_, before_;
};

// More than stdio's buffer, and less: the failure shows at a write, or at the end.
TEST_F(Stat, output_that_cannot_be_written_is_one_clear_line_and_status_1) {
  expect_output_refused("stat --json");
  auto registry = CounterRegistry::publish("guest-" + std::to_string(getpid()));
  ASSERT_TRUE(registry.has_value()) << registry.error().to_string();
  for (int i = 0; i < 300; ++i) (void)(*registry)->counter("a.counter_" + std::to_string(i));
  expect_output_refused("stat --json");
  expect_output_refused("stat --zeros");
  const std::string reader_leaves = std::string(test::kProgram) + " stat --json | head -n 1";
  EXPECT_EQ(run_command("(" + reader_leaves + " >/dev/null) 2>&1").output, "");
  // What failed for its own reason says that, and no more.
  const Ran failed = run_error("stat nobody", ">/dev/full");
  EXPECT_EQ(failed.status, 1);
  EXPECT_EQ(std::ranges::count(failed.output, '\n'), 1) << failed.output;
  EXPECT_NE(failed.output.find("nobody"), std::string::npos) << failed.output;
}

TEST_F(Stat, counters_by_name_non_zero_first) {
  auto registry = CounterRegistry::publish("guest-" + std::to_string(getpid()));
  ASSERT_TRUE(registry.has_value()) << registry.error().to_string();
  (void)(*registry)->counter("a.zero");
  (*registry)->counter("b.some").add(5);
  (*registry)->counter("a.more").add(7);
  const Ran text = run("stat --zeros");
  EXPECT_EQ(text.status, 0);
  const size_t more = text.output.find("a.more");
  const size_t some = text.output.find("b.some");
  const size_t zero = text.output.find("a.zero");
  EXPECT_LT(more, some) << text.output;
  EXPECT_LT(some, zero) << text.output;
  EXPECT_NE(zero, std::string::npos);
  EXPECT_EQ(run("stat").output.find("a.zero"), std::string::npos);
  const Ran json = run("stat --json " + std::to_string(getpid()));
  EXPECT_EQ(json.status, 0);
  const auto parsed = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_FALSE(parsed.is_discarded()) << json.output;
  ASSERT_EQ(parsed.size(), 1u);
  EXPECT_EQ(parsed[0]["pid"], getpid());
  EXPECT_EQ(parsed[0]["counters"]["b.some"], 5);
  EXPECT_EQ(parsed[0]["counters"]["a.zero"], 0);
}

TEST_F(Stat, processes_that_were_killed_and_files_of_others_are_passed_over) {
  ASSERT_TRUE(runtime_directory().has_value());
  std::ofstream(directory_ + "/nobounce/notes-1") << "no counters";
  std::ofstream(directory_ + "/nobounce/control.sock") << "";
  {
    auto registry = CounterRegistry::publish("gone-4194305");  // beyond the largest pid
    ASSERT_TRUE(registry.has_value());
    const Ran result = run("stat");
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.output.find("none publishes counters"), std::string::npos) << result.output;
  }
  EXPECT_EQ(run("stat --json").output, "[]\n");
  EXPECT_EQ(run("stat nobody").status, 1);
}

}  // namespace
}  // namespace nobounce::cli
