#include "cli/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <thread>

#include "base/clock.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr int kPollMs = 100;
constexpr uint64_t kGraceNs = 2 * kNsPerSecond;
constexpr size_t kErrorKept = 4096;

// In the child, between fork and exec: system calls only.
[[noreturn]] void become(const char* path, char* const* arguments, int out, int err,
                         pid_t parent) noexcept {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != parent) _exit(126);  // it was gone before we asked
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  execv(path, arguments);
  _exit(127);
}

int exit_status(int wait_status) noexcept {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

// Appends what is there; false at the end of the pipe.
bool read_some(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t got = read(fd, buffer.data(), buffer.size());
  if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

Result<std::string> this_program() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error)
    return fail(std::errc::no_such_file_or_directory, "find this program", error.message());
  return path;
}

Result<Process> Process::start(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return fail_errno("make a pipe");
  UniqueFd out_read(out[0]);
  const UniqueFd out_write(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return fail_errno("make a pipe");
  UniqueFd err_read(err[0]);
  const UniqueFd err_write(err[1]);
  fcntl(out_read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err_read.get(), F_SETFL, O_NONBLOCK);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fail_errno("start a process");
  if (pid == 0) become(words[0].c_str(), pointers.data(), out_write.get(), err_write.get(), parent);
  return Process(pid, std::move(out_read), std::move(err_read));
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)),
      error_(std::move(other.error_)) {}

Process::~Process() { stop(); }

bool Process::is_running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  status_ = exit_status(status);
  pid_ = -1;
  return false;
}

int Process::collect() noexcept {
  if (pid_ >= 0) {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = exit_status(status);
    pid_ = -1;
  }
  return status_;
}

void Process::stop() noexcept {
  if (!is_running()) return;
  kill(pid_, SIGTERM);
  MonotonicClock clock;
  for (const uint64_t end_ns = clock.now_ns() + kGraceNs; clock.now_ns() < end_ns;) {
    if (!is_running()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill_now();
}

void Process::signal(int number) noexcept {
  if (is_running()) kill(pid_, number);
}

void Process::kill_now() noexcept {
  signal(SIGKILL);
  (void)collect();
}

uint64_t Process::cpu_ns() const noexcept {
  clockid_t clock{};
  timespec time{};
  if (pid_ < 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    return 0;
  }
  return static_cast<uint64_t>(time.tv_sec) * kNsPerSecond + static_cast<uint64_t>(time.tv_nsec);
}

Result<Process::Output> Process::finish(std::chrono::nanoseconds limit,
                                        const std::function<void(const std::string&)>& on_line,
                                        Process* beside) {
  MonotonicClock clock;
  const uint64_t end_ns = clock.now_ns() + static_cast<uint64_t>(limit.count());
  Output output;
  std::string pending;
  bool out_open = true;
  bool err_open = true;
  while (out_open || err_open) {
    if (stop_requested() || clock.now_ns() > end_ns) {
      stop();
      return stop_requested() ? fail(std::errc::interrupted, "wait for a process", "interrupted")
                              : fail(std::errc::timed_out, "wait for a process",
                                     "it did not end in time and was killed");
    }
    std::array<pollfd, 3> fds{{{out_open ? out_.get() : -1, POLLIN, 0},
                               {err_open ? err_.get() : -1, POLLIN, 0},
                               {beside != nullptr ? beside->err_.get() : -1, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), kPollMs) <= 0) continue;
    if (fds[0].revents != 0) out_open = read_some(out_.get(), output.text);
    if (fds[1].revents != 0) err_open = read_some(err_.get(), pending);
    if (fds[2].revents != 0 && !beside->read_error()) beside = nullptr;
    for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      output.error = pending.substr(0, end);
      pending.erase(0, end + 1);
      on_line(output.error);
    }
  }
  output.status = collect();
  return output;
}

bool Process::read_error() {
  const bool open = read_some(err_.get(), error_);
  if (error_.size() > kErrorKept) error_.erase(0, error_.size() - kErrorKept);
  return open;
}

std::string Process::error_text() {
  pollfd error{err_.get(), POLLIN, 0};
  while (poll(&error, 1, 0) == 1 && read_error()) {
  }
  return error_;
}

}  // namespace nobounce::cli
