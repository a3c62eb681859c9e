#include "cli/kernel_stream.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "cli/kernel_side.hpp"
#include "cli/kernel_sockets.hpp"
#include "cli/metrics.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr std::chrono::milliseconds kLookUp{100};
constexpr uint64_t kQuietNs = 10 * kNsPerSecond;

// When to stop, and whether anything still moves.
struct Watch {
  MonotonicClock clock;
  uint64_t deadline_ns;
  uint64_t moved_ns = clock.now_ns();
  std::string operation;

  [[nodiscard]] bool is_over() { return clock.now_ns() >= deadline_ns; }
  // What a socket call returned: its bytes, 0 for a pause, or why there will be no more.
  [[nodiscard]] Result<uint64_t> judge(ssize_t moved) {
    if (stop_requested()) return fail(std::errc::interrupted, operation, "interrupted");
    const uint64_t now_ns = clock.now_ns();
    if (moved > 0) {
      moved_ns = now_ns;
      return static_cast<uint64_t>(moved);
    }
    if (errno != EAGAIN && errno != EINTR) return fail_errno(operation);
    if (now_ns > moved_ns + kQuietNs) {
      return fail(std::errc::timed_out, operation, "nothing has moved for 10 seconds");
    }
    return 0;
  }
};

Result<uint64_t> transmit(const UniqueFd& fd, Rotation& payload, Watch& watch) {
  uint64_t done = 0;
  while (!watch.is_over()) {
    const MutableBytes piece = payload.next(kKernelPieceBytes);
    const auto sent = watch.judge(::send(fd.get(), piece.data(), piece.size(), MSG_NOSIGNAL));
    if (!sent) return sent;
    payload.unused(piece.size() - *sent);
    done += *sent;
  }
  ::shutdown(fd.get(), SHUT_WR);
  // The far end's FIN says that everything has arrived.
  for (std::byte scrap{};;) {
    const ssize_t got = ::recv(fd.get(), &scrap, sizeof scrap, 0);
    if (got == 0) return done;
    if (const auto waits = watch.judge(got); !waits) return waits;
  }
}

Result<uint64_t> receive(const UniqueFd& fd, Rotation& buffer, Watch& watch) {
  uint64_t done = 0;
  while (!watch.is_over()) {
    const MutableBytes piece = buffer.next(kKernelPieceBytes);
    const ssize_t taken = ::recv(fd.get(), piece.data(), piece.size(), 0);
    if (taken == 0) {
      return fail(std::errc::connection_aborted, watch.operation, "the far end ended the stream");
    }
    const auto got = watch.judge(taken);
    if (!got) return got;
    buffer.unused(piece.size() - *got);
    done += *got;
  }
  return done;
}

}  // namespace

Result<KernelStreamResult> KernelStream::run(const std::string& address, PerfJob job,
                                             std::chrono::nanoseconds time) {
  NB_ASSERT(job != PerfJob::echo);
  const auto socket = kernel_connect(address, service_port(job));
  if (!socket) return std::unexpected(socket.error());
  limit_blocking(*socket, kLookUp);
  MonotonicClock clock;
  const uint64_t cpu_ns = process_cpu_ns();
  const uint64_t start_ns = clock.now_ns();
  Watch watch{.clock = {},
              .deadline_ns = start_ns + static_cast<uint64_t>(time.count()),
              .operation = fmt::format("stream from the kernel to the kernel at {}", address)};
  const auto bytes = job == PerfJob::transmit ? transmit(*socket, payload_, watch)
                                              : receive(*socket, payload_, watch);
  if (!bytes) return std::unexpected(bytes.error());
  return KernelStreamResult{.bytes = *bytes,
                            .seconds = static_cast<double>(clock.now_ns() - start_ns) / 1e9,
                            .cpu_ns = process_cpu_ns() - cpu_ns,
                            .congestion_control = congestion_control(*socket)};
}

}  // namespace nobounce::cli
