// The receive side: text in and out of order, FIN, and the window we offer (T-24, T-26, T-28..T-32).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

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
    if (segment.payload > 0 &&
        c.reassembly.insert(std::move(segment.packet), segment.seq, options_.out_of_order_max) ==
            Reassembly::Result::full) {
      counters_.limit_out_of_order.add();
    }
    if (c.ack_need != AckNeed::none)
      send_ack(c);  // first what was in order: then it is a duplicate
    send_ack(c);
    return;
  }
  if (fin) c.reassembly.remember_fin(segment.seq + segment.payload);
  on_in_order(c, segment);
}

void Machine::on_in_order(Connection& c, Segment& segment) noexcept {
  const bool filled_gap = !c.reassembly.empty();
  if (segment.payload > 0) {
    const uint32_t bytes = segment.payload;
    if (!queue_in_order(c, std::move(segment.packet))) {
      need_ack(c, AckNeed::now);
      return;
    }
    c.rcv_nxt += bytes;
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

// Small segments share a packet: what a peer sends in crumbs must not use up the packets.
bool Machine::queue_in_order(Connection& c, PacketPtr packet) noexcept {
  if (Packet* last = c.receive_queue.back()) {
    const size_t before = last->payload_size();
    if (absorb(*last, *packet)) {
      c.receive_queue.resized(static_cast<int64_t>(last->payload_size() - before));
      return true;
    }
  }
  if (c.receive_queue.count() >= kReceivePacketsMax) {
    counters_.limit_receive_queue.add();
    return false;
  }
  c.receive_queue.push_back(std::move(packet));
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
  c.unconsumed -= bytes;
  if (!may_receive(c.state)) return;
  // An update of its own only when the peer may be running out: else the next ACK tells it.
  const uint32_t offered = bytes_between(c.rcv_nxt, c.rcv_adv);
  const uint32_t half = c.options.receive_buffer / 2;
  const uint32_t space = receive_space(c);
  if (offered > half || space < offered) return;
  if (space - offered >= std::min(half, 2 * c.mss)) send_ack(c);  // T-32
}

// ---- the window -------------------------------------------------------------------------------

uint32_t Machine::receive_space(const Connection& c) const noexcept {
  const uint64_t used = c.receive_queue.bytes() + c.unconsumed;
  const uint32_t buffer = c.options.receive_buffer;
  return used >= buffer ? 0 : static_cast<uint32_t>(buffer - used);
}

// The window field, and the promise it makes. The right edge moves only forward, and only by steps
// worth a segment (receiver's SWS avoidance, RFC 9293 3.8.6.2.2). Keeping an edge that is not a
// multiple of the scale means rounding up: up to one unit more than the buffer.
uint16_t Machine::advertise(Connection& c) noexcept {
  const uint32_t offered = bytes_between(c.rcv_nxt, c.rcv_adv);
  const uint32_t space = receive_space(c);
  const uint32_t unit = uint32_t{1} << c.rcv_shift;
  uint32_t window = offered;
  if (space >= offered && space - offered >= std::min(c.options.receive_buffer / 2, c.mss)) {
    window = std::max(offered, space & ~(unit - 1));
  }
  uint32_t field = (window + unit - 1) >> c.rcv_shift;
  field = std::min<uint32_t>(field, 0xffff);
  c.rcv_adv = max(c.rcv_adv, c.rcv_nxt + (field << c.rcv_shift));
  return static_cast<uint16_t>(field);
}

}  // namespace nobounce::tcp
