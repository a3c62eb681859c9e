#include "base/checksum.hpp"
#include "ip/ip_layer.hpp"
#include "wire/ipv4.hpp"
#include "wire/tcp.hpp"
#include "wire/udp.hpp"

namespace nobounce::ip {

bool verify_transport_checksum(const Packet& packet, const Ingress& ingress) noexcept {
  switch (packet.checksum) {
    case Checksum::verified:
      return true;
    case Checksum::partial: {
      const uint16_t field =
          ingress.protocol == kProtocolTcp ? wire::kTcpChecksumOffset : wire::kUdpChecksumOffset;
      const bool has_field = ingress.protocol == kProtocolTcp || ingress.protocol == kProtocolUdp;
      return has_field && packet.csum_start == 0 && packet.csum_offset == field;
    }
    case Checksum::none:
      break;
  }
  const uint64_t pseudo = wire::pseudo_header_sum(
      ingress.source, ingress.destination, ingress.protocol, static_cast<uint32_t>(packet.size()));
  return checksum_finish(pseudo + packet.sum(0, packet.size())) == 0;
}

void set_partial_checksum(Packet& packet, const Egress& egress, uint16_t csum_offset) noexcept {
  const uint64_t pseudo = wire::pseudo_header_sum(
      egress.source, egress.destination, egress.protocol, static_cast<uint32_t>(packet.size()));
  store_be<uint16_t>(packet.mutable_head(), csum_offset, checksum_fold(pseudo));
  packet.checksum = Checksum::partial;
  packet.csum_start = 0;
  packet.csum_offset = csum_offset;
}

}  // namespace nobounce::ip
