#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "cli/cat.hpp"
#include "cli/standard_streams.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr size_t kDatagramMax = 65507;
constexpr size_t kPiece = 16 << 10;  // of the input, as other programs of this kind do
constexpr auto kLookUp = std::chrono::milliseconds(100);
constexpr auto kSilence = std::chrono::seconds(1);

// A server talks to whoever spoke to it first.
class Peer {
 public:
  explicit Peer(const Endpoint& known) : endpoint_(known) {}
  [[nodiscard]] Endpoint get() const {
    const std::lock_guard guard(lock_);
    return endpoint_;
  }
  [[nodiscard]] bool takes(const Endpoint& from) {
    const std::lock_guard guard(lock_);
    if (endpoint_.port == 0) endpoint_ = from;
    return endpoint_ == from;
  }

 private:
  mutable std::mutex lock_;
  Endpoint endpoint_;
};

Result<void> pump_out(Stack& stack, UdpSocket& socket, const Peer& peer, bool waits,
                      const std::atomic<bool>& done) {
  const auto piece = std::make_unique<std::byte[]>(kPiece);
  while (waits && peer.get().port == 0 && !stop_requested() && !done.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (;;) {
    const auto got = read_input({piece.get(), kPiece}, done);
    if (!got) return std::unexpected(got.error());
    if (*got == 0) return {};
    const Endpoint to = peer.get();
    for (;;) {
      const auto sent = socket.send_to({piece.get(), *got}, to);
      if (sent) break;
      if (sent.error() != std::errc::operation_would_block || stop_requested()) {
        return std::unexpected(socket_error(stack, "send to " + to.to_string(), sent.error()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the link is full
    }
  }
}

}  // namespace

Result<int> run_cat_udp(Stack& stack, const CatOptions& options) {
  Endpoint local;
  if (options.listen) local.port = *options.listen;
  auto socket = stack.udp_bind(local);
  if (!socket) {
    return std::unexpected(
        socket_error(stack, fmt::format("bind UDP port {}", local.port), socket.error()));
  }
  socket->set_receive_timeout(kLookUp);
  Peer peer(options.remote);
  std::atomic<bool> input_ended{false};
  std::atomic<bool> done{false};
  Result<void> sent;
  std::jthread sender([&] {
    sent = pump_out(stack, *socket, peer, options.listen.has_value(), done);
    input_ended.store(true);
  });
  MonotonicClock clock;
  uint64_t heard_ns = clock.now_ns();
  const auto silence =
      static_cast<uint64_t>(options.wait.value_or(std::chrono::nanoseconds(kSilence)).count());
  Result<void> received;
  const auto datagram = std::make_unique<std::byte[]>(kDatagramMax);
  bool ending = false;
  while (received && !stop_requested()) {
    const auto got = socket->recv_from({datagram.get(), kDatagramMax});
    if (got) {
      if (!peer.takes(got->from)) continue;
      heard_ns = clock.now_ns();
      received = write_output({datagram.get(), got->bytes});
    } else if (got.error() == std::errc::connection_refused) {
      received =
          std::unexpected(socket_error(stack, "talk to " + peer.get().to_string(), got.error()));
    } else if (got.error() != std::errc::operation_would_block) {
      received = std::unexpected(socket_error(stack, "receive", got.error()));
    }
    if (!input_ended.load()) continue;
    if (!ending) heard_ns = std::max(heard_ns, clock.now_ns());
    ending = true;
    if (clock.now_ns() - heard_ns > silence) break;
  }
  done.store(true);
  sender.join();
  if (!received) return std::unexpected(received.error());
  if (!sent) return std::unexpected(sent.error());
  return stop_requested() ? 128 + stop_signal() : 0;
}

}  // namespace nobounce::cli
