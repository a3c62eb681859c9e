#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <list>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "cli/payload.hpp"
#include "cli/perf.hpp"
#include "cli/print.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr auto kLookUp = std::chrono::milliseconds(100);
constexpr size_t kConnectionsMax = 64;  // each has a thread

bool is_pause(std::errc code) { return code == std::errc::operation_would_block; }

bool send_whole(TcpSocket& socket, Bytes bytes) {
  while (!bytes.empty()) {
    const auto sent = socket.send(bytes);
    if (sent) {
      bytes = bytes.subspan(*sent);
    } else if (!is_pause(sent.error()) || stop_requested()) {
      return false;
    }
  }
  return true;
}

// Serves one connection to its end; returns the bytes that moved. A far end that resets has had
// enough: that is how a source ends.
uint64_t serve(TcpSocket& socket, PerfJob job, Rotation& buffer) {
  uint64_t moved = 0;
  while (!stop_requested()) {
    const MutableBytes piece = buffer.next(64 << 10);
    if (job == PerfJob::receive) {
      if (!send_whole(socket, piece)) break;
      moved += piece.size();
      continue;
    }
    const auto got = socket.recv(piece);
    if (!got && is_pause(got.error())) continue;
    if (!got || *got == 0) break;
    if (job == PerfJob::echo && !send_whole(socket, piece.first(*got))) break;
    moved += *got;
  }
  return moved;
}

struct Worker {
  std::jthread thread;
  std::atomic<bool> done{false};
};

class Server {
 public:
  Server(Stack& stack, const PerfOptions& options) : stack_(stack), options_(options) {}

  Result<void> listen(PerfJob job, uint16_t port) {
    auto listener = stack_.tcp_listen({options_.guest.stack.address.address, port});
    if (!listener) {
      return std::unexpected(
          socket_error(stack_, fmt::format("listen on port {}", port), listener.error()));
    }
    print_out("{} on {}\n",
              job == PerfJob::transmit  ? "discard"
              : job == PerfJob::receive ? "source"
                                        : "echo",
              listener->local().to_string());
    services_.emplace_back(*std::move(listener), job);
    return {};
  }

  Result<int> run() {
    flush_output();
    while (!stop_requested()) {
      for (auto& [listener, job] : services_) {
        auto socket = listener.accept(kLookUp / services_.size());
        if (socket) {
          start(*std::move(socket), job);
        } else if (!is_pause(socket.error()) && socket.error() != std::errc::timed_out) {
          return std::unexpected(socket_error(stack_, "accept a connection", socket.error()));
        }
      }
      workers_.remove_if([](const Worker& worker) { return worker.done.load(); });
    }
    return 0;
  }

 private:
  void start(TcpSocket socket, PerfJob job) {
    if (workers_.size() >= kConnectionsMax) {
      fmt::print(stderr, "refused {}: {} connections are served already\n",
                 socket.remote().to_string(), workers_.size());
      socket.abort();
      return;
    }
    Worker& worker = workers_.emplace_back();
    worker.thread = std::jthread([this, job, &worker, kept = std::move(socket)]() mutable {
      serve_one(kept, job);
      kept.close();
      worker.done.store(true);
    });
  }

  void serve_one(TcpSocket& socket, PerfJob job) {
    socket.set_send_timeout(kLookUp);
    socket.set_receive_timeout(kLookUp);
    const std::string peer = socket.remote().to_string();
    Rotation buffer = job == PerfJob::receive ? Rotation::seeded(kRotationBytes, options_.seed)
                                              : Rotation::blank(kRotationBytes);
    MonotonicClock clock;
    const CounterMap before = snapshot(stack_);
    const uint64_t start_ns = clock.now_ns();
    const uint64_t bytes = serve(socket, job, buffer);
    const double seconds = static_cast<double>(clock.now_ns() - start_ns) / 1e9;
    const Metrics metrics = measure(bytes, seconds, difference(before, snapshot(stack_)));
    const std::lock_guard guard(print_lock_);
    print_out("{} {}: {}", peer, to_string(job), to_text(metrics));
    flush_output();
  }

  Stack& stack_;
  const PerfOptions& options_;
  std::list<std::pair<TcpListener, PerfJob>> services_;
  std::list<Worker> workers_;
  std::mutex print_lock_;
};

}  // namespace

Result<int> run_perf_server(Stack& stack, const PerfOptions& options) {
  Server server(stack, options);
  const auto open = [&](PerfJob job, uint16_t port) { return server.listen(job, port); };
  if (options.port) {
    if (const auto opened = open(options.job, *options.port); !opened) {
      return std::unexpected(opened.error());
    }
    return server.run();
  }
  for (const PerfJob job : {PerfJob::transmit, PerfJob::receive, PerfJob::echo}) {
    if (const auto opened = open(job, service_port(job)); !opened) {
      return std::unexpected(opened.error());
    }
  }
  return server.run();
}

}  // namespace nobounce::cli
