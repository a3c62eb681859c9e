// Segments out: header, options, checksum, and down to ip/.
//
// Payload above one MSS always leaves as one GSO packet; ip/ cuts it where the device cannot.
// Checksums are always partial for the same reason.
#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// A new packet on a part of a sent one's pages. The sent one may still be with the device in a
// clone, so it is not cut itself.
PacketPtr slice(PacketPool& pool, Packet& from, uint32_t offset, uint32_t bytes) noexcept {
  PacketPtr packet = pool.make(kSegmentHeadroom);
  if (packet == nullptr) return nullptr;
  const PacketData& data = from.data();
  for (size_t i = 0; i < data.frag_count && bytes > 0; ++i) {
    const Frag& frag = data.frags[i];
    if (offset >= frag.size) {
      offset -= frag.size;
      continue;
    }
    const uint32_t piece = std::min(bytes, frag.size - offset);
    page_hold(*frag.page);
    const bool added = packet->add_frag(*frag.page, frag.offset + offset, piece);
    NB_ASSERT(added);
    bytes -= piece;
    offset = 0;
  }
  NB_ASSERT(bytes == 0);
  packet->data().flags = data.flags;
  if (data.notifier != nullptr) attach_notifier(packet->data(), *data.notifier);
  return packet;
}

}  // namespace

ip::SendResult Machine::send_down(PacketPtr packet, const wire::TcpHeader& header,
                                  const IpAddress& source, const IpAddress& destination) noexcept {
  ip::Egress egress;
  egress.source = source;
  egress.destination = destination;
  egress.protocol = ip::kProtocolTcp;
  header.emit(packet->push(header.size()));
  ip::set_partial_checksum(*packet, egress, wire::kTcpChecksumOffset);
  return ip_.send(std::move(packet), egress);
}

void Machine::ack_was_sent(Connection& c) noexcept {
  c.ack_need = AckNeed::none;
  c.unacked_segments = 0;
  c.ack_timer.cancel();
  c.last_ack_sent = c.rcv_nxt;
}

// False: not sent, and to be tried again. What is lost further down is lost as on the wire.
bool Machine::transmit(Connection& c, PacketPtr packet, wire::TcpHeader& header) noexcept {
  const bool syn = (header.flags & wire::kTcpSyn) != 0;
  header.source_port = c.local.port;
  header.destination_port = c.remote.port;
  if ((header.flags & wire::kTcpAck) != 0) header.acknowledgement = c.rcv_nxt.value();
  if (syn) {
    header.window = syn_window(c.options);
  } else {
    header.window = advertise(c);
    if (c.timestamps) header.options.timestamps = {timestamp(c.ts_offset), c.ts_recent};
  }
  const size_t packet_bytes = packet->payload_size();
  switch (send_down(std::move(packet), header, c.local.address, c.remote.address)) {
    case ip::SendResult::sent:
      break;
    case ip::SendResult::would_block:
      return false;
    case ip::SendResult::no_route:
      counters_.no_route.add();
      c.soft_error = std::errc::network_unreachable;
      break;
    case ip::SendResult::too_big:
      counters_.too_big.add();
      refresh_mss(c);
      break;
  }
  counters_.segments_out.add();
  if (packet_bytes > 0) c.last_sent_ns = now();
  if ((header.flags & wire::kTcpAck) != 0) ack_was_sent(c);
  return true;
}

// Part of a queued packet: all of it by a clone, less by a slice.
bool Machine::send_packet(Connection& c, Packet& queued, uint32_t offset, uint32_t bytes,
                          Seq seq) noexcept {
  const bool whole = offset == 0 && bytes == queued.payload_size();
  PacketPtr packet = whole ? context_.packets.clone(queued, kSegmentHeadroom)
                           : slice(context_.packets, queued, offset, bytes);
  if (packet == nullptr) {
    counters_.no_packet.add();
    return false;
  }
  if (bytes > c.mss) {
    packet->gso = c.remote.address.is_v4() ? Gso::tcp4 : Gso::tcp6;
    packet->gso_size = static_cast<uint16_t>(c.mss);
    packet->gso_segments = static_cast<uint16_t>((bytes + c.mss - 1) / c.mss);
  } else {
    packet->gso = Gso::none;
    packet->gso_size = 0;
    packet->gso_segments = 1;
  }
  wire::TcpHeader header;
  header.sequence = seq.value();
  header.flags = wire::kTcpAck;
  const bool last = &queued == c.send_queue.back() && offset + bytes == queued.payload_size();
  if (last) header.flags |= wire::kTcpPsh;
  return transmit(c, std::move(packet), header);
}

// Sends again from `seq`: at most `bytes_max`, whole segments unless it ends a packet.
bool Machine::resend_at(Connection& c, Seq seq, uint32_t bytes_max, uint32_t& sent) noexcept {
  NB_ASSERT(seq < c.snd_nxt);
  Packet* packet = c.resend_cursor;
  if (packet == nullptr || Seq(packet->transport.sequence) > seq) packet = c.send_queue.front();
  while (packet != nullptr && packet != c.unsent && Seq(packet->transport.end_sequence) <= seq) {
    packet = c.send_queue.next(*packet);
  }
  ++c.retransmissions;
  counters_.retransmitted.add();
  if (packet == nullptr || packet == c.unsent) {  // behind all data: the FIN
    NB_ASSERT(c.fin_sent);
    if (!send_control(c, wire::kTcpFin | wire::kTcpAck, seq)) return false;
    sent = 1;
    note_resent(c, seq, sent);
    return true;
  }
  c.resend_cursor = packet;
  const uint32_t offset = bytes_between(Seq(packet->transport.sequence), seq);
  uint32_t bytes = std::min(bytes_max, static_cast<uint32_t>(packet->payload_size()) - offset);
  if (bytes == bytes_max && bytes > c.mss) bytes -= bytes % c.mss;
  if (!send_packet(c, *packet, offset, bytes, seq)) return false;
  sent = bytes;
  note_resent(c, seq, sent);
  return true;
}

void Machine::note_resent(Connection& c, Seq seq, uint32_t bytes) noexcept {
  c.scoreboard.sent_again(seq, bytes, now());
  c.prr.sent += bytes;
  c.probe_ns = 0;
  if (c.snd_una < c.recover) c.undo.sent_again(seq, bytes);
}

bool Machine::send_control(Connection& c, uint8_t flags, Seq seq) noexcept {
  PacketPtr packet = context_.packets.make(kSegmentHeadroom);
  if (packet == nullptr) {
    counters_.no_packet.add();
    return false;
  }
  wire::TcpHeader header;
  header.sequence = seq.value();
  header.flags = flags;
  if (c.sack) add_blocks(c, header.options);
  if (!transmit(c, std::move(packet), header)) return false;
  c.duplicate_begin = c.duplicate_end;  // told once, lost or not (RFC 2883 4)
  return true;
}

// A duplicate first, then what is held (T-39).
void Machine::add_blocks(Connection& c, wire::TcpOptions& options) noexcept {
  const size_t count_max = c.timestamps ? 3 : 4;
  size_t count = 0;
  if (c.duplicate_begin != c.duplicate_end) {
    counters_.dsack_out.add();
    options.sack[count++] = {c.duplicate_begin.value(), c.duplicate_end.value()};
  }
  if (!c.reassembly.empty()) {
    std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax> held;
    const size_t more = c.reassembly.blocks(held, c.rcv_nxt, count_max - count);
    std::copy_n(held.begin(), more, options.sack.begin() + static_cast<ptrdiff_t>(count));
    count += more;
  }
  options.sack_count = static_cast<uint8_t>(count);
}

// SYN, or SYN-ACK with what both sides can do (T-7, T-49, T-50, T-52).
bool Machine::send_syn(Connection& c) noexcept {
  PacketPtr packet = context_.packets.make(kSegmentHeadroom);
  if (packet == nullptr) {
    counters_.no_packet.add();
    return false;
  }
  const bool answer = c.state == TcpState::syn_received;
  wire::TcpHeader header;
  header.sequence = c.iss.value();
  header.flags = answer ? wire::kTcpSyn | wire::kTcpAck : wire::kTcpSyn;
  header.options.mss = our_mss(c.remote.address);
  header.options.sack_permitted = !answer || c.sack;
  if (!answer || c.peer_scales) header.options.window_scale = c.rcv_shift;
  if (!answer) {
    header.options.timestamps = {timestamp(c.ts_offset), 0};
  } else if (c.timestamps) {
    header.options.timestamps = {timestamp(c.ts_offset), c.ts_recent};
  }
  return transmit(c, std::move(packet), header);
}

void Machine::send_ack(Connection& c) noexcept {
  if (c.state == TcpState::closed) return;
  if (send_control(c, wire::kTcpAck, c.snd_nxt)) return;
  c.ack_need = AckNeed::now;
  note_blocked(c);
}

void Machine::send_reset(Connection& c) noexcept {
  if (c.state == TcpState::syn_sent) return;  // the peer knows nothing of us
  if (send_control(c, wire::kTcpRst | wire::kTcpAck, c.snd_nxt)) counters_.resets_out.add();
}

// RST for a segment nobody waits for (RFC 9293 3.10.7.1, T-22).
void Machine::refuse(const Segment& segment, const IpAddress& local,
                     const IpAddress& remote) noexcept {
  if (segment.has(wire::kTcpRst)) return;
  if (!resets_.take(now())) {
    counters_.limit_resets.add();
    return;
  }
  PacketPtr packet = context_.packets.make(kSegmentHeadroom);
  if (packet == nullptr) {
    counters_.no_packet.add();
    return;
  }
  wire::TcpHeader header;
  header.source_port = segment.destination_port;
  header.destination_port = segment.source_port;
  header.flags = wire::kTcpRst;
  if (segment.has(wire::kTcpAck)) {
    header.sequence = segment.ack.value();
  } else {
    header.flags |= wire::kTcpAck;
    header.acknowledgement = segment.end().value();
  }
  if (send_down(std::move(packet), header, local, remote) == ip::SendResult::sent) {
    counters_.resets_out.add();
  }
}

}  // namespace nobounce::tcp
