// The receive side: text in and out of order, FIN, and the window we offer (T-24, T-26, T-28..T-32).
#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// A frag pins a page however small it is: it is charged at least this much of the buffer (T-63).
constexpr uint32_t kFragCharge = 512;

uint64_t overhead_of(const Packet& packet) noexcept {
  uint64_t overhead = 0;
  for (size_t i = 0; i < packet.data().frag_count; ++i) {
    const uint32_t size = packet.data().frags[i].size;
    if (size > 0 && size < kFragCharge) overhead += kFragCharge - size;
  }
  return overhead;
}

// The share of `overhead` that goes with `bytes` of `of`; all of it with the last bytes.
uint64_t share(uint64_t overhead, uint64_t bytes, uint64_t of) noexcept {
  return bytes >= of ? overhead : overhead * bytes / of;
}

}  // namespace

void Machine::on_text(Connection& c, Segment& segment) noexcept {
  if (segment.length() == 0) return;
  if (!may_receive(c.state)) {  // after the peer's FIN: nothing can follow
    need_ack(c, AckNeed::now);
    return;
  }
  if (c.released && segment.payload > 0 && segment.end() > c.rcv_nxt) {
    reset_and_forget(c);  // nobody will read it (T-57)
    return;
  }
  bool fin = segment.has(wire::kTcpFin);
  const uint32_t old = bytes_between(segment.seq, c.rcv_nxt);
  if (old > 0) {
    note_duplicate(c, segment.seq, segment.seq + std::min(old, segment.payload));
    if (old > segment.payload || (old == segment.payload && !fin)) {
      counters_.duplicate.add();
      send_ack(c);
      return;
    }
    segment.cut_front(old);
  }
  const uint32_t room = bytes_between(segment.seq, c.rcv_adv);
  if (segment.payload > room) {  // beyond the window
    segment.cut_back_to(room);
    fin = false;
    need_ack(c, AckNeed::now);
  }
  if (segment.seq != c.rcv_nxt) {
    counters_.out_of_order.add();
    if (fin) c.reassembly.remember_fin(segment.seq + segment.payload);
    if (segment.payload > 0) hold(c, segment);
    if (c.ack_need != AckNeed::none)
      send_ack(c);  // first what was in order: then it is a duplicate
    send_ack(c);
    return;
  }
  if (fin) c.reassembly.remember_fin(segment.seq + segment.payload);
  on_in_order(c, segment);
}

void Machine::hold(Connection& c, Segment& segment) noexcept {
  switch (c.reassembly.insert(std::move(segment.packet), segment.seq, reassembly_limits(c))) {
    case Reassembly::Result::queued:
      break;
    case Reassembly::Result::duplicate:
      counters_.duplicate.add();
      note_duplicate(c, segment.seq, segment.seq + segment.payload);
      break;
    case Reassembly::Result::full:
      counters_.limit_out_of_order.add();
      break;
  }
}

// To be told with the next ACK, which follows at once.
void Machine::note_duplicate(Connection& c, Seq begin, Seq end) noexcept {
  if (!c.sack || begin >= end) return;
  c.duplicate_begin = begin;
  c.duplicate_end = end;
}

Reassembly::Limits Machine::reassembly_limits(const Connection& c) const noexcept {
  const bool is_short = packets_left() <= context_.packets.capacity() / kOutOfOrderReserve;
  return {.packets = is_short ? 0 : options_.out_of_order_max,
          .frags = std::max<size_t>(c.options.receive_buffer / kFragCharge, 64)};
}

// With data held behind a gap the segment goes through the reassembly too: of what came twice the
// first copy counts (T-24). It is taken out at once, so the bounds do not apply.
void Machine::on_in_order(Connection& c, Segment& segment) noexcept {
  const bool filled_gap = !c.reassembly.empty();
  if (segment.payload > 0) {
    if (is_over_full(c, segment.payload)) return need_ack(c, AckNeed::now);
    if (filled_gap) {
      constexpr size_t kNoLimit = ~size_t{0};
      (void)c.reassembly.insert(std::move(segment.packet), segment.seq,
                                {.packets = kNoLimit, .frags = kNoLimit});
    } else if (queue_in_order(c, std::move(segment.packet))) {
      c.rcv_nxt += segment.payload;
    } else {
      return need_ack(c, AckNeed::now);
    }
    c.unacked_segments += segment.wire_segments;
    c.tell_readable = true;
  }
  while (filled_gap) {
    PacketPtr packet = c.reassembly.take(c.rcv_nxt);
    if (packet == nullptr) break;
    const auto bytes = static_cast<uint32_t>(packet->payload_size());
    if (!queue_in_order(c, std::move(packet))) break;
    c.rcv_nxt += bytes;
  }
  if (c.reassembly.fin_at(c.rcv_nxt)) {
    on_fin(c);
  } else if (filled_gap || c.unacked_segments >= kAckEverySegments) {
    need_ack(c, AckNeed::now);
  } else if (segment.payload > 0) {
    need_ack(c, AckNeed::delayed);
  }
}

// Keeping the right edge of a scaled window means rounding up, by less than one unit an ACK. A peer
// that sends a byte at a time could push the edge ahead of itself for ever; beyond a quarter more
// than the buffer nothing is taken, and not acknowledged.
bool Machine::is_over_full(const Connection& c, uint32_t bytes) noexcept {
  const uint64_t used = receive_used(c) + bytes;
  const uint64_t buffer = c.options.receive_buffer;
  if (used <= buffer + buffer / 4 + (uint64_t{1} << c.rcv_shift)) return false;
  counters_.limit_receive_queue.add();
  return true;
}

// Small segments share a packet: what a peer sends in crumbs must not use up the packets.
bool Machine::queue_in_order(Connection& c, PacketPtr packet) noexcept {
  const uint64_t overhead = overhead_of(*packet);
  if (Packet* last = c.receive_queue.back()) {
    const size_t before = last->payload_size();
    if (absorb(*last, *packet)) {
      c.receive_queue.resized(static_cast<int64_t>(last->payload_size() - before));
      c.queue_overhead += overhead;
      return true;
    }
  }
  if (c.receive_queue.count() >= kReceivePacketsMax ||
      packets_left() <= context_.packets.capacity() / kReceiveReserve) {
    counters_.limit_receive_queue.add();
    return false;
  }
  c.receive_queue.push_back(std::move(packet));
  c.queue_overhead += overhead;
  return true;
}

void Machine::on_fin(Connection& c) noexcept {
  c.rcv_nxt += 1;
  c.fin_received = true;
  c.tell_readable = true;
  c.reassembly.clear();
  need_ack(c, AckNeed::now);
  switch (c.state) {
    case TcpState::established:
      c.state = TcpState::close_wait;
      break;
    case TcpState::fin_wait_1:  // our FIN is not acknowledged yet
      c.state = TcpState::closing;
      break;
    case TcpState::fin_wait_2:
      enter_time_wait(c);
      break;
    default:
      break;
  }
}

// ---- the application's side -------------------------------------------------------------------

bool Machine::pop_received(Connection& c, Frag& frag) noexcept {
  while (Packet* first = c.receive_queue.front()) {
    NB_ASSERT(!first->is_cloned());
    PacketData& data = first->data();
    if (data.frag_count == 0) {
      (void)c.receive_queue.pop_front();
      continue;
    }
    frag = data.frags[0];  // its page reference goes with it
    std::move(data.frags.begin() + 1, data.frags.begin() + data.frag_count, data.frags.begin());
    --data.frag_count;
    data.frags[data.frag_count] = Frag{};
    data.bytes -= frag.size;
    const uint64_t moved = share(c.queue_overhead, frag.size, c.receive_queue.bytes());
    c.queue_overhead -= moved;
    c.unconsumed_overhead += moved;
    c.receive_queue.resized(-int64_t{frag.size});
    c.unconsumed += frag.size;
    if (data.frag_count == 0) (void)c.receive_queue.pop_front();
    if (frag.size > 0) return true;
    page_return(*frag.page);  // the driver's window had it all
  }
  return false;
}

void Machine::consumed(Connection& c, size_t bytes) noexcept {
  NB_ASSERT(bytes <= c.unconsumed);
  c.unconsumed_overhead -= share(c.unconsumed_overhead, bytes, c.unconsumed);
  c.unconsumed -= bytes;
  if (!may_receive(c.state)) return;
  // An update of its own only when the peer may be running out: else the next ACK tells it.
  const uint32_t offered = bytes_between(c.rcv_nxt, c.rcv_adv);
  const uint32_t half = window_max(c) / 2;
  const uint32_t space = receive_space(c);
  if (offered > half || space < offered) return;
  if (space - offered >= std::min(half, 2 * c.mss)) send_ack(c);  // T-32
}

// ---- the window -------------------------------------------------------------------------------

uint64_t Machine::receive_used(const Connection& c) noexcept {
  return c.receive_queue.bytes() + c.queue_overhead + c.unconsumed + c.unconsumed_overhead;
}

// The largest window that can be told: the buffer, or what 16 bits and the scale can say.
uint32_t Machine::window_max(const Connection& c) noexcept {
  return std::min(c.options.receive_buffer, uint32_t{0xffff} << c.rcv_shift);
}

uint32_t Machine::receive_space(const Connection& c) noexcept {
  const uint64_t used = receive_used(c);
  const uint32_t buffer = c.options.receive_buffer;
  return used >= buffer ? 0 : std::min(static_cast<uint32_t>(buffer - used), window_max(c));
}

// The window field, and the promise it makes. The right edge moves only forward, and only by steps
// worth a segment (receiver's SWS avoidance, RFC 9293 3.8.6.2.2). Keeping an edge that is not a
// multiple of the scale means rounding up: up to one unit more than the buffer.
uint16_t Machine::advertise(Connection& c) noexcept {
  const uint32_t offered = bytes_between(c.rcv_nxt, c.rcv_adv);
  const uint32_t space = receive_space(c);
  const uint32_t unit = uint32_t{1} << c.rcv_shift;
  uint32_t window = offered;
  if (space >= offered && space - offered >= std::min(window_max(c) / 2, c.mss)) {
    window = std::max(offered, space & ~(unit - 1));
  }
  uint32_t field = (window + unit - 1) >> c.rcv_shift;
  field = std::min<uint32_t>(field, 0xffff);
  c.rcv_adv = max(c.rcv_adv, c.rcv_nxt + (field << c.rcv_shift));
  return static_cast<uint16_t>(field);
}

}  // namespace nobounce::tcp
