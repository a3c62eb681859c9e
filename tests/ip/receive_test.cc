// IPv4 receive: every check in order (N-1, TM-44), trimming, checksums, mutations.
#include "ip/ip_fixture.hpp"

namespace nobounce::ip {
namespace {

class Receive : public IpTest {};

TEST_F(Receive, delivers_with_the_facts_of_the_header) {
  wire::Ipv4Header header = ip_header();
  header.tos = 0x28;
  header.ttl = 9;
  const ByteVector body = udp_bytes(30);
  inject(from_peer(test::ipv4(header, body)));
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_EQ(udp.packets[0], body);
  EXPECT_EQ(udp.last.source, kPeer);
  EXPECT_EQ(udp.last.destination, kOurs);
  EXPECT_EQ(udp.last.protocol, kProtocolUdp);
  EXPECT_EQ(udp.last.ttl, 9);
  EXPECT_EQ(udp.last.tos, 0x28);
  EXPECT_TRUE(udp.last.to_unicast);
  EXPECT_TRUE(udp.checksum_ok);
  EXPECT_EQ(udp.header.size(), 20U);
}

TEST_F(Receive, every_payload_size_arrives_whole_and_is_given_back) {
  for (const size_t size : {0U, 1U, 17U, 18U, 149U, 150U, 151U, 500U, 1472U}) {
    inject(udp_frame(size));
    ASSERT_EQ(udp.packets.back(), udp_bytes(size)) << size;
    EXPECT_EQ(udp.after_give_back.back(), udp_bytes(size)) << size;
    EXPECT_EQ(udp.payload_size, size);
    EXPECT_TRUE(udp.checksum_ok);
  }
}

TEST_F(Receive, T2_link_padding_is_cut_also_inside_the_header_window) {
  for (const size_t size : {0U, 1U, 10U, 18U, 140U, 149U, 150U, 151U, 300U}) {
    for (const size_t padding : {1U, 2U, 18U, 200U}) {
      ByteVector frame = udp_frame(size);
      frame.insert(frame.end(), padding, std::byte{0xa5});
      inject(frame);
      ASSERT_EQ(udp.packets.back(), udp_bytes(size)) << size << " " << padding;
      ASSERT_EQ(udp.after_give_back.back(), udp_bytes(size)) << size << " " << padding;
      ASSERT_EQ(udp.payload_size, size);
      ASSERT_TRUE(udp.checksum_ok);
    }
  }
}

TEST_F(Receive, TM44_truncated_at_every_length) {
  const ByteVector whole = udp_frame(20);
  for (size_t size = 0; size < whole.size(); ++size) {
    inject(ByteVector(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)));
  }
  EXPECT_TRUE(udp.packets.empty());
  EXPECT_EQ(drops("short_frame"), 14U);
  EXPECT_EQ(drops("truncated"), 20U);
  EXPECT_EQ(drops("bad_length"), whole.size() - 34);
}

TEST_F(Receive, N1_header_faults_are_dropped_by_reason) {
  const auto broken = [&](size_t at, int value, bool fix = true) {
    ByteVector packet = test::ipv4(ip_header(), udp_bytes(20));
    packet[at] = static_cast<std::byte>(value);
    if (fix) test::fix_ipv4_checksum(packet, 0);
    inject(from_peer(packet));
  };
  broken(0, 0x65);
  EXPECT_EQ(drops("bad_version"), 1U);
  broken(0, 0x44);
  EXPECT_EQ(drops("bad_header_size"), 1U);
  broken(3, 19);
  EXPECT_EQ(drops("bad_length"), 1U);
  broken(3, 49);  // one more than there is
  EXPECT_EQ(drops("bad_length"), 2U);
  broken(10, 0x55, false);
  EXPECT_EQ(drops("bad_header_checksum"), 1U);
  EXPECT_TRUE(udp.packets.empty());
  broken(8, 0);  // TTL 0 is accepted: we do not forward
  EXPECT_EQ(udp.packets.size(), 1U);
}

TEST_F(Receive, N1_source_addresses_that_nobody_may_have) {
  for (const char* source : {"0.0.0.0", "127.0.0.1", "127.9.9.9", "224.0.0.1", "239.1.2.3",
                             "255.255.255.255", "240.0.0.1", "10.0.0.255", "10.0.0.1"}) {
    wire::Ipv4Header header = ip_header();
    header.source = *IpAddress::parse(source);
    inject(from_peer(test::ipv4(header, udp_bytes(5))));
    EXPECT_TRUE(udp.packets.empty()) << source;
  }
  EXPECT_EQ(drops("bad_source_address"), 9U);
}

TEST_F(Receive, N1_destination_ours_or_broadcast) {
  const auto to = [&](const char* destination, const MacAddress& mac) {
    wire::Ipv4Header header = ip_header();
    header.destination = *IpAddress::parse(destination);
    inject(
        test::ethernet({.destination = mac, .source = kPeerMac, .ether_type = wire::kEtherTypeIpv4},
                       test::ipv4(header, udp_bytes(5))));
  };
  to("10.0.0.3", kOurMac);
  to("192.0.2.1", kOurMac);
  to("224.0.0.251", {{0x01, 0, 0x5e, 0, 0, 0xfb}});  // not joined
  EXPECT_EQ(drops("not_for_us"), 3U);
  to("10.0.0.1", MacAddress::broadcast());  // RFC 1122 3.3.6
  EXPECT_EQ(drops("link_broadcast"), 1U);
  to("10.0.0.1", {{0x02, 0, 0, 0, 0, 9}});
  EXPECT_EQ(drops("other_mac"), 1U);
  EXPECT_TRUE(udp.packets.empty());
  to("10.0.0.255", MacAddress::broadcast());
  to("255.255.255.255", MacAddress::broadcast());
  ASSERT_EQ(udp.packets.size(), 2U);
  EXPECT_FALSE(udp.last.to_unicast);
}

TEST_F(Receive, N1_options_are_skipped_and_source_routes_dropped) {
  const ByteVector nops(40, std::byte{1});
  for (size_t size = 4; size <= 40; size += 4) {
    inject(from_peer(test::ipv4(ip_header(), udp_bytes(30), Bytes(nops).first(size))));
    ASSERT_EQ(udp.packets.back(), udp_bytes(30));
    EXPECT_EQ(udp.header.size(), 20 + size);
    EXPECT_TRUE(udp.checksum_ok);
  }
  // Malformed options end the walk; what is behind them is not looked at.
  for (const auto& [kind, length] : {std::pair{7, 0}, std::pair{7, 1}, std::pair{68, 40},
                                     std::pair{148, 255}, std::pair{255, 2}}) {
    ByteVector options(8, std::byte{0});
    options[0] = static_cast<std::byte>(kind);
    options[1] = static_cast<std::byte>(length);
    const size_t before = udp.packets.size();
    inject(from_peer(test::ipv4(ip_header(), udp_bytes(30), options)));
    EXPECT_EQ(udp.packets.size(), before + 1) << kind << " " << length;
  }
  udp.packets.resize(10);
  // Loose and strict, first or behind others.
  for (const int kind : {131, 137}) {
    for (size_t at = 0; at <= 4; ++at) {
      ByteVector options(12, std::byte{1});
      options[at] = static_cast<std::byte>(kind);
      options[at + 1] = std::byte{7};
      inject(from_peer(test::ipv4(ip_header(), udp_bytes(30), options)));
    }
  }
  EXPECT_EQ(drops("source_route"), 10U);
  // In a fragment too.
  ByteVector fragment =
      test::ipv4(ip_header(), udp_bytes(24),
                 ByteVector{std::byte{137}, std::byte{4}, std::byte{4}, std::byte{0}});
  fragment[6] = std::byte{0x20};
  test::fix_ipv4_checksum(fragment, 0);
  inject(from_peer(fragment));
  EXPECT_EQ(drops("source_route"), 11U);
  EXPECT_EQ(end.count("ip.reassembly.fragments"), 0U);
  const ByteVector route{std::byte{131}, std::byte{7}, std::byte{4}, std::byte{1},
                         std::byte{2},   std::byte{3}, std::byte{4}, std::byte{0}};
  inject(from_peer(test::ipv4(ip_header(), udp_bytes(30), route)));
  EXPECT_EQ(drops("source_route"), 12U);
  EXPECT_EQ(udp.packets.size(), 10U);
}

TEST_F(Receive, other_ether_types_are_counted) {
  inject(test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = 0x86dd}, {}));
  inject(test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = 0x8100}, {}));
  inject(test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = 60}, {}));
  EXPECT_EQ(drops("ipv6_not_supported"), 1U);
  EXPECT_EQ(drops("unknown_ether_type"), 2U);
}

// ---- checksums ----------------------------------------------------------------------------------

TEST_F(Receive, T1_software_verification_finds_every_flipped_bit) {
  const ByteVector body = udp_bytes(31);
  for (size_t bit = 0; bit < body.size() * 8; ++bit) {
    ByteVector broken = body;
    broken[bit / 8] ^= std::byte{1} << (bit % 8);
    inject(from_peer(test::ipv4(ip_header(), broken)));
    ASSERT_FALSE(udp.checksum_ok) << bit;
  }
}

TEST_F(Receive, T1_a_wrong_pseudo_header_is_found) {
  wire::Ipv4Header header = ip_header();
  header.source = IpAddress::v4(10, 0, 0, 3);
  inject(from_peer(test::ipv4(header, udp_bytes(31))));
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_FALSE(udp.checksum_ok);
}

TEST_F(Receive, TM41_partial_is_believed_only_at_our_own_offsets) {
  const auto accepted = [&](uint16_t start, uint16_t offset, uint8_t protocol = kProtocolUdp,
                            size_t options = 0) {
    Recorder& recorder = protocol == kProtocolTcp ? tcp : udp;
    recorder.checksum_ok = false;
    WireFrame frame{.bytes = from_peer(test::ipv4(ip_header(protocol), udp_bytes(40),
                                                  ByteVector(options, std::byte{1})))};
    frame.checksum = Checksum::partial;
    frame.csum_start = start;
    frame.csum_offset = offset;
    device.inject(frame);
    round();
    return recorder.checksum_ok;
  };
  EXPECT_TRUE(accepted(34, 6));
  EXPECT_TRUE(accepted(34, 16, kProtocolTcp));
  EXPECT_TRUE(accepted(38, 6, kProtocolUdp, 4));
  EXPECT_FALSE(accepted(34, 16));
  EXPECT_FALSE(accepted(34, 6, kProtocolTcp));
  EXPECT_FALSE(accepted(34, 6, kProtocolUdp, 4));
  for (const unsigned start : {0U, 13U, 14U, 33U, 35U, 65535U}) {
    EXPECT_FALSE(accepted(static_cast<uint16_t>(start), 6)) << start;
  }
  EXPECT_FALSE(accepted(65535, 65535));
  EXPECT_EQ(drops("bad_csum_start"), 5U);  // 0, 13 | 14, 33 inside headers; the option case
}

TEST_F(Receive, verified_is_believed_without_a_sum) {
  WireFrame frame{.bytes = udp_frame(40), .checksum = Checksum::verified};
  frame.bytes.back() ^= std::byte{1};
  device.inject(frame);
  round();
  EXPECT_TRUE(udp.checksum_ok);
}

// ---- what nobody asked for -----------------------------------------------------------------------

TEST_F(Receive, unknown_protocols_are_answered_once_and_limited) {
  resolve_peer();
  inject(from_peer(test::ipv4(ip_header(132), test::pattern(20))));
  EXPECT_EQ(drops("unknown_protocol"), 1U);
  const auto frame = next(wire::kEtherTypeIpv4);
  ASSERT_TRUE(frame);
  EXPECT_EQ((*frame)[34], std::byte{3});
  EXPECT_EQ((*frame)[35], std::byte{2});
  EXPECT_TRUE(test::has_right_checksums(*frame));
  for (int i = 0; i < 1000; ++i) inject(from_peer(test::ipv4(ip_header(132), {})));
  EXPECT_LE(count_frames(wire::kEtherTypeIpv4), 20U);
}

// C018: headers come from the private head alone. Whatever the bytes are, a packet is dropped or
// delivered by one consistent reading: never longer than the frame, header and body as they were.
TEST_F(Receive, C018_mutated_frames_are_dropped_or_read_consistently) {
  size_t delivered = 0;
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    WireFrame frame{.bytes = udp_frame(random.below(300))};
    if (random.below(8) == 0) frame.bytes.resize(random.below(60));
    for (uint32_t i = random.below(4); i > 0 && !frame.bytes.empty(); --i) {
      const uint32_t window = std::min<uint32_t>(50, static_cast<uint32_t>(frame.bytes.size()));
      frame.bytes[random.below(window)] = static_cast<std::byte>(random.next_u32());
    }
    if (frame.bytes.size() >= 34 && random.below(2) == 0) {
      frame.bytes[14] = std::byte{0x45};
      test::fix_ipv4_checksum(frame.bytes, 14);
    }
    frame.checksum = static_cast<Checksum>(random.below(3));
    frame.csum_start = static_cast<uint16_t>(random.below(70));
    frame.csum_offset = static_cast<uint16_t>(random.below(20));
    const size_t before = udp.packets.size() + tcp.packets.size();
    device.inject(frame);
    round();
    while (device.pop()) {
    }
    if (udp.packets.size() + tcp.packets.size() == before) continue;
    ++delivered;
    const Recorder& to = udp.packets.empty() ? tcp : udp;
    const ByteVector& body = to.packets.back();
    const size_t header = to.header.size();
    ASSERT_GE(header, 20U);
    ASSERT_LE(14 + header + body.size(), frame.bytes.size());
    const auto start = frame.bytes.begin() + 14;
    ASSERT_TRUE(std::equal(to.header.begin(), to.header.end(), start));
    ASSERT_TRUE(std::equal(body.begin(), body.end(), start + static_cast<ptrdiff_t>(header)));
    udp.packets.clear();
    tcp.packets.clear();
    udp.after_give_back.clear();
    tcp.after_give_back.clear();
  }
  EXPECT_GT(delivered, 2000U);
}

}  // namespace
}  // namespace nobounce::ip
