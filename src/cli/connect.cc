#include "cli/connect.hpp"

#include <thread>

#include "base/error.hpp"
#include "cli/guest_options.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);

}  // namespace

Result<TcpSocket> connect_to(Stack& stack, const Endpoint& remote,
                             std::chrono::nanoseconds timeout) {
  const std::string operation = "connect to " + remote.to_string();
  const auto end = std::chrono::steady_clock::now() + timeout;
  auto socket = stack.tcp_connect_start(remote);
  if (!socket) return std::unexpected(socket_error(stack, operation, socket.error()));
  for (;;) {
    if (const auto error = socket->error(); error && *error != std::errc{}) {
      return std::unexpected(socket_error(stack, operation, *error));
    }
    if (socket->is_writable()) return std::move(*socket);
    if (stop_requested()) {
      socket->abort();
      return fail(std::errc::interrupted, operation, "interrupted");
    }
    if (std::chrono::steady_clock::now() >= end) {
      socket->abort();
      return std::unexpected(socket_error(stack, operation, std::errc::timed_out));
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace nobounce::cli
