// Acknowledgements: what the peer has, how large its window is, what was lost (T-25, T-34, T-43).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

// False: nothing of the segment is believed (RFC 5961 5.2, T-20).
bool Machine::on_ack(Connection& c, const Segment& segment) noexcept {
  const bool beyond = segment.ack > c.snd_nxt;
  if (beyond || segment.ack < c.snd_una - c.snd_wnd_max) {
    counters_.ack_invalid.add();
    challenge(c);
    return false;
  }
  if (c.snd_wnd == 0) c.retries = 0;         // a probe was answered: the peer lives (T-31)
  if (segment.ack < c.snd_una) return true;  // old, but its text may be new
  const uint32_t window_before = c.snd_wnd;
  update_send_window(c, segment);
  if (c.sack) {
    on_ack_with_sack(c, segment);
  } else if (segment.ack > c.snd_una) {
    on_new_ack(c, segment);
  } else if (segment.length() == 0 && c.snd_una != c.snd_nxt && c.snd_wnd == window_before &&
             c.snd_wnd != 0) {
    on_duplicate_ack(c);  // RFC 5681 2: no data, same window, something outstanding
  }
  if (c.state != TcpState::closed && c.snd_wnd != window_before) {
    if (c.snd_wnd > window_before) c.persist_backoff = 0;
    c.needs_output = true;
    note_work(c);
  }
  return true;
}

void Machine::update_send_window(Connection& c, const Segment& segment) noexcept {
  const bool newer =
      c.snd_wl1 < segment.seq || (c.snd_wl1 == segment.seq && c.snd_wl2 <= segment.ack);
  if (!newer) return;
  c.snd_wnd = uint32_t{segment.window} << c.snd_shift;
  c.snd_wnd_max = std::max(c.snd_wnd_max, c.snd_wnd);
  c.snd_wl1 = segment.seq;
  c.snd_wl2 = segment.ack;
}

// What lies below SEG.ACK is done with.
void Machine::take_new_ack(Connection& c, const Segment& segment, Delivery& delivery) noexcept {
  const uint32_t acked = bytes_between(c.snd_una, segment.ack);
  const bool fin_acked = c.fin_sent && segment.ack == c.snd_nxt;
  c.snd_una = segment.ack;
  c.scoreboard.acknowledged(c.snd_una, delivery);

  while (Packet* first = c.send_queue.front()) {
    if (first == c.unsent || Seq(first->transport.end_sequence) > c.snd_una) break;
    if (c.resend_cursor == first) c.resend_cursor = nullptr;
    (void)c.send_queue.pop_front();
  }
  c.tell_acked += acked - (fin_acked ? 1 : 0);
  c.retries = 0;
  c.progress_ns = now();
  c.rtt.progress();
  c.dup_acks = 0;
}

// Without SACK (T-43).
void Machine::on_new_ack(Connection& c, const Segment& segment) noexcept {
  const uint32_t flight = c.scoreboard.pipe_bytes();
  const uint32_t acked = bytes_between(c.snd_una, segment.ack);
  const bool fin_acked = c.fin_sent && segment.ack == c.snd_nxt;
  Delivery delivery;
  take_new_ack(c, segment, delivery);
  // Behind a hole that was filled by what went again, it may have waited for long.
  take_rtt_sample(c, segment, delivery.again ? 0 : delivery.newest_once_ns);
  const uint32_t left = bytes_between(c.snd_una, c.snd_nxt);
  bool restart_timer = true;
  if (c.in_recovery && segment.ack >= c.recover) {
    c.in_recovery = false;
    c.congestion.leave_recovery(left);
  } else if (c.in_recovery) {
    c.congestion.partial_in_recovery(acked);
    restart_timer = std::exchange(c.first_partial_ack, false);  // RFC 6582 3.2 step 3
    retransmit_first(c);
  } else {
    grow_window(c, flight, acked);
  }
  if (restart_timer || left == 0) restart_retransmit_timer(c);
  c.needs_output = true;
  note_work(c);
  if (fin_acked) on_fin_acked(c);
}

// `flight_bytes` before that ACK.
void Machine::grow_window(Connection& c, uint32_t flight_bytes, uint32_t acked) noexcept {
  const bool in_use = c.window_was_full || flight_bytes + c.mss > c.congestion.window() ||
                      (c.congestion.window() < c.congestion.threshold() &&
                       2 * uint64_t{flight_bytes} >= c.congestion.window());
  c.congestion.acknowledged(
      acked, in_use ? Congestion::Use::limited_by_window : Congestion::Use::limited_by_sender);
}

// One sample a flight, from what was sent once at `clean_sent_ns`; never one that a retransmission makes
// ambiguous, unless the timestamp tells which copy was answered (RFC 6298 3, RFC 7323 4.1).
void Machine::take_rtt_sample(Connection& c, const Segment& segment,
                              uint64_t clean_sent_ns) noexcept {
  if (segment.ack < c.rtt_next) return;
  if (clean_sent_ns != 0) {
    c.rtt.sample(now() - clean_sent_ns);
  } else if (c.timestamps && segment.options.timestamps && segment.options.timestamps->echo != 0) {
    const auto ms = static_cast<int32_t>(timestamp(c.ts_offset) - segment.options.timestamps->echo);
    if (ms < 0) return;
    c.rtt.sample(uint64_t{static_cast<uint32_t>(ms)} * kNsPerMs);
  } else {
    return;
  }
  c.rtt_next = c.snd_nxt;
}

void Machine::on_duplicate_ack(Connection& c) noexcept {
  ++c.dup_acks;
  c.needs_output = true;
  note_work(c);
  if (c.in_recovery) {
    c.congestion.duplicate_in_recovery();
    return;
  }
  // Not again for a window that a time-out or an earlier recovery is repairing (RFC 6582 3.2).
  if (c.dup_acks != 3 || c.snd_una <= c.recover || c.scoreboard.lost_bytes() > 0) return;
  counters_.fast_retransmits.add();
  c.in_recovery = true;
  c.first_partial_ack = true;
  c.recover = c.snd_nxt;
  c.congestion.enter_recovery(bytes_between(c.snd_una, c.snd_nxt));
  retransmit_first(c);
}

void Machine::retransmit_first(Connection& c) noexcept {
  uint32_t sent = 0;
  if (!resend_at(c, c.snd_una, c.mss, sent)) note_blocked(c);
}

void Machine::on_fin_acked(Connection& c) noexcept {
  switch (c.state) {
    case TcpState::fin_wait_1:
      c.state = TcpState::fin_wait_2;
      arm_life_timer(c);
      break;
    case TcpState::closing:
      enter_time_wait(c);
      break;
    case TcpState::last_ack:
      finish(c, {});
      break;
    default:
      break;
  }
}

}  // namespace nobounce::tcp
