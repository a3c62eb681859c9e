// Opening: connect, listen, ports (RFC 6056), initial sequence numbers (RFC 6528), MSS and windows
// as they are before the first segment.
#include <bit>

#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

constexpr uint16_t kPortFirst = 32768;
constexpr uint16_t kPortLast = 60999;
constexpr uint32_t kPorts = kPortLast - kPortFirst + 1;
constexpr uint64_t kIsnTickNs = 4000;  // RFC 9293 3.4.1

size_t ip_header_bytes(const IpAddress& address) noexcept { return address.is_v4() ? 20 : 40; }

ConnectionOptions sane(ConnectionOptions options) noexcept {
  options.receive_buffer = std::clamp<uint32_t>(options.receive_buffer, 2048, 1u << 30);
  options.keepalive_probes = std::max<uint32_t>(options.keepalive_probes, 1);
  options.keepalive_interval_ns = std::max<uint64_t>(options.keepalive_interval_ns, kNsPerSecond);
  return options;
}

}  // namespace

std::expected<uint16_t, std::errc> Machine::choose_port(const IpAddress& local,
                                                        const Endpoint& remote) noexcept {
  // A random start, then onwards: at most connections_max ports can be in use.
  uint32_t candidate = context_.random.below(kPorts);
  for (uint32_t tries = 0; tries < kPorts; ++tries) {
    const auto port = static_cast<uint16_t>(kPortFirst + candidate);
    if (!listener_table_.has_port(port) && table_.find({local, port}, remote) == nullptr) {
      return port;
    }
    candidate = candidate + 1 == kPorts ? 0 : candidate + 1;
  }
  return std::unexpected(std::errc::address_not_available);
}

void Machine::init_sequence(Connection& c, Seq at_least) noexcept {
  const auto clock = static_cast<uint32_t>(now() / kIsnTickNs);
  const auto prf = static_cast<uint32_t>(tuple_hash(isn_key_, c.local, c.remote));
  Seq iss = options_.fixed_isn ? Seq(*options_.fixed_isn) : Seq(clock + prf);
  // In place of an older connection that is still in TIME-WAIT: above all it has sent.
  if (at_least != Seq() && iss < at_least) iss = at_least;
  start_sequence(c, iss);
}

void Machine::start_sequence(Connection& c, Seq iss) noexcept {
  c.iss = iss;
  c.ts_offset = timestamp_offset(c.local, c.remote);
  c.snd_una = c.snd_nxt = c.recover = c.rtt_next = c.iss;
  c.rcv_shift = our_scale(c.options);
}

uint32_t Machine::timestamp_offset(const Endpoint& local, const Endpoint& remote) const noexcept {
  return static_cast<uint32_t>(tuple_hash(timestamp_key_, local, remote));
}

// ---- what a SYN offers, ours and the peer's -----------------------------------------------------

// The smallest shift with which the whole buffer can be announced.
uint8_t Machine::our_scale(const ConnectionOptions& options) noexcept {
  uint8_t shift = 0;
  while (shift < wire::kTcpWindowScaleMax && (uint64_t{0xffff} << shift) < options.receive_buffer) {
    ++shift;
  }
  return shift;
}

// Never scaled (T-4).
uint16_t Machine::syn_window(const ConnectionOptions& options) noexcept {
  return static_cast<uint16_t>(std::min<uint32_t>(0xffff, options.receive_buffer));
}

// What we can receive, whatever the path takes (T-52); not reduced by options (MUST-67).
uint16_t Machine::our_mss(const IpAddress& remote) const noexcept {
  const size_t headers = ip_header_bytes(remote) + wire::kTcpHeaderSize;
  const size_t mtu = ip_.device().mtu();
  return static_cast<uint16_t>(mtu > headers ? mtu - headers : kMssFloor);
}

uint16_t Machine::peer_mss(const wire::TcpOptions& options, const IpAddress& remote) noexcept {
  const uint16_t absent = remote.is_v4() ? 536 : 1220;  // MUST-15
  return std::max(options.mss.value_or(absent), kMssFloor);
}

// The peer's SYN is here: the window we announce in ours is unscaled (T-4).
void Machine::open_window(Connection& c) noexcept {
  c.rcv_nxt = c.last_ack_sent = c.irs + 1;
  c.rcv_adv = c.rcv_nxt + syn_window(c.options);
}

void Machine::refresh_mss(Connection& c) noexcept {
  if (c.path_mtu_until_ns != 0 && now() >= c.path_mtu_until_ns) c.path_mtu_until_ns = 0;
  const uint16_t route_mtu = ip_.mtu_to(c.remote.address);
  if (c.path_mtu_until_ns == 0 || c.path_mtu > route_mtu) c.path_mtu = route_mtu;
  const size_t headers = ip_header_bytes(c.remote.address) + wire::kTcpHeaderSize;
  const auto from_path =
      static_cast<uint32_t>(c.path_mtu > headers + kMssFloor ? c.path_mtu - headers : kMssFloor);
  uint32_t mss = std::min<uint32_t>(c.peer_mss, from_path);
  if (c.timestamps) mss -= uint32_t{wire::kTcpTimestampOptionSize};
  c.mss = mss;
  c.congestion.set_mss(mss);
}

std::expected<Connection*, std::errc> Machine::connect(const Endpoint& local,
                                                       const Endpoint& remote, Owner& owner,
                                                       const ConnectionOptions& options) noexcept {
  if (remote.port == 0 || remote.address.is_any() || ip_.is_group(remote.address)) {
    return std::unexpected(std::errc::address_not_available);  // T-11
  }
  Endpoint from = local;
  if (from.address.is_any()) {
    const auto source = ip_.source_for(remote.address);
    if (!source) return std::unexpected(std::errc::network_unreachable);
    from.address = *source;
  } else if (!ip_.is_ours(from.address)) {
    return std::unexpected(std::errc::address_not_available);
  }
  if (from.port == 0) {
    const auto port = choose_port(from.address, remote);
    if (!port) return std::unexpected(port.error());
    from.port = *port;
  } else if (table_.find(from, remote) != nullptr) {
    return std::unexpected(std::errc::address_in_use);
  }
  Connection* c = make_connection(from, remote);
  if (c == nullptr) return std::unexpected(std::errc::no_buffer_space);
  counters_.active_opens.add();
  c->owner = &owner;
  c->options = sane(options);
  c->state = TcpState::syn_sent;
  init_sequence(*c, Seq());
  refresh_mss(*c);
  c->snd_nxt = c->iss + 1;
  c->syn_sent_ns = c->progress_ns = now();
  if (!send_syn(*c)) note_blocked(*c);  // the timer sends it again
  arm_send_timer(*c);
  return c;
}

std::expected<Listener*, std::errc> Machine::listen(const Endpoint& local, uint32_t backlog,
                                                    ListenerOwner& owner,
                                                    const ConnectionOptions& options) noexcept {
  Endpoint at = local;
  if (at.address.is_any()) at.address = IpAddress();
  if (!at.address.is_any() && !ip_.is_ours(at.address)) {
    return std::unexpected(std::errc::address_not_available);
  }
  if (at.port == 0) {
    uint32_t candidate = context_.random.below(kPorts);
    uint32_t tries = 0;
    while (listener_table_.has_port(static_cast<uint16_t>(kPortFirst + candidate))) {
      if (++tries == kPorts) return std::unexpected(std::errc::address_in_use);
      candidate = (candidate + 1) % kPorts;
    }
    at.port = static_cast<uint16_t>(kPortFirst + candidate);
  }
  if (listener_table_.find_exact(at) != nullptr) return std::unexpected(std::errc::address_in_use);
  Listener* listener = listeners_.acquire();
  if (listener == nullptr) {
    counters_.limit_listeners.add();
    return std::unexpected(std::errc::no_buffer_space);
  }
  listener->local = at;
  listener->backlog = std::clamp<size_t>(backlog, 1, half_open_max());
  listener->owner = &owner;
  listener->options = sane(options);
  listener_table_.insert(*listener);
  return listener;
}

void Machine::close(Listener& listener) noexcept {
  while (Connection* c = listener.half_open.front()) {
    pin(*c);
    send_reset(*c);
    finish(*c, {});
    unpin(*c);
  }
  listener_table_.remove(listener);
  listeners_.release(&listener);
}

void Machine::set_options(Connection& c, const ConnectionOptions& options) noexcept {
  c.options = sane(options);
  if (is_synchronized(c.state) && c.state != TcpState::time_wait) arm_life_timer(c);
  if (c.options.nodelay && may_send(c.state)) push(c);
}

ConnectionInfo Machine::info(const Connection& c) const noexcept {
  ConnectionInfo info;
  info.state = name(c.state);
  info.local = c.local;
  info.remote = c.remote;
  info.mss = c.mss;
  info.congestion_window = c.congestion.window();
  info.slow_start_threshold = c.congestion.threshold();
  info.send_window = c.snd_wnd;
  info.receive_window = bytes_between(c.rcv_nxt, c.rcv_adv);
  info.smoothed_rtt_ns = c.rtt.smoothed_ns();
  info.rto_ns = c.rtt.rto_ns();
  info.bytes_unacked = bytes_between(c.snd_una, c.snd_nxt);
  info.retransmissions = c.retransmissions;
  return info;
}

}  // namespace nobounce::tcp
