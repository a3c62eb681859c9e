// The real back-end as a process of its own, and a guest stack on it: the product as a user runs it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "nobounce/stack.hpp"
#include "socket/set_up.hpp"
#include "socket/stack_core.hpp"
#include "support/guest.hpp"
#include "support/paths.hpp"

extern char** environ;

namespace nobounce::test {

using namespace std::chrono_literals;

// A child process of this test; killed at the latest when the test ends.
class Child {
 public:
  explicit Child(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    // The thread sanitizer would sleep for a second at each end: a time that tests measure.
    ::setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 0);
    const int status =
        posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(status, 0) << arguments[0];
  }
  ~Child() {
    if (pid_ > 0) kill(SIGKILL);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
  }
  [[nodiscard]] bool is_running() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_ = -1;
};

struct SystemTest : testing::Test {
  static constexpr uint16_t kEcho = 7, kDiscard = 9, kSource = 19;

  SystemTest() : SystemTest(std::vector<std::string>{}) {}
  // The folder alone.
  enum class Start : uint8_t { later };
  explicit SystemTest(Start) {
    std::string name = std::filesystem::temp_directory_path() / "nobounce-system-XXXXXX";
    directory = mkdtemp(name.data());
    socket_path = directory + "/nb.sock";
  }
  // With other words for the back-end than --socket PATH.
  explicit SystemTest(std::vector<std::string> more) : SystemTest(Start::later) {
    backend_words = std::move(more);
    start_backend();
  }
  ~SystemTest() override {
    backend.reset();
    std::filesystem::remove_all(directory);
  }

  void start_backend() {
    std::vector<std::string> words{kProgram, "backend", "--socket", socket_path};
    words.insert(words.end(), backend_words.begin(), backend_words.end());
    backend = std::make_unique<Child>(std::move(words));
    struct stat status{};
    for (int i = 0; i < 1000 && stat(socket_path.c_str(), &status) != 0; ++i) {
      std::this_thread::sleep_for(10ms);
    }
  }

  [[nodiscard]] StackOptions options(Mode mode) const {
    return guest_options(socket_path, mode, 32 << 20, 2048);
  }
  [[nodiscard]] std::unique_ptr<Stack> open(Mode mode) const { return open_stack(options(mode)); }
  static TcpSocket connect(Stack& stack, uint16_t port) {
    return connect_to_peer(stack, port, 20s);
  }

  std::string directory;
  std::string socket_path;
  std::vector<std::string> backend_words;
  std::unique_ptr<Child> backend;
};

// Payload of letters only: no eight bytes of it can be taken for an address.
inline std::byte letter(uint64_t seed, uint64_t position) {
  return static_cast<std::byte>('A' + (position * 0x9e3779b97f4a7c15 + seed) % 23);
}
inline void fill_letters(MutableBytes bytes, uint64_t seed, uint64_t position) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = letter(seed, position + i);
}

inline std::string mode_name(const testing::TestParamInfo<Mode>& info) {
  return info.param == Mode::nocopy ? "nocopy" : "bounce";
}

}  // namespace nobounce::test
