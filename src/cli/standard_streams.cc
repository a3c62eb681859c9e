#include "cli/standard_streams.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr int kLookUpMs = 100;

}  // namespace

Result<size_t> read_input(MutableBytes to, const std::atomic<bool>& done) {
  while (!stop_requested() && !done.load(std::memory_order_relaxed)) {
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&entry, 1, kLookUpMs);
    if (ready < 0 && errno != EINTR) return fail_errno("read standard input");
    if (ready <= 0) continue;
    const ssize_t got = ::read(STDIN_FILENO, to.data(), to.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR && errno != EAGAIN) return fail_errno("read standard input");
  }
  return size_t{0};
}

Result<void> write_output(Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (put >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(put));
      continue;
    }
    if (errno == EAGAIN) {  // somebody else made it non-blocking
      pollfd entry{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&entry, 1, kLookUpMs);
    } else if (errno != EINTR) {
      return fail_errno("write to standard output");
    }
    if (stop_requested()) break;
  }
  return {};
}

// The number stays taken: what is printed later must not land in another file.
void close_output() noexcept {
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, STDOUT_FILENO);
  ::close(null);
}

}  // namespace nobounce::cli
