// LISTEN (T-10, T-15): SYNs and what comes instead of them.
//
// Two queues stand before accept(): half-open connections, bounded by the listener's backlog, and
// accepted ones, the owner's, who says whether there is room.
//
//   accept queue  half-open  SYN                             ACK of a cookie
//   full          -          dropped: the peer tries again   dropped: the peer sends it again
//   room          room       half-open connection            connection
//   room          full       cookie (syn_cookie.hpp)         connection
//
// A peer that was answered believes it is connected, so nothing that was answered is taken back: no
// half-open connection is let go for another, and what has to wait is dropped in silence, never
// reset. A flood of SYNs only keeps the half-open queue full; past it, nothing is kept for a SYN.
// Limit: behind a cookie we cannot send the SYN-ACK again. A peer whose only acknowledgement was
// lost, or found the accept queue full, is connected when it sends something, as its data is sent
// again; one that waits for us to speak first waits in vain.
#include "tcp/machine.hpp"

namespace nobounce::tcp {

// Counts why not. A full pool also drops: a cookie would promise what could not be kept.
Machine::Admission Machine::admit(Listener& listener) noexcept {
  if (!listener.owner->has_room()) {
    counters_.accept_full_syn.add();
    return Admission::drop;
  }
  if (connections_.room() == 0 && time_wait_.empty()) {
    counters_.limit_connections.add();
    return Admission::drop;
  }
  if (listener.half_open.size() >= listener.backlog || half_open_ >= half_open_max()) {
    counters_.limit_half_open.add();
    return Admission::cookie;
  }
  return Admission::queue;
}

void Machine::on_listen(Listener& listener, Segment& segment, const Endpoint& local,
                        const Endpoint& remote, Seq isn_at_least) noexcept {
  if (segment.has(wire::kTcpRst)) return;
  if (segment.has(wire::kTcpAck)) return on_cookie(listener, segment, local, remote);
  if (!segment.has(wire::kTcpSyn)) return;
  if (segment.has(wire::kTcpFin)) return;  // SYN and FIN: no honest peer sends it
  switch (admit(listener)) {
    case Admission::drop:
      return;
    case Admission::cookie:
      return send_cookie(listener, segment, local, remote);
    case Admission::queue:
      break;
  }
  Connection* c = make_half_open(listener, local, remote);
  if (c == nullptr) return;
  pin(*c);
  init_sequence(*c, isn_at_least);
  take_syn(*c, segment.seq, segment.window, segment.options);
  if (!send_syn(*c)) note_blocked(*c);
  arm_send_timer(*c);
  unpin(*c);
}

Connection* Machine::make_half_open(Listener& listener, const Endpoint& local,
                                    const Endpoint& remote) noexcept {
  Connection* c = make_connection(local, remote);
  if (c == nullptr) return nullptr;
  c->is_passive = true;
  c->listener = &listener;
  listener.half_open.push_back(*c);
  ++half_open_;
  c->options = listener.options;
  c->state = TcpState::syn_received;
  return c;
}

// Our numbers are chosen; these are the peer's.
void Machine::take_syn(Connection& c, Seq irs, uint16_t window,
                       const wire::TcpOptions& options) noexcept {
  c.irs = irs;
  open_window(c);
  adopt_options(c, options);
  c.snd_wnd = c.snd_wnd_max = window;  // never scaled in a SYN (T-4)
  c.snd_wl1 = irs;
  c.snd_wl2 = c.iss;
  c.snd_nxt = c.iss + 1;
  c.syn_sent_ns = c.progress_ns = now();
}

// ---- cookies ----------------------------------------------------------------------------------

// A SYN-ACK from the SYN alone. What of it is lost on its way the peer's next SYN asks for again.
void Machine::send_cookie(Listener& listener, const Segment& segment, const Endpoint& local,
                          const Endpoint& remote) noexcept {
  PacketPtr packet = context_.packets.make(kSegmentHeadroom);
  if (packet == nullptr) {
    counters_.no_packet.add();
    return;
  }
  const wire::TcpOptions& offered = segment.options;
  const CookieFields fields = carried_by_cookie({.mss = peer_mss(offered, remote.address),
                                                 .timestamps = offered.timestamps.has_value(),
                                                 .window_scale = offered.window_scale,
                                                 .sack_permitted = offered.sack_permitted});
  wire::TcpHeader header;
  header.source_port = local.port;
  header.destination_port = remote.port;
  header.sequence = make_cookie(cookie_key_, {local, remote, segment.seq}, fields, now()).value();
  header.acknowledgement = (segment.seq + 1).value();
  header.flags = wire::kTcpSyn | wire::kTcpAck;
  header.window = syn_window(listener.options);
  header.options.mss = our_mss(remote.address);
  header.options.sack_permitted = fields.sack_permitted;
  if (fields.window_scale) header.options.window_scale = our_scale(listener.options);
  if (fields.timestamps) {
    const uint32_t clock = timestamp(timestamp_offset(local, remote));
    header.options.timestamps = {stamp_cookie(clock, fields), offered.timestamps->value};
  }
  if (send_down(std::move(packet), header, local.address, remote.address) != ip::SendResult::sent) {
    return;
  }
  counters_.segments_out.add();
  counters_.cookie_sent.add();
  listener.cookies_until_ns = now() + kCookieLifeMaxNs;
}

// Counts what is refused.
std::expected<CookieFields, CookieRefusal> Machine::judge_cookie(const Listener& listener,
                                                                 const Segment& segment,
                                                                 const Endpoint& local,
                                                                 const Endpoint& remote) noexcept {
  if (segment.has(wire::kTcpSyn) || now() >= listener.cookies_until_ns) {
    counters_.cookie_unasked.add();
    return std::unexpected(CookieRefusal::unasked);
  }
  std::optional<uint32_t> echo;
  if (segment.options.timestamps) echo = segment.options.timestamps->echo;
  auto fields =
      check_cookie(cookie_key_, {local, remote, segment.seq - 1}, segment.ack - 1, echo, now());
  if (!fields) {
    switch (fields.error()) {
      case CookieRefusal::unasked:
        break;
      case CookieRefusal::forged:
        counters_.cookie_forged.add();
        break;
      case CookieRefusal::expired:
        counters_.cookie_expired.add();
        break;
      case CookieRefusal::misplaced:
        counters_.cookie_misplaced.add();
        break;
    }
  }
  return fields;
}

// An ACK without a connection. It becomes one, is refused, or is dropped to come again; nothing is
// taken before it proved to be ours.
void Machine::on_cookie(Listener& listener, Segment& segment, const Endpoint& local,
                        const Endpoint& remote) noexcept {
  const auto fields = judge_cookie(listener, segment, local, remote);
  if (!fields) {
    if (fields.error() != CookieRefusal::misplaced) refuse(segment, local.address, remote.address);
    return;
  }
  if (!listener.owner->has_room()) {
    counters_.accept_full_cookie.add();
    return;
  }
  Connection* c = make_half_open(listener, local, remote);
  if (c == nullptr) return;
  pin(*c);
  take_cookie(*c, segment, *fields);
  on_segment(*c, segment);                                 // with its data, like any ACK of our SYN
  if (c->state == TcpState::syn_received) finish(*c, {});  // not taken: as if it had been lost
  unpin(*c);
}

// The connection is as it would be had it been half-open since the SYN.
void Machine::take_cookie(Connection& c, const Segment& segment,
                          const CookieFields& fields) noexcept {
  wire::TcpOptions options;
  options.mss = fields.mss;
  options.window_scale = fields.window_scale;
  options.sack_permitted = fields.sack_permitted;
  if (fields.timestamps) options.timestamps = segment.options.timestamps;
  start_sequence(c, segment.ack - 1);
  take_syn(c, segment.seq - 1, segment.window, options);
  c.by_cookie = true;
}

// The ACK of a half-open connection that acknowledges something else. The peer's SYN may have come
// twice, before there was room in the queue and after: then it holds on to the cookie it was sent
// first. False: the segment was answered, or dropped.
bool Machine::is_earlier_cookie(Connection& c, const Segment& segment) noexcept {
  auto refusal = CookieRefusal::unasked;
  if (c.listener != nullptr) {
    const auto fields = judge_cookie(*c.listener, segment, c.local, c.remote);
    if (fields) {
      take_cookie(c, segment, *fields);
      return true;
    }
    refusal = fields.error();
  }
  if (refusal != CookieRefusal::misplaced) refuse(segment, c.local.address, c.remote.address);
  return false;
}

}  // namespace nobounce::tcp
