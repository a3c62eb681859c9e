#include "ip/ip_layer.hpp"

#include "ip/layer_state.hpp"
#include "netdev/checksum.hpp"

namespace nobounce::ip {

namespace {

Routes make_routes(const Options& options) {
  std::vector<IpPrefix> addresses{options.address};
  addresses.insert(addresses.end(), options.more_addresses.begin(), options.more_addresses.end());
  return Routes({.addresses = addresses, .gateway = options.gateway, .routes = options.routes});
}

}  // namespace

Layer::State::State(Layer& layer, ShardContext& shard, NetDevice& net_device,
                    const Options& layer_options)
    : context(shard),
      device(net_device),
      routes(make_routes(layer_options)),
      mac(net_device.mac()),
      drops(shard.counters),
      output(shard, net_device, "ip"),
      neighbours(shard, output, *this, routes,
                 {.mac = mac, .entries_max = layer_options.neighbours_max}),
      icmp(shard, layer, transports, layer_options.answer_ping),
      reassembly(shard, *this, layer_options.reassembly_pages_max),
      path_mtus(shard, layer_options.path_mtus_max),
      sent(shard.counters.counter("ip.sent")),
      received(shard.counters.counter("ip.received")) {}

Layer::State::~State() {
  while (Packet* packet = local.pop_front()) const PacketPtr gone(packet);
}

// ---- sending ------------------------------------------------------------------------------------

SendResult Layer::State::refuse(Drop why, SendResult result) noexcept {
  drops.add(why);
  return result;
}

uint16_t Layer::State::mtu_to(const IpAddress& destination) const noexcept {
  return path_mtus.get(destination, device.mtu());
}

// Whether it goes in fragments. What must stay in one piece is judged by the device's MTU alone: below
// it the path may say no.
Layer::State::Cut Layer::State::cut_for(const Packet& packet, const Egress& egress,
                                        uint16_t path_mtu) const noexcept {
  const size_t total = wire::kIpv4HeaderSize + packet.size();
  if (total > 0xffff) return Cut::too_big;
  if (packet.gso != Gso::none) {
    const size_t segment = wire::kIpv4HeaderSize + packet.head().size() + packet.gso_size;
    return segment <= device.mtu() ? Cut::no : Cut::too_big;
  }
  if (egress.dont_fragment) return total <= device.mtu() ? Cut::no : Cut::too_big;
  if (total <= path_mtu) return Cut::no;
  return Fragmenter::fits(packet, path_mtu) ? Cut::yes : Cut::too_big;
}

SendResult Layer::State::send(PacketPtr packet, const Egress& egress) noexcept {
  NB_ASSERT(packet != nullptr);
  if (!egress.destination.is_v4()) {
    return refuse(Drop::ipv6_not_supported, SendResult::no_route);
  }
  const auto hop = routes.find(egress.destination);
  if (!hop) return refuse(Drop::no_route, SendResult::no_route);
  if (!is_ours(egress.source)) return refuse(Drop::bad_source, SendResult::no_route);
  if (is_ours(egress.destination)) return send_local(std::move(packet), egress);
  const uint16_t path_mtu = egress.dont_fragment ? device.mtu() : mtu_to(egress.destination);
  const Cut cut = cut_for(*packet, egress, path_mtu);
  if (cut == Cut::too_big) return refuse(Drop::too_big, SendResult::too_big);
  if (!has_room(egress.destination)) return refuse(Drop::output_full, SendResult::would_block);
  if (cut == Cut::yes) {  // one checksum for all fragments
    const bool is_complete = complete_checksum(*packet);
    NB_ASSERT(is_complete);
  }
  // RFC 6864: the ID of an atomic datagram is free; else it must not be guessed.
  write_header(*packet, egress,
               egress.dont_fragment ? 0 : static_cast<uint16_t>(context.random.next_u32()));
  if (cut == Cut::yes) {
    packet->gso = Gso::fragments4;
    packet->gso_size = path_mtu;
  }
  sent.add();
  if (is_group(egress.destination)) {
    send_to_group(std::move(packet), egress.destination);
  } else {
    neighbours.send(hop->neighbour, std::move(packet));
  }
  return SendResult::sent;
}

void Layer::State::write_header(Packet& packet, const Egress& egress, uint16_t id) noexcept {
  const wire::Ipv4Header header{
      .tos = egress.tos,
      .total_length = static_cast<uint16_t>(wire::kIpv4HeaderSize + packet.size()),
      .identification = id,
      .dont_fragment = egress.dont_fragment,
      .ttl = egress.ttl,
      .protocol = egress.protocol,
      .source = egress.source,
      .destination = egress.destination};
  header.emit(packet.push(wire::kIpv4HeaderSize));
  if (packet.checksum == Checksum::partial) {
    packet.csum_start = static_cast<uint16_t>(packet.csum_start + wire::kIpv4HeaderSize);
  }
}

// Broadcast, or the multicast MAC of RFC 1112 6.4.
void Layer::State::send_to_group(PacketPtr packet, const IpAddress& destination) noexcept {
  MacAddress to = MacAddress::broadcast();
  if (destination.is_multicast()) {
    const uint32_t bits = destination.v4_bits();
    to = {{0x01, 0x00, 0x5e, static_cast<uint8_t>((bits >> 16) & 0x7f),
           static_cast<uint8_t>(bits >> 8), static_cast<uint8_t>(bits)}};
  }
  neighbours.forward(to, std::move(packet));
}

bool Layer::State::has_room(const IpAddress& destination) noexcept {
  if (is_ours(destination)) {
    if (local_full()) is_local_blocked = true;
    return !local_full();
  }
  if (output.full()) output.transmit();
  if (output.full()) is_blocked = true;
  return !output.full();
}

void Layer::State::flush() noexcept {
  if (is_blocked) device.reclaim(0);
  output.transmit();
  // Either queue alone: a device that takes nothing more does not stop what stays inside.
  const bool has_room = (is_blocked && !output.full()) || (is_local_blocked && !local_full());
  if (!has_room) return;
  is_blocked = is_local_blocked = false;
  for (Transport* transport : transports) {
    if (transport != nullptr) transport->transmit_ready();
  }
  output.transmit();
}

void Layer::State::unresolved(const Packet& packet) noexcept { icmp.report_unresolved(packet); }

// ---- the face -----------------------------------------------------------------------------------

Layer::Layer(ShardContext& context, NetDevice& device, const Options& options)
    : state_(std::make_unique<State>(*this, context, device, options)) {}

Layer::~Layer() = default;

void Layer::register_transport(uint8_t protocol, Transport& transport) noexcept {
  state_->transports[protocol] = &transport;
}

SendResult Layer::send(PacketPtr packet, const Egress& egress) noexcept {
  return state_->send(std::move(packet), egress);
}

void Layer::receive(PacketBurst& burst) noexcept {
  for (PacketPtr& packet : burst) state_->receive(std::move(packet));
  burst.clear();
}

bool Layer::has_room(const IpAddress& destination) noexcept {
  return state_->has_room(destination);
}
void Layer::flush() noexcept { state_->flush(); }

bool Layer::output_pending() const noexcept { return !state_->output.empty(); }

size_t Layer::receive_local() noexcept { return state_->receive_local(); }

bool Layer::local_pending() const noexcept { return !state_->local.empty(); }

std::optional<IpAddress> Layer::source_for(const IpAddress& destination) const noexcept {
  return state_->routes.find(destination).transform([](const Routes::Hop& hop) {
    return hop.source;
  });
}

uint16_t Layer::mtu_to(const IpAddress& destination) const noexcept {
  return state_->mtu_to(destination);
}

void Layer::lower_path_mtu(const IpAddress& destination, uint16_t mtu) noexcept {
  state_->path_mtus.lower(destination, mtu, state_->device.mtu());
}

bool Layer::is_ours(const IpAddress& address) const noexcept { return state_->is_ours(address); }

bool Layer::is_group(const IpAddress& address) const noexcept { return state_->is_group(address); }

NetDevice& Layer::device() noexcept { return state_->device; }

void Layer::send_port_unreachable(const Packet& packet, const Ingress& ingress) noexcept {
  state_->icmp.send_unreachable(packet, ingress, wire::kIcmpPortUnreachable);
}

void Layer::announce() noexcept { state_->neighbours.announce(); }

void Layer::set_echo_sink(EchoSink* sink) noexcept { state_->icmp.set_echo_sink(sink); }

SendResult Layer::send_echo(const IpAddress& to, uint16_t id, uint16_t sequence,
                            size_t payload_bytes) noexcept {
  return state_->icmp.send_echo(to, id, sequence, payload_bytes);
}

}  // namespace nobounce::ip
