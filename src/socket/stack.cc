// The public face of a stack: each call is a control call to the shard and, where it blocks, a wait.
#include "nobounce/stack.hpp"

#include <algorithm>

#include "socket/echo_board.hpp"
#include "socket/stack_core.hpp"

namespace nobounce {

Stack::Stack(std::shared_ptr<StackCore> core) noexcept : core_(std::move(core)) {}
Stack::~Stack() { core_->stop(); }

// ---- TCP --------------------------------------------------------------------------------------

SocketResult<TcpSocket> Stack::tcp_connect_start(const Endpoint& remote, const Endpoint& local) {
  SocketResult<TcpCore*> result = std::unexpected(std::errc::network_down);
  const bool ran = run_on_shard(*core_->shard, [&](Shard& shard) noexcept {
    TcpCore* core = shard.acquire_tcp();
    if (core == nullptr) {
      result = std::unexpected(std::errc::no_buffer_space);
      return;
    }
    const auto connection = shard.tcp().connect(local, remote, *core, core->options);
    if (!connection) {
      shard.release(*core);
      result = std::unexpected(connection.error());
      return;
    }
    core->attach(**connection);
    result = core;
  });
  if (!ran) return std::unexpected(core_->shard->why_not());
  if (!result) return std::unexpected(result.error());
  return TcpSocket(core_, *result);
}

SocketResult<TcpSocket> Stack::tcp_connect(const Endpoint& remote, Timeout timeout,
                                           const Endpoint& local) {
  const Deadline deadline(core_->shard->context().clock, to_ns(timeout));
  auto socket = tcp_connect_start(remote, local);
  if (!socket) return socket;
  TcpCore& core = *socket->core_;
  const bool done = wait_until(core, deadline, [&core]() noexcept {
    return core.connected.load(std::memory_order_acquire) ||
           core.closed.load(std::memory_order_acquire);
  });
  if (!done) {
    socket->abort();
    return std::unexpected(std::errc::timed_out);
  }
  if (!core.connected.load(std::memory_order_acquire)) {
    const std::errc error = core.error.load(std::memory_order_relaxed);
    return std::unexpected(error == std::errc{} ? std::errc::connection_aborted : error);
  }
  return socket;
}

SocketResult<TcpListener> Stack::tcp_listen(const Endpoint& local, unsigned backlog) {
  SocketResult<ListenerCore*> result = std::unexpected(std::errc::network_down);
  const bool ran = run_on_shard(*core_->shard, [&](Shard& shard) noexcept {
    ListenerCore* core = shard.acquire_listener(backlog);
    if (core == nullptr) {
      result = std::unexpected(std::errc::no_buffer_space);
      return;
    }
    const auto listener =
        shard.tcp().listen(local, core->backlog, *core, shard.options().connection);
    if (!listener) {
      shard.release(*core);
      result = std::unexpected(listener.error());
      return;
    }
    core->listener = *listener;
    core->local = shard.tcp().local(**listener);
    result = core;
  });
  if (!ran) return std::unexpected(core_->shard->why_not());
  if (!result) return std::unexpected(result.error());
  return TcpListener(core_, *result);
}

// ---- UDP and ICMP -----------------------------------------------------------------------------

SocketResult<UdpSocket> Stack::udp_bind(const Endpoint& local) {
  SocketResult<UdpCore*> result = std::unexpected(std::errc::network_down);
  const bool ran = run_on_shard(*core_->shard, [&](Shard& shard) noexcept {
    UdpCore* core = shard.acquire_udp();
    if (core == nullptr) {
      result = std::unexpected(std::errc::no_buffer_space);
      return;
    }
    const auto port = shard.udp().bind(local, *core);
    if (!port) {
      shard.release(*core);
      result = std::unexpected(port.error());
      return;
    }
    core->port = *port;
    core->local = shard.udp().local(**port);
    result = core;
  });
  if (!ran) return std::unexpected(core_->shard->why_not());
  if (!result) return std::unexpected(result.error());
  return UdpSocket(core_, *result);
}

SocketResult<PingReply> Stack::ping(const IpAddress& to, uint16_t sequence, size_t payload_bytes,
                                    Timeout timeout) {
  const Deadline deadline(core_->shard->context().clock, to_ns(timeout));
  EchoWaiter waiter;
  waiter.to = to;
  waiter.sequence = sequence;
  std::errc refused{};
  bool ran = run_on_shard(*core_->shard, [&](Shard& shard) noexcept {
    waiter.id = static_cast<uint16_t>(shard.context().random.next_u32());
    waiter.sent_ns = shard.context().clock.now_ns();
    if (!shard.echo_board().add(waiter)) {
      refused = std::errc::no_buffer_space;
      return;
    }
    const ip::SendResult sent = shard.ip().send_echo(to, waiter.id, sequence, payload_bytes);
    if (sent == ip::SendResult::sent) return;
    shard.echo_board().remove(waiter);
    refused = sent == ip::SendResult::too_big    ? std::errc::message_size
              : sent == ip::SendResult::no_route ? std::errc::network_unreachable
                                                 : std::errc::no_buffer_space;
  });
  if (!ran) return std::unexpected(core_->shard->why_not());
  if (refused != std::errc{}) return std::unexpected(refused);
  while (!waiter.finished.load(std::memory_order_acquire) && !core_->shard->is_down()) {
    const uint32_t seen = waiter.event.prepare();
    const uint64_t left = deadline.left_ns();
    if (left == 0) break;
    if (!waiter.finished.load(std::memory_order_acquire)) {
      core_->shard->wait(waiter.event, seen, std::min(left, 10 * Shard::kPollNs));
    }
  }
  ran = run_on_shard(*core_->shard,
                     [&](Shard& shard) noexcept { shard.echo_board().remove(waiter); });
  if (waiter.finished.load(std::memory_order_acquire)) {
    if (waiter.error != std::errc{}) return std::unexpected(waiter.error);
    return waiter.reply;
  }
  return std::unexpected(ran ? std::errc::timed_out : std::errc::network_down);
}

// ---- the rest ---------------------------------------------------------------------------------

bool Stack::poll(Timeout timeout) {
  Shard& shard = *core_->shard;
  const Deadline deadline(shard.context().clock, to_ns(timeout));
  for (;;) {
    if (shard.round() > 0) return true;
    const uint64_t left = deadline.left_ns();
    if (left == 0 || shard.is_down()) return false;
    shard.sleep(left);
  }
}

std::optional<std::string> Stack::failure() const {
  if (core_->home.is_child()) return "this process was forked from the one that opened the stack";
  if (!core_->shard->is_down()) return {};
  return core_->shard->failure();
}

std::vector<CounterValue> Stack::counters() const {
  std::vector<CounterValue> values;
  for (CounterSample& sample : core_->counters->samples()) {
    values.push_back({std::move(sample.name), sample.value});
  }
  return values;
}

uint64_t Stack::counter(const std::string& name) const { return core_->counters->value(name); }
MacAddress Stack::mac() const noexcept { return core_->mac; }
uint16_t Stack::mtu() const noexcept { return core_->mtu; }
Mode Stack::mode() const noexcept { return core_->options.mode; }

}  // namespace nobounce
