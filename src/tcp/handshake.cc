// The three-way handshake, both sides and simultaneous (T-10..T-16).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

// ---- LISTEN -----------------------------------------------------------------------------------

// A full backlog lets the oldest half-open connection go: a flood then only fights itself, while
// an honest peer needs no longer than its round trip.
bool Machine::make_room_half_open(Listener& listener) noexcept {
  if (listener.half_open.size() < listener.backlog &&
      half_open_ < options_.connections_max / 2 + 1 &&
      (connections_.room() > 0 || !time_wait_.empty())) {
    return true;
  }
  counters_.limit_half_open.add();
  Connection* oldest = listener.half_open.front();
  if (oldest == nullptr) return false;
  finish(*oldest, {});
  free_if_done(*oldest);
  return true;
}

void Machine::on_listen(Listener& listener, const Segment& segment, const ip::Ingress& ingress,
                        Seq isn_at_least) noexcept {
  if (segment.has(wire::kTcpRst)) return;
  if (segment.has(wire::kTcpAck)) return refuse(segment, ingress.destination, ingress.source);
  if (!segment.has(wire::kTcpSyn)) return;
  if (segment.has(wire::kTcpFin)) return;  // SYN and FIN: no honest peer sends it
  if (!make_room_half_open(listener)) return;
  Connection* c = make_connection({ingress.destination, segment.destination_port},
                                  {ingress.source, segment.source_port});
  if (c == nullptr) return;
  pin(*c);
  c->is_passive = true;
  c->listener = &listener;
  listener.half_open.push_back(*c);
  ++half_open_;
  c->options = listener.options;
  c->state = TcpState::syn_received;
  init_sequence(*c, isn_at_least);
  c->irs = segment.seq;
  open_window(*c);
  adopt_options(*c, segment.options);
  c->snd_wnd = c->snd_wnd_max = segment.window;  // never scaled in a SYN (T-4)
  c->snd_wl1 = segment.seq;
  c->snd_wl2 = c->iss;
  c->snd_nxt = c->resend_nxt = c->iss + 1;
  c->syn_sent_ns = c->progress_ns = now();
  if (!send_syn(*c)) note_blocked(*c);
  arm_send_timer(*c);
  unpin(*c);
}

// Options of the peer's SYN. What only one side offers is off (T-49, T-50). In SYN-SENT our own
// offer was everything; in SYN-RECEIVED we answer what was offered.
void Machine::adopt_options(Connection& c, const wire::TcpOptions& options) noexcept {
  c.timestamps = options.timestamps.has_value();
  if (c.timestamps) {
    c.ts_recent = options.timestamps->value;
    c.ts_recent_ns = now();
  }
  c.sack = options.sack_permitted;
  c.peer_scales = options.window_scale.has_value();
  if (c.peer_scales) {
    c.snd_shift = *options.window_scale;
  } else {
    c.snd_shift = c.rcv_shift = 0;
  }
  const uint16_t absent = c.remote.address.is_v4() ? 536 : 1220;  // MUST-15
  c.peer_mss = std::max(options.mss.value_or(absent), kMssFloor);
  refresh_mss(c);
}

// ---- SYN-SENT ---------------------------------------------------------------------------------

void Machine::on_syn_sent(Connection& c, Segment& segment) noexcept {
  const bool ack_valid = segment.has(wire::kTcpAck) && segment.ack == c.snd_nxt;
  if (segment.has(wire::kTcpAck) && !ack_valid) {  // an old half of ours at the peer (T-14)
    if (!segment.has(wire::kTcpRst)) {
      refuse(segment, c.local.address, c.remote.address);
      if (!segment.has(wire::kTcpSyn) && c.retries == 0 && !c.syn_resent_early) {
        c.syn_resent_early = true;  // C057: the RST clears the way, and the SYN follows at once
        (void)send_syn(c);
      }
    }
    return;
  }
  if (segment.has(wire::kTcpRst)) {
    if (ack_valid) finish(c, std::errc::connection_refused);
    return;
  }
  if (!segment.has(wire::kTcpSyn)) return;
  c.irs = segment.seq;
  open_window(c);
  adopt_options(c, segment.options);
  c.snd_wnd = c.snd_wnd_max = segment.window;
  c.snd_wl1 = segment.seq;
  c.snd_wl2 = segment.ack;
  if (!ack_valid) {  // simultaneous open
    c.state = TcpState::syn_received;
    c.retries = 0;
    if (!send_syn(c)) note_blocked(c);
    restart_retransmit_timer(c);
    return;
  }
  c.snd_una = segment.ack;
  c.tell_connected = true;
  become_established(c, segment);
  need_ack(c, AckNeed::now);
  // Text beside the SYN comes again after our ACK (T-13).
}

// ---- SYN-RECEIVED -----------------------------------------------------------------------------

// True: the segment is done with. False: the usual checks follow.
bool Machine::on_syn_received_syn(Connection& c, Segment& segment) noexcept {
  if (segment.has(wire::kTcpRst) || segment.seq != c.irs) return false;
  if (!segment.has(wire::kTcpAck)) {  // the peer did not get our SYN-ACK (T-16)
    if (now() >= c.challenge_ns) {
      c.challenge_ns = now() + kChallengeGapNs;
      if (!send_syn(c)) note_blocked(c);
    }
    return true;
  }
  // Simultaneous open: the peer's SYN-ACK acknowledges ours; its SYN we have.
  segment.flags = static_cast<uint8_t>(segment.flags & ~wire::kTcpSyn);
  segment.seq += 1;
  need_ack(c, AckNeed::now);
  return false;
}

// False: the segment goes no further.
bool Machine::on_syn_received_ack(Connection& c, const Segment& segment) noexcept {
  if (segment.ack != c.snd_nxt) {
    refuse(segment, c.local.address, c.remote.address);
    return false;
  }
  Listener* listener = c.listener;
  c.snd_una = segment.ack;
  c.state = TcpState::established;  // the owner may already send when it hears of it
  if (listener != nullptr) {
    Owner* owner = listener->owner->on_accept(c);
    if (!c.released) c.owner = owner;
    if (c.state == TcpState::closed) return false;  // aborted inside, or the listener closed
    if (owner == nullptr) {  // accept queue full: as if the ACK had been lost (T-15)
      counters_.limit_accept_queue.add();
      c.state = TcpState::syn_received;
      c.snd_una = c.iss;
      return false;
    }
    if (c.listener != nullptr) {  // still open
      c.listener->half_open.remove(c);
      c.listener = nullptr;
      --half_open_;
    }
    counters_.passive_opens.add();
  } else {
    c.tell_connected = true;
  }
  become_established(c, segment);
  return true;
}

void Machine::become_established(Connection& c, const Segment& segment) noexcept {
  counters_.established.add();
  c.state = TcpState::established;
  // Karn: a SYN that was sent again gives no sample, unless its timestamp tells which it was.
  if (c.retries == 0) {
    c.rtt.sample(now() - c.syn_sent_ns);
    c.congestion.start(c.mss);
  } else {
    c.rtt.syn_was_lost();
    c.congestion.start_after_syn_loss(c.mss);
  }
  c.rtt.progress();
  c.retries = 0;
  c.challenge_ns = 0;
  c.snd_wl1 = segment.seq;
  c.snd_wl2 = segment.ack;
  c.recover = c.iss;
  c.rtt_next = c.snd_nxt;
  c.heard_ns = c.progress_ns = c.last_sent_ns = now();
  c.send_timer.cancel();
  c.send_timer_kind = SendTimer::off;
  arm_life_timer(c);
  if (c.fin_queued) {
    c.state = TcpState::fin_wait_1;
  }
  c.needs_output = true;
  note_work(c);
}

}  // namespace nobounce::tcp
