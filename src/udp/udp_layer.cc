#include "udp/udp_layer.hpp"

#include "base/checksum.hpp"
#include "udp/port_table.hpp"
#include "wire/ipv4.hpp"
#include "wire/udp.hpp"

namespace nobounce::udp {
namespace {

constexpr size_t kPayloadMax = 65535 - wire::kIpv4HeaderSize - wire::kUdpHeaderSize;

std::errc error_of(ip::SendResult result) noexcept {
  switch (result) {
    case ip::SendResult::would_block:
      return std::errc::operation_would_block;
    case ip::SendResult::too_big:
      return std::errc::message_size;
    default:
      return std::errc::network_unreachable;
  }
}

std::errc error_of(ip::IcmpError::Kind kind) noexcept {
  using Kind = ip::IcmpError::Kind;
  switch (kind) {
    case Kind::port_unreachable:
      return std::errc::connection_refused;
    case Kind::protocol_unreachable:
      return std::errc::no_protocol_option;
    case Kind::fragmentation_needed:
      return std::errc::message_size;
    case Kind::net_unreachable:
      return std::errc::network_unreachable;
    case Kind::parameter_problem:
      return std::errc::protocol_error;
    default:
      return std::errc::host_unreachable;
  }
}

// All of it, from a sum of the payload. The header's size is even: sums join as they are.
void set_checksum(Packet& packet, const ip::Egress& egress, uint16_t payload_sum) noexcept {
  const uint64_t sum = wire::pseudo_header_sum(egress.source, egress.destination, egress.protocol,
                                               static_cast<uint32_t>(packet.size()));
  const uint16_t checksum = checksum_finish(checksum_add(sum + payload_sum, packet.head()));
  store_be<uint16_t>(packet.mutable_head(), wire::kUdpChecksumOffset,
                     checksum == 0 ? uint16_t{0xffff} : checksum);
  packet.checksum = Checksum::none;
}

void return_pages(const Frag* frags, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) page_return(*frags[i].page);
}

}  // namespace

struct Layer::State {
  State(ShardContext& shard, ip::Layer& ip_layer, size_t ports_max)
      : context(shard),
        ip(ip_layer),
        ports(ports_max),
        received(shard.counters.counter("udp.received")),
        sent(shard.counters.counter("udp.sent")),
        malformed(shard.counters.counter("udp.drop.malformed")),
        bad_checksum(shard.counters.counter("udp.drop.bad_checksum")),
        no_port(shard.counters.counter("udp.drop.no_port")),
        other_source(shard.counters.counter("udp.drop.not_connected_peer")),
        no_memory(shard.counters.counter("udp.drop.no_memory")),
        unmatched_error(shard.counters.counter("udp.icmp_unmatched")),
        table_full(shard.counters.counter("udp.limit.ports")),
        ipv6_refused(shard.counters.counter("udp.ipv6_not_supported")) {}

  [[nodiscard]] std::expected<PacketPtr, std::errc> build(const Endpoint& from, const Endpoint& to,
                                                          const Frag* frags, size_t count) noexcept;

  ShardContext& context;
  ip::Layer& ip;
  PortTable ports;
  Counter received, sent, malformed, bad_checksum, no_port, other_source, no_memory,
      unmatched_error, table_full, ipv6_refused;
};

Layer::Layer(ShardContext& context, ip::Layer& ip, size_t ports_max)
    : state_(std::make_unique<State>(context, ip, ports_max)) {
  ip.register_transport(ip::kProtocolUdp, *this);
}

Layer::~Layer() = default;

// ---- ports --------------------------------------------------------------------------------------

std::expected<Port*, std::errc> Layer::bind(const Endpoint& local, Owner& owner) noexcept {
  State& s = *state_;
  if (!local.address.is_v4()) {
    s.ipv6_refused.add();
    return std::unexpected(std::errc::address_family_not_supported);
  }
  if (!local.address.is_any() && !s.ip.is_ours(local.address)) {
    return std::unexpected(std::errc::address_not_available);
  }
  Endpoint bound = local;
  if (bound.port == 0) bound.port = s.ports.choose(local.address, s.context.random);
  if (bound.port == 0 || s.ports.is_taken(bound)) {
    return std::unexpected(std::errc::address_in_use);
  }
  Port* port = s.ports.add(bound, owner);
  if (port == nullptr) {
    s.table_full.add();
    return std::unexpected(std::errc::no_buffer_space);
  }
  return port;
}

void Layer::unbind(Port* port) noexcept {
  NB_ASSERT(port != nullptr);
  state_->ports.remove(*port);
}

Endpoint Layer::local(const Port& port) const noexcept { return port.local; }

std::expected<void, std::errc> Layer::connect(Port& port, const Endpoint& remote) noexcept {
  if (!remote.address.is_v4()) {
    state_->ipv6_refused.add();
    return std::unexpected(std::errc::address_family_not_supported);
  }
  if (remote.address.is_any() && remote.port == 0) {
    port.remote.reset();
    return {};
  }
  if (remote.port == 0) return std::unexpected(std::errc::invalid_argument);
  if (!state_->ip.source_for(remote.address)) {
    return std::unexpected(std::errc::network_unreachable);
  }
  port.remote = remote;
  return {};
}

// ---- sending ------------------------------------------------------------------------------------

// The packet with its header, checksum partial. Takes the frags in every case.
std::expected<PacketPtr, std::errc> Layer::State::build(const Endpoint& from, const Endpoint& to,
                                                        const Frag* frags, size_t count) noexcept {
  size_t payload = 0;
  for (size_t i = 0; i < count; ++i) payload += frags[i].size;
  if (payload > kPayloadMax) {
    return_pages(frags, count);
    return std::unexpected(std::errc::message_size);
  }
  PacketPtr packet = context.packets.make();
  if (packet == nullptr) {
    return_pages(frags, count);
    return std::unexpected(std::errc::no_buffer_space);
  }
  const wire::UdpHeader header{.source_port = from.port,
                               .destination_port = to.port,
                               .length = static_cast<uint16_t>(wire::kUdpHeaderSize + payload)};
  header.emit(packet->append(wire::kUdpHeaderSize));
  for (size_t i = 0; i < count; ++i) {
    if (!packet->add_frag(*frags[i].page, frags[i].offset, frags[i].size)) {
      return_pages(frags + i, count - i);
      return std::unexpected(std::errc::message_size);
    }
  }
  return packet;
}

std::expected<void, std::errc> Layer::send(Port& port, const Endpoint& to, const Frag* frags,
                                           size_t count, uint16_t payload_sum) noexcept {
  State& s = *state_;
  if (!to.address.is_v4()) {
    s.ipv6_refused.add();
    return_pages(frags, count);
    return std::unexpected(std::errc::address_family_not_supported);
  }
  const auto source =
      port.local.address.is_any() ? s.ip.source_for(to.address) : port.local.address;
  if (to.port == 0 || !source) {
    return_pages(frags, count);
    return std::unexpected(to.port == 0 ? std::errc::invalid_argument
                                        : std::errc::network_unreachable);
  }
  auto packet = s.build(port.local, to, frags, count);
  if (!packet) return std::unexpected(packet.error());
  // Routers may cut it too: a path that is narrower than we know still delivers (RFC 8085 3.2).
  const ip::Egress egress{.source = *source,
                          .destination = to.address,
                          .protocol = ip::kProtocolUdp,
                          .dont_fragment = false};
  const bool is_whole = wire::kIpv4HeaderSize + (*packet)->size() <= s.ip.mtu_to(to.address);
  if (is_whole || payload_sum == 0) {
    ip::set_partial_checksum(**packet, egress, wire::kUdpChecksumOffset);
  } else {
    set_checksum(**packet, egress, payload_sum);
  }
  const ip::SendResult result = s.ip.send(std::move(*packet), egress);
  if (result != ip::SendResult::sent) return std::unexpected(error_of(result));
  s.sent.add();
  return {};
}

// ---- receiving ----------------------------------------------------------------------------------

void Layer::receive(PacketPtr packet, const ip::Ingress& ingress) noexcept {
  State& s = *state_;
  const auto header = wire::UdpView::parse(packet->head(), packet->size());
  if (!header) {
    s.malformed.add();
    return;
  }
  packet->trim(header->length());
  // Zero means "no checksum", over IPv4 only (N-10); a partial field is no checksum yet.
  const bool is_unsummed = packet->checksum == Checksum::none && header->checksum() == 0;
  if (!is_unsummed && !ip::verify_transport_checksum(*packet, ingress)) {
    s.bad_checksum.add();
    return;
  }
  const Endpoint from{ingress.source, header->source_port()};
  Port* port = s.ports.find({ingress.destination, header->destination_port()});
  if (port != nullptr && port->remote && *port->remote != from) {
    s.other_source.add();
    port = nullptr;
  }
  if (port == nullptr) {
    s.no_port.add();
    s.ip.send_port_unreachable(*packet, ingress);
    return;
  }
  if (!payload_to_frags(*packet, wire::kUdpHeaderSize, s.context.arena)) {
    s.no_memory.add();
    return;
  }
  s.received.add();
  packet->pull(wire::kUdpHeaderSize);
  port->owner->on_datagram(std::move(packet), from);
}

// The first 8 quoted bytes are the header of the datagram we sent.
void Layer::icmp_error(const ip::IcmpError& error) noexcept {
  State& s = *state_;
  if (error.quote.size() < wire::kUdpHeaderSize) return;
  const Endpoint local{error.source, load_be<uint16_t>(error.quote, 0)};
  const Endpoint remote{error.destination, load_be<uint16_t>(error.quote, 2)};
  Port* port = s.ports.find(local);
  if (port == nullptr || !port->remote || *port->remote != remote) {
    s.unmatched_error.add();
    return;
  }
  port->owner->on_error(error_of(error.kind));
}

}  // namespace nobounce::udp
