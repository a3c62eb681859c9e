#include "ip/icmp.hpp"

#include <algorithm>
#include <optional>

#include "base/checksum.hpp"

namespace nobounce::ip {
namespace {

constexpr size_t kQuoteMin = 8;  // transport bytes an error must quote (RFC 792)

std::optional<IcmpError::Kind> kind_of(const wire::IcmpView& icmp) noexcept {
  using Kind = IcmpError::Kind;
  if (icmp.type() == wire::kIcmpTimeExceeded) return Kind::time_exceeded;
  if (icmp.type() == wire::kIcmpParameterProblem) return Kind::parameter_problem;
  if (icmp.type() != wire::kIcmpUnreachable) return std::nullopt;
  switch (icmp.code()) {
    case wire::kIcmpProtocolUnreachable:
      return Kind::protocol_unreachable;
    case wire::kIcmpPortUnreachable:
      return Kind::port_unreachable;
    case wire::kIcmpFragmentationNeeded:
      return Kind::fragmentation_needed;
    case wire::kIcmpSourceRouteFailed:
      return Kind::source_route_failed;
    case wire::kIcmpNetProhibited:
    case wire::kIcmpHostProhibited:
    case wire::kIcmpAdministrativelyProhibited:
      return Kind::administratively_prohibited;
    case wire::kIcmpNetUnreachable:
    case 6:  // RFC 1122 3.2.2.1: destination network unknown
    case 11:
      return Kind::net_unreachable;
    default:
      return Kind::host_unreachable;
  }
}

// Of ICMP itself only echo is reported on: never an error about an error (RFC 1122 3.2.2).
bool may_be_reported(const Packet& packet, const Ingress& ingress) noexcept {
  if (ingress.protocol != kProtocolIcmp) return true;
  const auto icmp = wire::IcmpView::parse(packet.head());
  return icmp && (icmp->type() == wire::kIcmpEchoRequest || icmp->type() == wire::kIcmpEchoReply);
}

// The checksum when one word of what it covers changes (RFC 1624 eqn. 3). 0 and 0xffff are the same
// number, but a message that is all zeros otherwise is right with 0xffff only.
uint16_t adjusted(uint16_t checksum, uint16_t from, uint16_t to) noexcept {
  const uint16_t result = checksum_finish(uint64_t{static_cast<uint16_t>(~checksum)} +
                                          static_cast<uint16_t>(~from) + to);
  return result == 0 ? uint16_t{0xffff} : result;
}

}  // namespace

Icmp::Icmp(ShardContext& context, Layer& layer, const TransportTable& transports, bool answer_ping)
    : context_(context),
      layer_(layer),
      transports_(transports),
      answer_ping_(answer_ping),
      received_(context.counters.counter("icmp.received")),
      malformed_(context.counters.counter("icmp.malformed")),
      bad_checksum_(context.counters.counter("icmp.bad_checksum")),
      not_unicast_(context.counters.counter("icmp.not_unicast")),
      ignored_(context.counters.counter("icmp.ignored")),
      echo_replies_sent_(context.counters.counter("icmp.echo_replies_sent")),
      echo_limited_(context.counters.counter("icmp.echo_limited")),
      echo_too_big_(context.counters.counter("icmp.echo_too_big")),
      echo_replies_received_(context.counters.counter("icmp.echo_replies_received")),
      errors_received_(context.counters.counter("icmp.errors_received")),
      bad_quote_(context.counters.counter("icmp.bad_quote")),
      errors_sent_(context.counters.counter("icmp.errors_sent")),
      errors_limited_(context.counters.counter("icmp.errors_limited")) {}

// ---- receiving ----------------------------------------------------------------------------------

void Icmp::receive(PacketPtr packet, const Ingress& ingress) noexcept {
  received_.add();
  const auto icmp = wire::IcmpView::parse(packet->head());
  if (!icmp) {
    malformed_.add();
    return;
  }
  if (!ingress.to_unicast) {
    not_unicast_.add();
    return;
  }
  const bool is_vouched = packet->checksum == Checksum::verified;
  // A partial checksum is TCP's or UDP's; none of ICMP's kinds has one.
  if (packet->checksum == Checksum::partial ||
      (!is_vouched && checksum_finish(packet->sum(0, packet->size())) != 0)) {
    bad_checksum_.add();
    return;
  }
  if (icmp->type() == wire::kIcmpEchoRequest) {
    answer_echo(std::move(packet), ingress, *icmp);
  } else if (icmp->type() == wire::kIcmpEchoReply) {
    echo_replies_received_.add();
    if (sink_ != nullptr) {
      sink_->echo_reply(ingress.source, icmp->identifier(), icmp->sequence(), ingress.ttl,
                        packet->size() - wire::kIcmpHeaderSize);
    }
  } else if (icmp->is_error()) {
    receive_error(*packet, ingress, *icmp);
  } else {
    ignored_.add();
  }
}

// The request becomes the reply: payload goes out from where it lies, in frags or, of a packet that
// is all head, there; only the type changes.
void Icmp::answer_echo(PacketPtr packet, const Ingress& ingress,
                       const wire::IcmpView& icmp) noexcept {
  if (!answer_ping_ || icmp.code() != 0) {
    ignored_.add();
    return;
  }
  const bool is_large = wire::kIpv4HeaderSize + packet->size() > layer_.mtu_to(ingress.source);
  if (is_large && packet->size() > kEchoMax) {
    echo_too_big_.add();
    return;
  }
  if (!echo_limit_.take(context_.now_ns)) {
    echo_limited_.add();
    return;
  }
  const wire::IcmpHeader reply{
      .type = wire::kIcmpEchoReply,
      .code = 0,
      .checksum = adjusted(icmp.checksum(), uint16_t{wire::kIcmpEchoRequest} << 8,
                           uint16_t{wire::kIcmpEchoReply} << 8),
      .identifier = icmp.identifier(),
      .sequence = icmp.sequence()};
  if (packet->data().frag_count > 0) packet->give_back_head(wire::kIcmpHeaderSize);
  reply.emit(packet->mutable_head());
  packet->checksum = Checksum::none;
  packet->gso = Gso::none;
  packet->gso_size = 0;
  packet->gso_segments = 1;
  echo_replies_sent_.add();
  static_cast<void>(layer_.send(std::move(packet), {.source = ingress.destination,
                                                    .destination = ingress.source,
                                                    .protocol = kProtocolIcmp,
                                                    .tos = ingress.tos,
                                                    .dont_fragment = !is_large}));
}

void Icmp::receive_error(const Packet& packet, const Ingress& ingress,
                         const wire::IcmpView& icmp) noexcept {
  const auto kind = kind_of(icmp);
  if (!kind) {  // redirect, source quench (T-54)
    ignored_.add();
    return;
  }
  const Bytes body = packet.head().subspan(wire::kIcmpHeaderSize);
  const auto inner = wire::Ipv4View::parse_quoted(body);
  if (!inner || body.size() - inner->header_size() < kQuoteMin ||
      inner->total_length() < inner->header_size() + kQuoteMin || inner->fragment_offset() != 0 ||
      !layer_.is_ours(inner->source()) || layer_.is_group(inner->destination())) {
    bad_quote_.add();
    return;
  }
  // Nobody outside has seen what we sent to ourselves (N-9).
  if (layer_.is_ours(inner->destination()) && !layer_.is_ours(ingress.source)) {
    bad_quote_.add();
    return;
  }
  const size_t quoted = std::min<size_t>(body.size(), inner->total_length());
  const uint16_t mtu = *kind == IcmpError::Kind::fragmentation_needed ? icmp.next_hop_mtu() : 0;
  deliver(*kind, mtu, *inner, body.subspan(inner->header_size(), quoted - inner->header_size()));
}

void Icmp::deliver(IcmpError::Kind kind, uint16_t next_hop_mtu, const wire::Ipv4View& inner,
                   Bytes quote) noexcept {
  errors_received_.add();
  const IcmpError error{.kind = kind,
                        .next_hop_mtu = next_hop_mtu,
                        .source = inner.source(),
                        .destination = inner.destination(),
                        .quote = quote};
  if (inner.protocol() == kProtocolIcmp) {
    const auto echo = wire::IcmpView::parse(quote);
    if (sink_ != nullptr && echo && echo->type() == wire::kIcmpEchoRequest) {
      sink_->echo_error(error);
    }
    return;
  }
  Transport* transport = transports_[inner.protocol()];
  if (transport != nullptr) transport->icmp_error(error);
}

void Icmp::report_unresolved(const Packet& packet) noexcept {
  const auto inner = wire::Ipv4View::parse_quoted(packet.head());
  NB_ASSERT(inner.has_value());  // our own header
  deliver(IcmpError::Kind::host_unreachable, 0, *inner,
          packet.head().subspan(inner->header_size()));
}

// ---- sending ------------------------------------------------------------------------------------

void Icmp::send_unreachable(const Packet& packet, const Ingress& ingress,
                            wire::IcmpUnreachableCode code) noexcept {
  send_error(packet, ingress, wire::kIcmpUnreachable, code);
}

void Icmp::send_reassembly_timeout(const Packet& packet, const Ingress& ingress) noexcept {
  send_error(packet, ingress, wire::kIcmpTimeExceeded, wire::kIcmpReassemblyTimeExceeded);
}

void Icmp::send_error(const Packet& packet, const Ingress& ingress, uint8_t type,
                      uint8_t code) noexcept {
  if (!ingress.to_unicast || !may_be_reported(packet, ingress) || layer_.is_group(ingress.source) ||
      ingress.network_header.empty()) {
    not_unicast_.add();
    return;
  }
  if (!error_limit_.take(context_.now_ns)) {
    errors_limited_.add();
    return;
  }
  PacketPtr error = context_.packets.make();
  if (error == nullptr) return;  // counted by the pool
  const Bytes network = ingress.network_header;
  const size_t room = error->tailroom() - wire::kIcmpHeaderSize - network.size();
  const Bytes transport = packet.head();
  const Bytes quoted = transport.first(std::min({transport.size(), room, kQuoteMax}));
  const MutableBytes bytes = error->append(wire::kIcmpHeaderSize + network.size() + quoted.size());
  wire::IcmpHeader{.type = type, .code = code}.emit(bytes);
  std::ranges::copy(network, bytes.subspan(wire::kIcmpHeaderSize).begin());
  std::ranges::copy(quoted, bytes.subspan(wire::kIcmpHeaderSize + network.size()).begin());
  store_be<uint16_t>(bytes, wire::kIcmpChecksumOffset, checksum_finish(checksum_add(0, bytes)));
  errors_sent_.add();
  static_cast<void>(layer_.send(
      std::move(error),
      {.source = ingress.destination, .destination = ingress.source, .protocol = kProtocolIcmp}));
}

SendResult Icmp::send_echo(const IpAddress& to, uint16_t id, uint16_t sequence,
                           size_t payload_bytes) noexcept {
  const auto source = layer_.source_for(to);
  if (!source) return SendResult::no_route;
  const size_t total = wire::kIpv4HeaderSize + wire::kIcmpHeaderSize + payload_bytes;
  if (total > 0xffff) return SendResult::too_big;
  PacketPtr packet = context_.packets.make();
  if (packet == nullptr) return SendResult::would_block;
  const MutableBytes header = packet->append(wire::kIcmpHeaderSize);
  if (payload_bytes > 0) {
    unsigned order = 0;
    while ((kPageSize << order) < payload_bytes) ++order;
    Page* page = context_.arena.alloc(order);
    if (page == nullptr) return SendResult::would_block;
    const MutableBytes bytes = private_bytes(*page, 0, payload_bytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    const bool is_added = packet->add_frag(*page, 0, static_cast<uint32_t>(payload_bytes));
    NB_ASSERT(is_added);
  }
  wire::IcmpHeader echo{
      .type = wire::kIcmpEchoRequest, .code = 0, .identifier = id, .sequence = sequence};
  echo.emit(header);
  echo.checksum = checksum_finish(packet->sum(0, packet->size()));
  echo.emit(header);
  return layer_.send(std::move(packet), {.source = *source,
                                         .destination = to,
                                         .protocol = kProtocolIcmp,
                                         .dont_fragment = total <= layer_.mtu_to(to)});
}

}  // namespace nobounce::ip
