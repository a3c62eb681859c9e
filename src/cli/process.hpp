// Child processes of the demo. A child never outlives its handle, nor this process: the kernel kills
// it when we are gone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::cli {

// The path of this very program.
[[nodiscard]] Result<std::string> this_program();

class Process {
 public:
  // Starts words[0] (a path) with these words; its standard output and error come to us.
  static Result<Process> start(std::vector<std::string> words);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();  // stop()

  struct Output {
    int status = 0;     // exit status; 128 + signal when one ended it
    std::string text;   // standard output
    std::string error;  // the last line of standard error
  };
  // Reads until it ends, at most `limit`; each line of standard error goes to `on_line` as it comes.
  // After `limit`, or when we are asked to stop, it is killed and an error says so. Meanwhile the
  // standard error of `beside` is read too, so that it never waits for room in its pipe.
  Result<Output> finish(std::chrono::nanoseconds limit,
                        const std::function<void(const std::string&)>& on_line,
                        Process* beside = nullptr);

  [[nodiscard]] bool is_running();
  // Asks it to end (SIGTERM), insists after two seconds (SIGKILL), collects it.
  void stop() noexcept;
  void signal(int number) noexcept;  // nothing when it has ended
  void kill_now() noexcept;          // SIGKILL, and collects it
  // CPU time of all its threads so far; 0 when it has ended.
  [[nodiscard]] uint64_t cpu_ns() const noexcept;
  // The end of what it has written to standard error up to now: without waiting.
  [[nodiscard]] std::string error_text();

 private:
  Process(pid_t pid, UniqueFd out, UniqueFd err) noexcept
      : pid_(pid), out_(std::move(out)), err_(std::move(err)) {}
  [[nodiscard]] int collect() noexcept;
  bool read_error();  // once; false at the end of the pipe

  pid_t pid_;
  int status_ = 0;
  UniqueFd out_, err_;
  std::string error_;  // the end of standard error, where finish() does not take it line by line
};

}  // namespace nobounce::cli
