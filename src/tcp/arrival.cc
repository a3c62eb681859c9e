// Segment arrival (RFC 9293 3.10.7): whom it is for, and the checks in their order.
#include "tcp/machine.hpp"

namespace nobounce::tcp {

void Machine::receive(PacketPtr packet, const ip::Ingress& ingress) noexcept {
  counters_.segments_in.add();
  if (!ingress.to_unicast || ip_.is_group(ingress.source) || ingress.source.is_any()) {
    counters_.not_unicast.add();  // T-11, T-22: never answered
    return;
  }
  auto parsed = parse_segment(std::move(packet), ingress, context_.arena);
  if (!parsed) {
    switch (parsed.error()) {
      case SegmentCause::bad_header:
        counters_.bad_header.add();
        break;
      case SegmentCause::bad_checksum:
        counters_.bad_checksum.add();
        break;
      case SegmentCause::no_memory:
        counters_.no_packet.add();
        break;
    }
    return;
  }
  Segment& segment = *parsed;
  const Endpoint local{ingress.destination, segment.destination_port};
  const Endpoint remote{ingress.source, segment.source_port};
  Connection* c = table_.find(local, remote);
  if (c != nullptr && (c->state != TcpState::time_wait || !reopens(*c, segment))) {
    pin(*c);
    on_segment(*c, segment);
    unpin(*c);
    return;
  }
  Listener* listener = remote.port != 0 ? listener_table_.find(local) : nullptr;
  Seq isn_at_least;
  if (c != nullptr) {
    // T-58: a new life of the same pair, from the queue or not at all. A cookie's number may lie
    // below what the old one has sent, so without room the old one rests on.
    if (listener != nullptr && admit(*listener) != Admission::queue) return;
    isn_at_least = c->snd_nxt + 0x10000 + 1;
    finish(*c, {});
    free_if_done(*c);
  }
  if (listener != nullptr) return on_listen(*listener, segment, local, remote, isn_at_least);
  counters_.no_listener.add();
  refuse(segment, ingress.destination, ingress.source);
}

void Machine::on_segment(Connection& c, Segment& segment) noexcept {
  if (segment.has(wire::kTcpRst)) counters_.resets_in.add();
  if (c.state == TcpState::syn_sent) return on_syn_sent(c, segment);
  if (segment.has(wire::kTcpSyn) && c.state == TcpState::syn_received &&
      on_syn_received_syn(c, segment)) {
    return;
  }
  // RFC 5961 4.2: a SYN is answered whatever its sequence number, and whatever its options: a peer
  // that forgot the connection must learn of it.
  if (segment.has(wire::kTcpSyn) && !segment.has(wire::kTcpRst)) return challenge(c);
  if (!passes_timestamps(c, segment)) return;
  if (!is_acceptable(c, segment)) return on_unacceptable(c, segment);
  if (segment.has(wire::kTcpRst)) return on_reset(c, segment);
  if (!segment.has(wire::kTcpAck)) {
    counters_.no_ack_flag.add();
    return;
  }
  if (c.state == TcpState::syn_received && !on_syn_received_ack(c, segment)) return;
  if (c.state == TcpState::time_wait) return on_time_wait(c, segment);
  c.heard_ns = now();
  c.keepalive_sent = 0;
  if (!on_ack(c, segment) || c.state == TcpState::closed) return;
  if (c.timestamps && segment.seq <= c.last_ack_sent) {  // RFC 7323 4.3 (2)
    c.ts_recent = segment.options.timestamps->value;
    c.ts_recent_ns = now();
  }
  if (c.state == TcpState::time_wait) {
    if (segment.length() > 0) need_ack(c, AckNeed::now);
    return;
  }
  on_text(c, segment);
}

// Timestamps (T-50, T-51). Neither rule applies to a RST.
bool Machine::passes_timestamps(Connection& c, const Segment& segment) noexcept {
  if (!c.timestamps || segment.has(wire::kTcpRst)) return true;
  if (!segment.options.timestamps) {
    counters_.no_timestamp.add();
    return false;
  }
  const int32_t age = static_cast<int32_t>(segment.options.timestamps->value - c.ts_recent);
  if (age >= 0) return true;
  if (now() - c.ts_recent_ns > kPawsIdleNs) return true;  // too old to compare with
  counters_.paws.add();
  if (segment.payload > 0) {
    send_ack(c);
  } else {
    challenge(c);
  }
  return false;
}

// RFC 9293 3.10.7.4, table of four, with the window we promised. With a closed window, a segment
// at its edge is let in for its ACK, and its text is cut away later (MUST-66).
bool Machine::is_acceptable(const Connection& c, const Segment& segment) const noexcept {
  const uint32_t window = bytes_between(c.rcv_nxt, c.rcv_adv);
  if (window == 0) return segment.seq == c.rcv_nxt;
  const Seq right = c.rcv_nxt + window;
  const bool first_in = segment.seq >= c.rcv_nxt && segment.seq < right;
  if (segment.length() == 0) return first_in;
  const Seq last = segment.end() - 1;
  const bool last_in = last >= c.rcv_nxt && last < right;
  // A merged segment may begin before and end behind the window.
  const bool covers =
      segment.seq < c.rcv_nxt && segment.length() > bytes_between(segment.seq, c.rcv_nxt) + window;
  return first_in || last_in || covers;
}

void Machine::on_unacceptable(Connection& c, const Segment& segment) noexcept {
  counters_.unacceptable.add();
  if (segment.has(wire::kTcpRst)) return;
  if (c.state == TcpState::time_wait) return on_time_wait(c, segment);
  // Data that comes again is answered at once: our ACK was lost, or a FIN's was. What carries
  // nothing is answered rarely, so that two stacks that disagree fall silent (T-21, C055).
  if (c.state == TcpState::syn_received) return challenge(c);
  if (segment.length() > 0) {
    c.heard_ns = now();
    counters_.duplicate.add();
    note_duplicate(c, segment.seq, min(segment.seq + segment.payload, c.rcv_nxt));
    send_ack(c);
  } else {
    challenge(c);
  }
}

// RFC 5961 3.2.
void Machine::on_reset(Connection& c, const Segment& segment) noexcept {
  if (c.state == TcpState::time_wait) return;  // RFC 1337 (T-23)
  if (segment.seq != c.rcv_nxt) return challenge(c);
  if (c.state == TcpState::syn_received) {
    finish(c, std::errc::connection_refused);  // a passive one has no owner to hear it (T-10)
    return;
  }
  finish(c, std::errc::connection_reset);
}

void Machine::on_time_wait(Connection& c, const Segment& segment) noexcept {
  if (segment.has(wire::kTcpFin)) {  // our last ACK was lost (T-23)
    c.life_timer.arm(context_.timers, now() + 2 * options_.msl_ns);
    time_wait_.remove(c);
    time_wait_.push_back(c);
    send_ack(c);
  } else if (segment.length() > 0 || segment.seq != c.rcv_nxt) {
    challenge(c);
  }
}

// May this SYN begin a new life of a pair in TIME-WAIT? (RFC 6191, RFC 9293 MAY-2)
bool Machine::reopens(const Connection& c, const Segment& segment) const noexcept {
  if (!segment.has(wire::kTcpSyn) || segment.has(wire::kTcpRst) || segment.has(wire::kTcpAck)) {
    return false;
  }
  if (c.timestamps && segment.options.timestamps) {
    const int32_t newer = static_cast<int32_t>(segment.options.timestamps->value - c.ts_recent);
    if (newer != 0) return newer > 0;
  }
  return segment.seq > c.rcv_nxt;
}

}  // namespace nobounce::tcp
