#include "ip/layer_state.hpp"

namespace nobounce::ip {

// Drops bytes from the head's front; where a partial checksum begins moves along. False when that
// would be inside the dropped header: a device that says so is not believed (TM-41).
bool Layer::State::pull(Packet& packet, size_t bytes) noexcept {
  packet.pull(bytes);
  if (packet.checksum != Checksum::partial) return true;
  if (packet.csum_start < bytes) return false;
  packet.csum_start = static_cast<uint16_t>(packet.csum_start - bytes);
  return true;
}

void Layer::State::receive(PacketPtr packet) noexcept {
  received.add();
  const auto ethernet = wire::EthernetView::parse(packet->head());
  if (!ethernet) {
    drops.add(Drop::short_frame);
    return;
  }
  const MacAddress to = ethernet->destination();
  const bool is_link_unicast = to == mac;
  if (!is_link_unicast && !to.is_multicast()) {
    drops.add(Drop::other_mac);
    return;
  }
  const uint16_t type = ethernet->ether_type();
  if (!pull(*packet, wire::kEthernetHeaderSize)) {
    drops.add(Drop::bad_csum_start);
    return;
  }
  packet->link_header = wire::kEthernetHeaderSize;
  switch (type) {
    case wire::kEtherTypeIpv4:
      receive_ipv4(std::move(packet), is_link_unicast);
      break;
    case wire::kEtherTypeArp:
      neighbours.receive(*packet);
      break;
    case wire::kEtherTypeIpv6:
      drops.add(Drop::ipv6_not_supported);
      break;
    default:
      drops.add(Drop::unknown_ether_type);
  }
}

std::optional<Drop> Layer::State::check_addresses(const wire::Ipv4View& header,
                                                  bool is_link_unicast) const noexcept {
  const IpAddress source = header.source();
  if (source.is_any() || source.is_loopback() || is_group(source) || is_ours(source) ||
      (source.v4_bits() >> 28) == 0xf) {
    return Drop::bad_source_address;
  }
  const IpAddress destination = header.destination();
  const bool is_broadcast = is_group(destination) && !destination.is_multicast();
  if (!is_ours(destination) && !is_broadcast) return Drop::not_for_us;  // no multicast joined
  // RFC 1122 3.3.6: a link-layer broadcast carries an IP broadcast, or is a mistake.
  if (!is_link_unicast && !is_broadcast) return Drop::link_broadcast;
  return std::nullopt;
}

void Layer::State::receive_ipv4(PacketPtr packet, bool is_link_unicast) noexcept {
  const Bytes head = packet->head();
  const auto header = wire::Ipv4View::parse(head, packet->size());
  if (!header) {
    drops.add(drop_of(header.error()));
    return;
  }
  if (header->has_source_route()) {
    drops.add(Drop::source_route);
    return;
  }
  if (const auto why = check_addresses(*header, is_link_unicast)) {
    drops.add(*why);
    return;
  }
  packet->trim(header->total_length());
  if (header->is_fragment()) {
    receive_fragment(std::move(packet), *header);
    return;
  }
  const Ingress ingress = ingress_of(*header);
  if (!pull(*packet, header->header_size())) {
    drops.add(Drop::bad_csum_start);
    return;
  }
  dispatch(std::move(packet), ingress);
}

// What a device says about the checksum of a fragment says nothing about the datagram.
void Layer::State::receive_fragment(PacketPtr packet, const wire::Ipv4View& header) noexcept {
  packet->checksum = Checksum::none;
  auto whole = reassembly.add(std::move(packet), header);
  if (!whole) return;
  const auto whole_header =
      wire::Ipv4View::parse(whole->header(), whole->header_size + whole->packet->size());
  NB_ASSERT(whole_header.has_value());
  dispatch(std::move(whole->packet), ingress_of(*whole_header));
}

void Layer::State::timed_out(const Packet& first, const wire::Ipv4View& header) noexcept {
  icmp.send_reassembly_timeout(first, ingress_of(header));
}

Ingress Layer::State::ingress_of(const wire::Ipv4View& header) const noexcept {
  return {.source = header.source(),
          .destination = header.destination(),
          .protocol = header.protocol(),
          .ttl = header.ttl(),
          .tos = header.tos(),
          .to_unicast = is_ours(header.destination()),
          .network_header = header.bytes()};
}

void Layer::State::dispatch(PacketPtr packet, const Ingress& ingress) noexcept {
  if (ingress.protocol == kProtocolIcmp) {
    icmp.receive(std::move(packet), ingress);
    return;
  }
  Transport* transport = transports[ingress.protocol];
  if (transport != nullptr) {
    transport->receive(std::move(packet), ingress);
    return;
  }
  drops.add(Drop::unknown_protocol);
  icmp.send_unreachable(*packet, ingress, wire::kIcmpProtocolUnreachable);
}

}  // namespace nobounce::ip
