// The three-way handshake once there is a connection: both sides and simultaneous (T-10..T-16).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

// ---- both sides -------------------------------------------------------------------------------

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
  c.peer_mss = peer_mss(options, c.remote.address);
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
  if (segment.ack != c.snd_nxt && !is_earlier_cookie(c, segment)) return false;
  Listener* listener = c.listener;
  c.snd_una = segment.ack;
  c.state = TcpState::established;  // the owner may already send when it hears of it
  if (listener != nullptr) {
    Owner* owner = listener->owner->on_accept(c);
    if (!c.released) c.owner = owner;
    if (c.state == TcpState::closed) return false;  // aborted inside, or the listener closed
    if (owner == nullptr) {  // accept queue full: as if the ACK had been lost (T-15)
      counters_.accept_full_ack.add();
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
    if (c.by_cookie) counters_.cookie_accepted.add();
  } else {
    c.tell_connected = true;
  }
  become_established(c, segment);
  return true;
}

void Machine::become_established(Connection& c, const Segment& segment) noexcept {
  counters_.established.add();
  c.state = TcpState::established;
  // Karn: a SYN that was sent again gives no sample, unless its timestamp tells which it was. When a
  // cookie was sent is not known.
  if (c.retries == 0) {
    if (!c.by_cookie) c.rtt.sample(now() - c.syn_sent_ns);
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
