// The tail loss probe (RFC 8985 7, T-42): when the end of what is outstanding goes unanswered for two
// round trips, one segment more asks for an ACK, so that RACK sees what is missing before a time-out.
//
//   in flight, nothing sacked or lost --- PTO ---> probe: new data, or the last segment again
//   answered by an ACK of more than the probe   the probe was the repair: the window is reduced once
//   answered by a D-SACK                        nothing was lost
//
// One probe a tail: none while one is out, or a time-out has not been answered. The retransmission timer
// runs beside the probe's; should it be due first, the probe goes in its place, and the timer starts
// again behind the probe.
//
// In recovery RFC 8985 leaves it to the time-out when a repair, or the one ACK that tells of it, is the
// last thing on its way and is lost; of 200 ms that is a thousand round trips here. As in QUIC (RFC 9002
// 6.2) a probe asks then too: the first segment outstanding, again. Anything it brings answers it, and
// nothing is concluded from it but by RACK.
#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// A receiver may sit on the ACK of a single segment: 40 ms where delayed ACKs are common, and late
// timers of both machines (RFC 8985 7.2, TLP.max_ack_delay).
constexpr uint64_t kPeerAckDelayNs = 50 * kNsPerMs;
// No round trip is so regular that less would mean anything.
constexpr uint64_t kProbeMinNs = 2 * RttEstimator::kGranularityNs;

}  // namespace

// Whoever sends or hears something new has cleared it.
void Machine::schedule_probe(Connection& c) noexcept {
  const bool wanted = c.sack && c.scoreboard.pipe_bytes() > 0 && c.reorder_ns == 0 &&
                      c.rtt.backoff() == 0 && c.tail_probe.kind == TailProbe::Kind::none;
  if (!wanted) {
    c.probe_ns = 0;
    return;
  }
  if (c.probe_ns != 0) return;
  uint64_t delay_ns = RttEstimator::kInitialRtoNs;
  if (c.rtt.has_sample()) delay_ns = std::max(2 * c.rtt.smoothed_ns(), kProbeMinNs);
  if (c.scoreboard.outstanding_bytes() <= c.mss) delay_ns += kPeerAckDelayNs;
  c.probe_ns = now() + delay_ns;
}

// A timer that is too early finds out when it fires: most ACKs then move no timer.
void Machine::arm_loss_timer(Connection& c) noexcept {
  if (c.state == TcpState::closed) return;
  uint64_t next_ns = c.probe_ns;
  if (c.reorder_ns != 0 && (next_ns == 0 || c.reorder_ns < next_ns)) next_ns = c.reorder_ns;
  if (next_ns == 0) return;
  if (c.loss_timer.is_armed() && c.loss_timer.deadline_ns() <= next_ns) return;
  c.loss_timer.arm(context_.timers, next_ns);
}

void Machine::on_loss_timer(Connection& c) noexcept {
  if (!may_send(c.state) || !is_link_up(c)) {
    c.reorder_ns = c.probe_ns = 0;
    return;
  }
  pin(c);
  if (c.reorder_ns != 0 && now() >= c.reorder_ns) {
    on_reorder_timeout(c);
  } else if (c.probe_ns != 0 && now() >= c.probe_ns) {
    send_probe(c);
  }
  arm_loss_timer(c);
  unpin(c);
}

void Machine::send_probe(Connection& c) noexcept {
  c.probe_ns = 0;
  if (c.scoreboard.empty()) return;
  TailProbe::Kind kind = TailProbe::Kind::none;
  uint32_t sent = 0;
  if (!c.scoreboard.is_plain() || c.snd_una < c.recover) {
    if (resend_at(c, c.snd_una, c.mss, sent)) kind = TailProbe::Kind::repair;
  } else if (c.unsent != nullptr && output_new(c, Force::probe)) {
    kind = TailProbe::Kind::new_data;
  } else if (resend_tail(c)) {
    kind = TailProbe::Kind::again;
  }
  if (kind != TailProbe::Kind::none) {
    counters_.tlp_probes.add();
    c.tail_probe = {.kind = kind, .end = c.snd_nxt};
  }
  restart_retransmit_timer(c);
}

// The last segment, as it was cut when it was sent.
bool Machine::resend_tail(Connection& c) noexcept {
  Seq begin = c.snd_nxt - 1;  // the FIN
  if (!c.fin_sent) {
    Packet* last = c.unsent != nullptr ? c.send_queue.previous(*c.unsent) : c.send_queue.back();
    NB_ASSERT(last != nullptr);
    const auto bytes = static_cast<uint32_t>(last->payload_size());
    begin = max(c.snd_una, c.snd_nxt - ((bytes - 1) % c.mss + 1));
  }
  uint32_t sent = 0;
  return resend_at(c, begin, c.mss, sent);
}

// `advances`: the ACK told of something new.
void Machine::on_probe_answer(Connection& c, const Segment& segment, bool advances) noexcept {
  if (c.tail_probe.kind == TailProbe::Kind::repair) {
    if (advances || segment.options.sack_count > 0) c.tail_probe.kind = TailProbe::Kind::none;
    return;
  }
  if (segment.ack < c.tail_probe.end) return;
  if (c.tail_probe.kind == TailProbe::Kind::again) {
    if (segment.ack == c.tail_probe.end) {
      // The first answer. The second, if there is one, says that both copies came.
      if (advances || segment.options.sack_count > 0) return;
      counters_.tlp_needless.add();
    } else {
      counters_.tlp_repaired.add();
      c.congestion.enter_paced_recovery(c.congestion.window());
      c.congestion.leave_paced_recovery();
    }
  }
  c.tail_probe.kind = TailProbe::Kind::none;
}

}  // namespace nobounce::tcp
