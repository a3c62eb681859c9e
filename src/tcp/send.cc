// The send queue and what of it may go now: windows, Nagle, silly windows (T-31, T-33, T-37).
#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// An IP packet of 65535 bytes less the largest headers, so that any options fit.
constexpr uint32_t kSuperSegmentMax = 65535 - 20 - wire::kTcpHeaderSizeMax;

bool may_join(PacketData& data, Notifier* notifier) noexcept {
  if (data.notifier == notifier) return true;
  if (data.notifier == nullptr || notifier == nullptr) return false;
  const auto link = data.notifier->ops->link;
  return link != nullptr && link(data, *notifier) == LinkResult::linked;
}

}  // namespace

// Whole segments, so that a full packet leaves no short one behind.
uint32_t Machine::packet_payload_max(const Connection& c) const noexcept {
  return c.mss <= kSuperSegmentMax ? kSuperSegmentMax / c.mss * c.mss : kSuperSegmentMax;
}

// A frag may have to be laid across packets: every piece holds a reference of its own. All packets
// are at hand before anything is changed.
bool Machine::send(Connection& c, const Frag& frag, bool more, Notifier* notifier) noexcept {
  const bool open =
      may_send(c.state) || c.state == TcpState::syn_sent || c.state == TcpState::syn_received;
  if (!open || c.fin_queued || frag.size == 0) {
    page_return(*frag.page);  // reset meanwhile: the owner hears of it
    return true;
  }
  const uint32_t payload_max = packet_payload_max(c);
  Packet* last = c.unsent != nullptr ? c.send_queue.back() : nullptr;
  uint32_t joined = 0;
  if (last != nullptr && last->payload_size() < payload_max && last->frag_room() > 0 &&
      may_join(last->data(), notifier)) {
    joined = std::min(frag.size, payload_max - static_cast<uint32_t>(last->payload_size()));
  }
  if (joined < frag.size && is_short_for_sends()) {
    counters_.no_packet.add();
    return false;
  }
  PacketQueue fresh;
  for (uint32_t offset = joined; offset < frag.size;) {
    const uint32_t piece = std::min(frag.size - offset, payload_max);
    PacketPtr packet = context_.packets.make(kSegmentHeadroom);
    if (packet == nullptr) {
      counters_.no_packet.add();
      return false;
    }
    page_hold(*frag.page);
    const bool added = packet->add_frag(*frag.page, frag.offset + offset, piece);
    NB_ASSERT(added);
    if (notifier != nullptr) attach_notifier(packet->data(), *notifier);
    fresh.push_back(std::move(packet));
    offset += piece;
  }
  if (joined > 0) {
    page_hold(*frag.page);
    const bool added = last->add_frag(*frag.page, frag.offset, joined);
    NB_ASSERT(added);
    c.send_queue.resized(joined);
  }
  while (!fresh.empty()) {
    c.send_queue.push_back(fresh.pop_front());
    if (c.unsent == nullptr) c.unsent = c.send_queue.back();
  }
  c.unsent_bytes += frag.size;
  c.hold_partial = more;
  page_return(*frag.page);  // the caller's reference; the pieces have theirs
  return true;
}

void Machine::push(Connection& c) noexcept {
  if (!may_send(c.state)) return;  // queued until the handshake is done
  pin(c);
  output(c);
  --c.pins;  // not unpin(): the owner is never called from its own call
}

// ---- output -----------------------------------------------------------------------------------

void Machine::output(Connection& c, Force force) noexcept {
  if (!may_send(c.state)) return;
  if (c.snd_una == c.snd_nxt && now() - c.last_sent_ns > c.rtt.rto_ns()) {
    c.congestion.idle_restart();  // RFC 5681 4.1
    refresh_mss(c);
  }
  c.needs_output = false;
  c.window_was_full = false;
  if (output_again(c)) {
    while (c.unsent != nullptr && output_new(c, force)) {
    }
    output_fin(c);
  }
  arm_send_timer(c);
  schedule_probe(c);
  arm_loss_timer(c);
}

uint32_t Machine::congestion_room(const Connection& c, uint32_t flight) const noexcept {
  uint64_t window = c.congestion.window();
  // Limited transmit: two segments more on the first two duplicates (RFC 3042).
  if (!c.in_recovery) window += uint64_t{std::min(c.dup_acks, 2u)} * c.mss;
  return window > flight ? static_cast<uint32_t>(window - flight) : 0;
}

// Nothing outstanding is on its way any more; what the peer holds it need not be sent, unless it has
// thrown it away.
void Machine::send_all_again(Connection& c) noexcept {
  if (c.scoreboard.is_reneged()) {
    counters_.sack_reneged.add();
    c.scoreboard.forget_sacked();
  }
  c.scoreboard.lose_all();
  c.in_recovery = false;
  c.dup_acks = 0;
  c.recover = c.rtt_next = c.snd_nxt;
  c.resend_cursor = nullptr;
  c.tail_probe.kind = TailProbe::Kind::none;
  c.reorder_ns = c.probe_ns = 0;
}

// What is lost goes first, as far as the windows allow.
bool Machine::output_again(Connection& c) noexcept {
  Seq from = c.snd_una;
  while (const auto lost = c.scoreboard.next_lost(from)) {
    const uint32_t flight = c.scoreboard.pipe_bytes();
    const uint32_t left = bytes_between(lost->begin, lost->end);
    const uint32_t allowed = std::min(
        {congestion_room(c, flight), left, bytes_between(lost->begin, c.snd_una + c.snd_wnd)});
    if (allowed == 0 || (allowed < std::min(c.mss, left) && flight > 0)) return false;
    uint32_t sent = 0;
    if (!resend_at(c, lost->begin, allowed, sent)) {
      note_blocked(c);
      return false;
    }
    from = lost->begin + sent;
  }
  return true;
}

bool Machine::output_new(Connection& c, Force force) noexcept {
  Packet& packet = *c.unsent;
  const auto payload = static_cast<uint32_t>(packet.payload_size());
  const uint32_t bytes = sendable(c, payload, force);
  if (bytes == 0) return false;
  if (bytes < payload) {
    // A piece is a packet until it is acknowledged: a peer that takes crumbs could have them all.
    // What is outstanding brings its packet back and us here again; with nothing outstanding one
    // more a connection is in the pool's sum.
    if (c.snd_una != c.snd_nxt && is_short_for_sends()) {
      counters_.no_packet.add();
      return false;
    }
    PacketPtr rest = context_.packets.split(packet, bytes);
    if (rest == nullptr) {
      counters_.no_packet.add();
      note_blocked(c);
      return false;
    }
    c.send_queue.resized(-static_cast<int64_t>(rest->payload_size()));
    c.send_queue.insert_before(c.send_queue.next(packet), std::move(rest));
  }
  if (!send_packet(c, packet, 0, bytes, c.snd_nxt)) {
    note_blocked(c);
    return false;
  }
  if (c.snd_una == c.snd_nxt) c.progress_ns = now();
  note_sent(c, bytes);
  packet.transport.sequence = c.snd_nxt.value();
  packet.transport.end_sequence = (c.snd_nxt + bytes).value();
  c.unsent = c.send_queue.next(packet);
  c.unsent_bytes -= bytes;
  c.snd_nxt += bytes;
  counters_.data_segments_out.add();
  return true;
}

// A sixty-fourth of a round trip is nothing to who judges by quarters (rack.hpp), and bounds the ranges.
void Machine::note_sent(Connection& c, uint32_t bytes) noexcept {
  c.scoreboard.sent(c.snd_nxt, bytes, now(), c.rtt.smoothed_ns() / 64);
  c.prr.sent += bytes;
  c.probe_ns = 0;
}

// How much of the first unsent packet may go; 0: nothing yet.
uint32_t Machine::sendable(Connection& c, uint32_t payload, Force force) noexcept {
  const uint32_t window = bytes_between(c.snd_nxt, c.snd_una + c.snd_wnd);
  if (force == Force::probe) return std::min({payload, window, c.mss});
  const uint32_t room = congestion_room(c, c.scoreboard.pipe_bytes());
  uint32_t bytes = std::min({payload, window, room, packet_payload_max(c)});
  if (room < payload) c.window_was_full = true;
  if (bytes == 0 || force == Force::yes) return bytes;
  const bool all = bytes == c.unsent_bytes;
  const uint32_t tail = bytes % c.mss;
  if (tail == 0) return bytes;
  if (all) {
    // The last, short segment: Nagle (RFC 9293 3.7.4) and `more`.
    const bool held =
        !c.fin_queued && (c.hold_partial || (c.snd_una != c.snd_nxt && !c.options.nodelay));
    return held ? bytes - tail : bytes;
  }
  if (bytes > tail) return bytes - tail;  // whole segments; the rest with what follows
  if (bytes == payload) return bytes;     // a short packet that nothing could be joined to
  // Less than a segment because a window says so: sender's SWS avoidance (RFC 9293 3.8.6.2.1).
  return window < room && bytes >= c.snd_wnd_max / 2 ? bytes : 0;
}

void Machine::output_fin(Connection& c) noexcept {
  if (!c.fin_queued || c.fin_sent || c.unsent != nullptr) return;
  if (!send_control(c, wire::kTcpFin | wire::kTcpAck, c.snd_nxt)) {
    note_blocked(c);
    return;
  }
  if (c.snd_una == c.snd_nxt) c.progress_ns = now();
  note_sent(c, 1);
  c.fin_sent = true;
  c.snd_nxt += 1;
}

// ---- the send timer's three uses ----------------------------------------------------------------

// Leaves a running timer of the same kind alone: neither duplicates nor more data move it (C008).
void Machine::arm_send_timer(Connection& c) noexcept {
  const bool outstanding = c.snd_una != c.snd_nxt;
  const bool waiting = c.unsent != nullptr || (c.fin_queued && !c.fin_sent);
  if (c.state == TcpState::closed || c.state == TcpState::time_wait ||
      (!outstanding && !(waiting && may_send(c.state)))) {
    c.send_timer.cancel();
    c.send_timer_kind = SendTimer::off;
    return;
  }
  const SendTimer kind = outstanding ? SendTimer::retransmit : SendTimer::persist;
  if (c.send_timer.is_armed() && c.send_timer_kind == kind) return;
  uint64_t delay = c.rtt.rto_ns();
  if (kind == SendTimer::persist) {
    delay = c.snd_wnd == 0 ? c.rtt.backed_off(c.persist_backoff, kPersistMaxNs) : kHoldMaxNs;
  }
  uint64_t deadline = now() + delay;
  if (c.options.user_timeout_ns != 0 && (c.retries > 0 || !is_link_up(c))) {
    // Not in the past: after a clock gap an answer must have its chance (T-64).
    const uint64_t limit = (outstanding ? c.progress_ns : c.heard_ns) + c.options.user_timeout_ns;
    if (limit > now()) deadline = std::min(deadline, limit);
  }
  c.send_timer_kind = kind;
  c.send_timer.arm(context_.timers, deadline);
}

void Machine::restart_retransmit_timer(Connection& c) noexcept {
  c.send_timer.cancel();
  c.send_timer_kind = SendTimer::off;
  arm_send_timer(c);
}

}  // namespace nobounce::tcp
