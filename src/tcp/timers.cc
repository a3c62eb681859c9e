// What happens when nothing happens: SYN, retransmission, persist, delayed ACK, keepalive, the ends
// of FIN-WAIT-2 and TIME-WAIT. A timer that fires late fires once; what it spends is counted in
// sends, so a frozen machine wakes up to live connections (T-64).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

void Machine::on_send_timer(Connection& c) noexcept {
  pin(c);
  const SendTimer kind = std::exchange(c.send_timer_kind, SendTimer::off);
  if (!is_link_up(c)) {
    wait_for_link(c, kind);
  } else if (c.state == TcpState::syn_sent || c.state == TcpState::syn_received) {
    on_syn_timeout(c);
  } else if (kind == SendTimer::retransmit) {
    on_retransmit_timeout(c);
  } else if (kind == SendTimer::persist) {
    on_persist_timeout(c);
  }
  unpin(c);
}

void Machine::on_ack_timer(Connection& c) noexcept {
  pin(c);
  send_ack(c);
  unpin(c);
}

void Machine::on_life_timer(Connection& c) noexcept {
  pin(c);
  if (c.state == TcpState::time_wait || (c.state == TcpState::fin_wait_2 && c.released)) {
    finish(c, {});
  } else {
    on_keepalive(c);
  }
  unpin(c);
}

void Machine::on_syn_timeout(Connection& c) noexcept {
  const bool passive = c.listener != nullptr;
  const uint64_t waited = now() - c.syn_sent_ns;
  bool over = passive ? c.retries >= kSynAckRetriesMax
                      : c.retries >= kSynRetriesMax && waited >= kSynGiveUpNs;
  if (c.options.user_timeout_ns != 0 && c.retries > 0 && waited >= c.options.user_timeout_ns) {
    over = true;
  }
  if (over) {
    counters_.timed_out.add();
    finish(c, c.soft_error == std::errc{} ? std::errc::timed_out : c.soft_error);
    return;
  }
  if (c.retries < kSynRetriesMax) {
    ++c.retries;  // a time-out is one, also when nothing could be sent: the wait must end
    if (send_syn(c)) {
      ++c.retransmissions;
      counters_.retransmitted.add();
    } else {
      note_blocked(c);
    }
    c.rtt.back_off();
  }
  arm_send_timer(c);
}

// Has the connection waited long enough? `since_ns`: since when nothing was heard that counts.
bool Machine::gave_up(Connection& c, uint64_t since_ns) noexcept {
  const uint64_t waited = now() - since_ns;
  const uint64_t user = c.options.user_timeout_ns;
  const bool over = (user != 0 && c.retries > 0 && waited >= user) ||
                    (c.released && c.retries >= kOrphanRetriesMax) ||
                    (user == 0 && c.retries >= kDataRetriesMax && waited >= kDataGiveUpNs);
  if (!over) return false;
  counters_.timed_out.add();
  finish(c, c.soft_error == std::errc{} ? std::errc::timed_out : c.soft_error);
  return true;
}

void Machine::on_retransmit_timeout(Connection& c) noexcept {
  if (gave_up(c, c.progress_ns)) return;
  if (c.probe_ns != 0) return send_probe(c);  // it would have been next (T-42)
  counters_.timeouts.add();
  const bool first = c.retries == 0;
  if (first) c.undo.start(Undo::Cause::timeout, c.congestion, timestamp(c.ts_offset));
  c.congestion.timed_out(c.scoreboard.outstanding_bytes() - c.scoreboard.sacked_bytes(),
                         first ? Congestion::Timeout::first : Congestion::Timeout::repeated);
  c.rtt.back_off();
  send_all_again(c);
  ++c.retries;  // also when nothing could be sent: the wait must end
  guess_black_hole(c);
  uint32_t sent = 0;
  if (!resend_at(c, c.snd_una, c.mss, sent)) note_blocked(c);
  arm_send_timer(c);
}

void Machine::on_persist_timeout(Connection& c) noexcept {
  const bool window_open = bytes_between(c.snd_nxt, c.snd_una + c.snd_wnd) > 0;
  if (window_open || c.unsent == nullptr) {
    output(c, Force::yes);  // held for too long: Nagle, `more`, a small window (C005)
    return;
  }
  if (gave_up(c, c.heard_ns)) return;
  counters_.zero_window_probes.add();
  ++c.retries;
  if (!send_control(c, wire::kTcpAck, c.snd_una - 1)) note_blocked(c);
  ++c.persist_backoff;
  arm_send_timer(c);
}

// ---- keepalive (RFC 9293 3.8.4, T-61) -----------------------------------------------------------

void Machine::arm_life_timer(Connection& c) noexcept {
  if (c.state == TcpState::time_wait) return;
  if (c.state == TcpState::fin_wait_2 && c.released) {
    c.life_timer.arm(context_.timers, now() + kFinWait2Ns);
  } else if (c.options.keepalive) {
    c.life_timer.arm(context_.timers, std::max(now(), c.heard_ns + c.options.keepalive_idle_ns));
  } else {
    c.life_timer.cancel();
  }
}

void Machine::on_keepalive(Connection& c) noexcept {
  if (!c.options.keepalive || !is_synchronized(c.state)) return;
  const uint64_t idle = now() - c.heard_ns;
  if (c.keepalive_sent == 0 && idle < c.options.keepalive_idle_ns) return arm_life_timer(c);
  const bool watched = c.snd_una != c.snd_nxt || c.unsent != nullptr;  // other timers do that
  if (watched || !is_link_up(c)) {
    c.life_timer.arm(context_.timers, now() + c.options.keepalive_interval_ns);
    return;
  }
  if (c.keepalive_sent >= c.options.keepalive_probes) {
    counters_.timed_out.add();
    send_reset(c);
    finish(c, std::errc::timed_out);
    return;
  }
  counters_.keepalive_probes.add();
  if (send_control(c, wire::kTcpAck, c.snd_una - 1)) ++c.keepalive_sent;
  c.life_timer.arm(context_.timers, now() + c.options.keepalive_interval_ns);
}

}  // namespace nobounce::tcp
