// Frames as flat bytes, for tests that play the other side: built with the structs of wire/, with
// right checksums; a test then breaks what it wants broken.
#pragma once

#include "support/wire_link.hpp"
#include "wire/arp.hpp"
#include "wire/ethernet.hpp"
#include "wire/icmp.hpp"
#include "wire/ipv4.hpp"
#include "wire/tcp.hpp"
#include "wire/udp.hpp"

namespace nobounce::test {

[[nodiscard]] ByteVector concat(Bytes a, Bytes b);
[[nodiscard]] ByteVector pattern(size_t size, uint64_t seed = 1);  // random bytes

[[nodiscard]] ByteVector ethernet(const wire::EthernetHeader& header, Bytes payload);
[[nodiscard]] ByteVector arp_frame(const MacAddress& to, const wire::ArpPacket& arp);
// Fills total_length. `options` (a multiple of 4 bytes) go behind the header.
[[nodiscard]] ByteVector ipv4(wire::Ipv4Header header, Bytes payload, Bytes options = {});
// Right checksum over the pseudo header; lengths filled.
[[nodiscard]] ByteVector udp(const Endpoint& from, const Endpoint& to, Bytes payload);
[[nodiscard]] ByteVector tcp(const IpAddress& from, const IpAddress& to, wire::TcpHeader header,
                             Bytes payload = {});
[[nodiscard]] ByteVector icmp(const wire::IcmpHeader& header, Bytes payload);

// Recomputes the header checksum of the IPv4 packet that begins at `offset`.
void fix_ipv4_checksum(ByteVector& bytes, size_t offset);
// Whether an Ethernet frame's IPv4 header checksum and its TCP, UDP or ICMP checksum are right.
[[nodiscard]] bool has_right_checksums(const ByteVector& frame);

}  // namespace nobounce::test
