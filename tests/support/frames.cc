#include "support/frames.hpp"

#include "base/checksum.hpp"

namespace nobounce::test {

ByteVector concat(Bytes a, Bytes b) {
  ByteVector all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

ByteVector pattern(size_t size, uint64_t seed) {
  ByteVector bytes(size);
  SeededRandom random(seed);
  random.fill(bytes);
  return bytes;
}

ByteVector ethernet(const wire::EthernetHeader& header, Bytes payload) {
  ByteVector frame(wire::kEthernetHeaderSize);
  header.emit(frame);
  return concat(frame, payload);
}

ByteVector arp_frame(const MacAddress& to, const wire::ArpPacket& arp) {
  ByteVector bytes(wire::kArpSize);
  arp.emit(bytes);
  return ethernet({.destination = to, .source = arp.sender_mac, .ether_type = wire::kEtherTypeArp},
                  bytes);
}

ByteVector ipv4(wire::Ipv4Header header, Bytes payload, Bytes options) {
  const size_t header_size = wire::kIpv4HeaderSize + options.size();
  header.total_length = static_cast<uint16_t>(header_size + payload.size());
  ByteVector bytes(wire::kIpv4HeaderSize);
  header.emit(bytes);
  bytes[0] = static_cast<std::byte>(0x40 | header_size / 4);
  bytes = concat(concat(bytes, options), payload);
  fix_ipv4_checksum(bytes, 0);
  return bytes;
}

ByteVector udp(const Endpoint& from, const Endpoint& to, Bytes payload) {
  const auto length = static_cast<uint16_t>(wire::kUdpHeaderSize + payload.size());
  ByteVector bytes(wire::kUdpHeaderSize);
  wire::UdpHeader{.source_port = from.port, .destination_port = to.port, .length = length}.emit(
      bytes);
  bytes = concat(bytes, payload);
  const uint64_t pseudo = wire::pseudo_header_sum(from.address, to.address, 17, length);
  const uint16_t sum = checksum_finish(checksum_add(pseudo, bytes));
  store_be<uint16_t>(bytes, wire::kUdpChecksumOffset, sum == 0 ? uint16_t{0xffff} : sum);
  return bytes;
}

ByteVector tcp(const IpAddress& from, const IpAddress& to, wire::TcpHeader header, Bytes payload) {
  header.checksum = 0;
  ByteVector bytes(header.size());
  header.emit(bytes);
  bytes = concat(bytes, payload);
  const uint64_t pseudo = wire::pseudo_header_sum(from, to, 6, static_cast<uint32_t>(bytes.size()));
  store_be<uint16_t>(bytes, wire::kTcpChecksumOffset, checksum_finish(checksum_add(pseudo, bytes)));
  return bytes;
}

ByteVector icmp(const wire::IcmpHeader& header, Bytes payload) {
  ByteVector bytes(wire::kIcmpHeaderSize);
  header.emit(bytes);
  bytes = concat(bytes, payload);
  store_be<uint16_t>(bytes, wire::kIcmpChecksumOffset, 0);
  store_be<uint16_t>(bytes, wire::kIcmpChecksumOffset, checksum_finish(checksum_add(0, bytes)));
  return bytes;
}

void fix_ipv4_checksum(ByteVector& bytes, size_t offset) {
  const MutableBytes packet = MutableBytes(bytes).subspan(offset);
  const size_t size = size_t{load_be<uint8_t>(packet, 0) & 0x0fu} * 4;
  store_be<uint16_t>(packet, 10, 0);
  store_be<uint16_t>(packet, 10, checksum_finish(checksum_add(0, packet.first(size))));
}

bool has_right_checksums(const ByteVector& frame) {
  const Bytes packet = Bytes(frame).subspan(wire::kEthernetHeaderSize);
  const auto header = wire::Ipv4View::parse(packet, packet.size());
  if (!header) return false;
  const Bytes body = packet.first(header->total_length()).subspan(header->header_size());
  const uint64_t pseudo =
      header->protocol() == 1
          ? 0
          : wire::pseudo_header_sum(header->source(), header->destination(), header->protocol(),
                                    static_cast<uint32_t>(body.size()));
  if (header->protocol() == 17 && load_be<uint16_t>(body, wire::kUdpChecksumOffset) == 0) {
    return true;
  }
  return checksum_finish(checksum_add(pseudo, body)) == 0;
}

}  // namespace nobounce::test
