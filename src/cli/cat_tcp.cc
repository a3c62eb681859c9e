#include <fmt/format.h>

#include <memory>
#include <thread>

#include "base/log.hpp"
#include "cli/cat.hpp"
#include "cli/connect.hpp"
#include "cli/standard_streams.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr size_t kPiece = 64 << 10;
constexpr auto kLookUp = std::chrono::milliseconds(100);
constexpr auto kConnectTimeout = std::chrono::seconds(10);

bool is_pause(std::errc code) { return code == std::errc::operation_would_block; }

struct Conversation {
  Stack& stack;
  TcpSocket socket;
  std::string peer;
  std::atomic<bool> failed{false};  // one direction ends the other

  [[nodiscard]] std::unexpected<Error> error(const char* what, std::errc code) const {
    return std::unexpected(socket_error(stack, fmt::format("{} {}", what, peer), code));
  }
  [[nodiscard]] bool is_over() const noexcept {
    return stop_requested() || failed.load(std::memory_order_relaxed);
  }
};

Result<void> send_all(Conversation& with, Bytes piece) {
  while (!piece.empty() && !with.is_over()) {
    const auto sent = with.socket.send(piece);
    if (sent) {
      piece = piece.subspan(*sent);
    } else if (!is_pause(sent.error())) {
      return with.error("send to", sent.error());
    }
  }
  return {};
}

// The input's end is our FIN.
Result<void> pump_out(Conversation& with) {
  const auto piece = std::make_unique<std::byte[]>(kPiece);
  while (!with.is_over()) {
    const auto got = read_input({piece.get(), kPiece}, with.failed);
    if (!got) return std::unexpected(got.error());
    if (*got == 0) break;
    if (auto sent = send_all(with, {piece.get(), *got}); !sent) return sent;
  }
  if (with.is_over()) return {};
  if (auto ended = with.socket.shutdown(Shutdown::send); !ended) {
    return with.error("end the stream to", ended.error());
  }
  return {};
}

// What waits to be sent again must not go down with us.
Result<void> await_delivery(Conversation& with) {
  while (with.socket.unacknowledged() > 0 && !with.is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto error = with.socket.error();
  if (error && *error != std::errc{}) return with.error("deliver the rest to", *error);
  return {};
}

Result<void> pump_in(Conversation& with) {
  const auto piece = std::make_unique<std::byte[]>(kPiece);
  while (!with.is_over()) {
    const auto got = with.socket.recv({piece.get(), kPiece});
    if (!got && is_pause(got.error())) continue;
    if (!got) return with.error("receive from", got.error());
    if (*got == 0) {
      close_output();
      return {};
    }
    if (auto put = write_output({piece.get(), *got}); !put) return put;
  }
  return {};
}

// The first that comes; nobody else is let in.
Result<TcpSocket> accept(Stack& stack, const CatOptions& options) {
  const Endpoint local{{}, *options.listen};
  const std::string operation = fmt::format("listen on port {}", local.port);
  auto listener = stack.tcp_listen(local, 1);
  if (!listener) return std::unexpected(socket_error(stack, operation, listener.error()));
  if (options.verbose) log_info(fmt::format("listening on port {}", local.port));
  auto left = options.wait.value_or(std::chrono::nanoseconds::max());
  while (!stop_requested() && left > std::chrono::nanoseconds(0)) {
    const auto turn = std::min<std::chrono::nanoseconds>(left, kLookUp);
    auto socket = listener->accept(turn);
    if (socket) return std::move(*socket);
    if (!is_pause(socket.error()) && socket.error() != std::errc::timed_out) {
      return std::unexpected(socket_error(stack, operation, socket.error()));
    }
    left -= turn;
  }
  if (stop_requested()) return fail(std::errc::interrupted, operation, "interrupted");
  return fail(std::errc::timed_out, operation, "nobody has connected");
}

}  // namespace

Result<int> run_cat_tcp(Stack& stack, const CatOptions& options) {
  auto socket = options.listen
                    ? accept(stack, options)
                    : connect_to(stack, options.remote, options.wait.value_or(kConnectTimeout));
  if (!socket) return std::unexpected(socket.error());
  Conversation with{.stack = stack, .socket = std::move(*socket), .peer = {}};
  with.peer = with.socket.remote().to_string();
  if (options.verbose) log_info(fmt::format("connected to {}", with.peer));
  with.socket.set_send_timeout(kLookUp);
  with.socket.set_receive_timeout(kLookUp);
  Result<void> sent;
  std::jthread sender([&] {
    sent = pump_out(with);
    if (!sent) with.failed.store(true);
  });
  const auto received = pump_in(with);
  if (!received) with.failed.store(true);
  sender.join();
  if (sent && received) sent = await_delivery(with);
  // The far end must not take half for the whole.
  if (!sent || !received || stop_requested()) with.socket.abort();
  if (!received) return std::unexpected(received.error());
  if (!sent) return std::unexpected(sent.error());
  return stop_requested() ? 128 + stop_signal() : 0;
}

}  // namespace nobounce::cli
