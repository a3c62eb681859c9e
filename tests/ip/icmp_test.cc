// ICMP: echo both ways, errors in and out (N-4, T-54).
#include "ip/icmp.hpp"

#include "ip/ip_fixture.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kIp = wire::kEtherTypeIpv4;

class IcmpTest : public IpTest {
 protected:
  static ByteVector icmp_frame(Bytes message) {
    return from_peer(test::ipv4(ip_header(kProtocolIcmp), message));
  }
  static ByteVector echo_frame(size_t payload, uint16_t sequence = 1) {
    return icmp_frame(
        test::icmp({.type = wire::kIcmpEchoRequest, .identifier = 77, .sequence = sequence},
                   test::pattern(payload, payload + 1)));
  }
  // An error about a UDP datagram of ours.
  static ByteVector error_frame(uint8_t type, uint8_t code, Bytes quote, uint16_t mtu = 0) {
    return icmp_frame(test::icmp({.type = type, .code = code, .sequence = mtu}, quote));
  }
  static ByteVector our_datagram(uint8_t protocol = kProtocolUdp, size_t body = 8) {
    return test::ipv4({.protocol = protocol, .source = kOurs, .destination = kPeer},
                      test::pattern(body, 5));
  }
};

TEST_F(IcmpTest, N4_echo_reply_of_every_size_keeps_payload_and_has_a_right_checksum) {
  resolve_peer();
  for (const size_t size : {0U, 1U, 56U, 149U, 150U, 151U, 700U, 1472U}) {
    inject(echo_frame(size, static_cast<uint16_t>(size)));
    const auto frame = next(kIp);
    ASSERT_TRUE(frame) << size;
    EXPECT_TRUE(test::has_right_checksums(*frame)) << size;
    const auto reply = wire::IcmpView::parse(Bytes(*frame).subspan(34));
    EXPECT_EQ(reply->type(), wire::kIcmpEchoReply);
    EXPECT_EQ(reply->identifier(), 77);
    EXPECT_EQ(reply->sequence(), size);
    EXPECT_EQ(ByteVector(frame->begin() + 42, frame->end()), test::pattern(size, size + 1));
    EXPECT_EQ(load_be<uint32_t>(*frame, 14 + 12), kOurs.v4_bits());
    EXPECT_EQ(load_be<uint32_t>(*frame, 14 + 16), kPeer.v4_bits());
  }
}

// The reply's checksum is adjusted, not recomputed: the edge where the sum is 0xffff.
TEST_F(IcmpTest, N4_echo_checksum_edges) {
  resolve_peer();
  for (unsigned value = 0; value < 0x10000; value += 0x55) {
    ByteVector payload(2);
    store_be<uint16_t>(payload, 0, static_cast<uint16_t>(value));
    end.begin_round();
    clock.advance(10 * kNsPerMs);
    inject(icmp_frame(test::icmp({.type = wire::kIcmpEchoRequest}, payload)));
    const auto frame = next(kIp);
    ASSERT_TRUE(frame);
    ASSERT_TRUE(test::has_right_checksums(*frame)) << value;
    if (value % 10 == 0) resolve_peer();  // keeps the neighbour fresh
  }
}

TEST_F(IcmpTest, N4_echo_is_refused_when_wrong_broadcast_or_off) {
  resolve_peer();
  ByteVector broken = echo_frame(20);
  broken.back() ^= std::byte{1};
  inject(broken);
  EXPECT_EQ(end.count("icmp.bad_checksum"), 1U);
  wire::Ipv4Header header = ip_header(kProtocolIcmp);
  header.destination = IpAddress::v4(10, 0, 0, 255);
  inject(test::ethernet(
      {.destination = MacAddress::broadcast(), .source = kPeerMac, .ether_type = kIp},
      test::ipv4(header, test::icmp({.type = wire::kIcmpEchoRequest}, {}))));
  EXPECT_EQ(end.count("icmp.not_unicast"), 1U);
  for (size_t size = 0; size < 8; ++size) {
    inject(icmp_frame(test::pattern(size)));
  }
  EXPECT_EQ(end.count("icmp.malformed"), 8U);
  inject(icmp_frame(test::icmp({.type = wire::kIcmpEchoRequest, .code = 1}, {})));
  inject(icmp_frame(test::icmp({.type = 13}, ByteVector(12))));  // timestamp
  EXPECT_EQ(end.count("icmp.ignored"), 2U);
  WireFrame partial{
      .bytes = echo_frame(20), .checksum = Checksum::partial, .csum_start = 34, .csum_offset = 2};
  device.inject(partial);
  round();
  EXPECT_EQ(end.count("icmp.bad_checksum"), 2U);
  EXPECT_FALSE(next(kIp));
}

TEST(IcmpOff, ping_can_be_switched_off) {
  ManualClock clock;
  test::StackEnd end(clock);
  test::ScriptDevice device(end.context, {});
  Layer layer(end.context, device, {.address = {kOurs, 24}, .answer_ping = false});
  device.inject(test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = kIp},
                               test::ipv4({.protocol = 1, .source = kPeer, .destination = kOurs},
                                          test::icmp({.type = wire::kIcmpEchoRequest}, {}))));
  PacketBurst burst;
  device.receive(0, burst);
  layer.receive(burst);
  layer.flush();
  EXPECT_EQ(device.sent(), 0U);
}

TEST_F(IcmpTest, N4_echo_replies_are_limited) {
  resolve_peer();
  for (int i = 0; i < 1000; ++i) inject(echo_frame(1));
  EXPECT_EQ(count_frames(kIp), Icmp::kEchoReplyBurst);
  EXPECT_EQ(end.count("icmp.echo_limited"), 1000 - Icmp::kEchoReplyBurst);
  advance(100 * kNsPerMs);
  for (int i = 0; i < 1000; ++i) inject(echo_frame(1));
  EXPECT_EQ(count_frames(kIp), Icmp::kEchoRepliesPerSecond / 10);
}

// ---- errors received ----------------------------------------------------------------------------

TEST_F(IcmpTest, N4_errors_reach_the_transport_they_are_about) {
  using Kind = IcmpError::Kind;
  const std::vector<std::tuple<uint8_t, uint8_t, Kind>> cases = {
      {3, 0, Kind::net_unreachable},
      {3, 1, Kind::host_unreachable},
      {3, 2, Kind::protocol_unreachable},
      {3, 3, Kind::port_unreachable},
      {3, 4, Kind::fragmentation_needed},
      {3, 5, Kind::source_route_failed},
      {3, 9, Kind::administratively_prohibited},
      {3, 10, Kind::administratively_prohibited},
      {3, 13, Kind::administratively_prohibited},
      {3, 6, Kind::net_unreachable},
      {3, 200, Kind::host_unreachable},
      {11, 0, Kind::time_exceeded},
      {12, 0, Kind::parameter_problem}};
  for (const auto& [type, code, kind] : cases) {
    inject(error_frame(type, code, our_datagram(), 1400));
    ASSERT_FALSE(udp.errors.empty());
    EXPECT_EQ(udp.errors.back().kind, kind) << int{type} << "/" << int{code};
    EXPECT_EQ(udp.errors.back().source, kOurs);
    EXPECT_EQ(udp.errors.back().destination, kPeer);
    EXPECT_EQ(udp.errors.back().next_hop_mtu, kind == Kind::fragmentation_needed ? 1400 : 0);
    EXPECT_EQ(udp.quotes.back(), test::pattern(8, 5));
  }
  inject(error_frame(3, 3, our_datagram(kProtocolTcp, 20)));
  ASSERT_EQ(tcp.errors.size(), 1U);
  EXPECT_EQ(tcp.quotes.back().size(), 20U);
}

TEST_F(IcmpTest, N4_the_quote_ends_with_the_quoted_packet) {
  ByteVector quote = our_datagram(kProtocolUdp, 8);
  quote.insert(quote.end(), 100, std::byte{9});  // RFC 4884 extensions or junk
  inject(error_frame(3, 3, quote));
  ASSERT_EQ(udp.quotes.size(), 1U);
  EXPECT_EQ(udp.quotes[0].size(), 8U);
}

TEST_F(IcmpTest, N4_redirect_and_source_quench_are_ignored) {
  inject(error_frame(5, 1, our_datagram()));
  inject(error_frame(4, 0, our_datagram()));
  EXPECT_TRUE(udp.errors.empty());
  EXPECT_EQ(end.count("icmp.ignored"), 2U);
}

TEST_F(IcmpTest, N4_quotes_that_cannot_be_ours_are_refused) {
  const ByteVector right = our_datagram();
  uint64_t refused = 0;
  for (size_t size = 0; size < right.size(); ++size) {  // at every length
    inject(error_frame(3, 3, Bytes(right).first(size)));
    EXPECT_EQ(end.count("icmp.bad_quote"), ++refused);
  }
  const auto refuse = [&](wire::Ipv4Header header) {
    header.protocol = kProtocolUdp;
    inject(error_frame(3, 3, test::ipv4(header, test::pattern(8))));
    EXPECT_EQ(end.count("icmp.bad_quote"), ++refused);
  };
  refuse({.source = kPeer, .destination = kOurs});                         // not from us
  refuse({.source = kOurs, .destination = IpAddress::v4(10, 0, 0, 255)});  // to a group
  refuse({.fragment_offset = 8, .source = kOurs, .destination = kPeer});   // not the first
  EXPECT_TRUE(udp.errors.empty());
  ByteVector other = our_datagram();
  other[0] = std::byte{0x65};
  inject(error_frame(3, 3, other));
  EXPECT_EQ(end.count("icmp.bad_quote"), ++refused);
  inject(error_frame(3, 3, our_datagram(200)));  // a protocol nobody has
  EXPECT_TRUE(udp.errors.empty());
}

TEST_F(IcmpTest, C018_mutated_errors_neither_crash_nor_reach_the_wrong_one) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    ByteVector quote =
        our_datagram(random.below(2) == 0 ? kProtocolUdp : kProtocolTcp, random.below(40));
    for (uint32_t i = random.below(4); i > 0; --i) {
      quote[random.below(static_cast<uint32_t>(quote.size()))] =
          static_cast<std::byte>(random.next_u32());
    }
    quote.resize(random.below(static_cast<uint32_t>(quote.size()) + 1));
    inject(error_frame(static_cast<uint8_t>(random.below(14)),
                       static_cast<uint8_t>(random.below(16)), quote));
    while (device.pop()) {
    }
  }
  for (const auto& error : udp.errors) EXPECT_EQ(error.source, kOurs);
  for (const auto& bytes : udp.quotes) EXPECT_GE(bytes.size(), 8U);
}

// ---- errors sent --------------------------------------------------------------------------------

class Unreachable : public IcmpTest {
 protected:
  // A transport without the port.
  struct Refuser final : Transport {
    explicit Refuser(Layer& ip) : layer(ip) {}
    void receive(PacketPtr packet, const Ingress& ingress) noexcept override {
      layer.send_port_unreachable(*packet, ingress);
    }
    void icmp_error(const IcmpError&) noexcept override {}
    Layer& layer;
  };
  Unreachable() { layer.register_transport(kProtocolUdp, refuser); }
  Refuser refuser{layer};
};

TEST_F(Unreachable, N4_quotes_the_header_as_received_and_at_least_8_bytes) {
  resolve_peer();
  for (const size_t options : {0U, 40U}) {
    for (const size_t payload : {0U, 5U, 1000U}) {
      wire::Ipv4Header header = ip_header();
      header.identification = 0x4321;
      header.ttl = 3;
      const ByteVector packet =
          test::ipv4(header, udp_bytes(payload), ByteVector(options, std::byte{1}));
      inject(from_peer(packet));
      const auto frame = next(kIp);
      ASSERT_TRUE(frame);
      EXPECT_TRUE(test::has_right_checksums(*frame));
      EXPECT_EQ((*frame)[34], std::byte{3});
      EXPECT_EQ((*frame)[35], std::byte{3});
      const size_t quoted = frame->size() - 42;
      EXPECT_GE(quoted, 20 + options + 8);
      EXPECT_LE(frame->size(), 14U + 576);
      EXPECT_TRUE(std::equal(frame->begin() + 42, frame->end(), packet.begin()));
    }
  }
}

TEST_F(Unreachable, N4_never_about_groups_and_limited) {
  resolve_peer();
  wire::Ipv4Header header = ip_header();
  header.destination = IpAddress::v4(10, 0, 0, 255);
  inject(test::ethernet(
      {.destination = MacAddress::broadcast(), .source = kPeerMac, .ether_type = kIp},
      test::ipv4(header, udp_bytes(5))));
  EXPECT_EQ(count_frames(kIp), 0U);
  for (int i = 0; i < 500; ++i) inject(udp_frame(5));
  EXPECT_EQ(count_frames(kIp), Icmp::kErrorBurst);
  EXPECT_EQ(end.count("icmp.errors_limited"), 500 - Icmp::kErrorBurst);
  advance(kNsPerSecond / 10);
  for (int i = 0; i < 500; ++i) inject(udp_frame(5));
  EXPECT_EQ(count_frames(kIp), Icmp::kErrorsPerSecond / 10);
}

// ---- ping ---------------------------------------------------------------------------------------

struct PingSink final : Layer::EchoSink {
  void echo_reply(const IpAddress& from, uint16_t id, uint16_t sequence, uint8_t ttl,
                  size_t bytes) noexcept override {
    replies.push_back({from, id, sequence, ttl, bytes});
  }
  void echo_error(const IcmpError& error) noexcept override { errors.push_back(error.kind); }
  struct Reply {
    IpAddress from;
    uint16_t id, sequence;
    uint8_t ttl;
    size_t bytes;
  };
  std::vector<Reply> replies;
  std::vector<IcmpError::Kind> errors;
};

TEST(Ping, two_layers_on_a_wire) {
  ManualClock clock;
  test::StackEnd left(clock, 1), right(clock, 2);
  test::WireLink link(clock, 1, left.context, right.context);
  Layer a(left.context, link.left(), {.address = {kOurs, 24}});
  Layer b(right.context, link.right(), {.address = {kPeer, 24}});
  PingSink sink;
  a.set_echo_sink(&sink);
  const auto run = [&] {
    for (int i = 0; i < 4; ++i) {
      left.begin_round();
      right.begin_round();
      PacketBurst burst;
      a.flush();
      link.right().receive(0, burst);
      b.receive(burst);
      b.flush();
      link.left().receive(0, burst);
      a.receive(burst);
    }
  };
  for (const size_t size : {0U, 1U, 56U, 1472U, 1473U, 4000U, 16'000U}) {
    EXPECT_EQ(a.send_echo(kPeer, 5, static_cast<uint16_t>(size), size), SendResult::sent);
    run();
    ASSERT_FALSE(sink.replies.empty());
    EXPECT_EQ(sink.replies.back().from, kPeer);
    EXPECT_EQ(sink.replies.back().id, 5);
    EXPECT_EQ(sink.replies.back().sequence, size);
    EXPECT_EQ(sink.replies.back().ttl, 64);
    EXPECT_EQ(sink.replies.back().bytes, size);
  }
  EXPECT_EQ(a.send_echo(kPeer, 5, 1, 65'508), SendResult::too_big);
  EXPECT_EQ(a.send_echo(kPeer, 5, 1, 65'507), SendResult::sent);  // more than anyone answers
  run();
  EXPECT_EQ(right.count("icmp.echo_too_big"), 1U);
  EXPECT_EQ(a.send_echo(kFar, 5, 1, 10), SendResult::no_route);
  // Nobody at that address: told after three seconds.
  EXPECT_EQ(a.send_echo(IpAddress::v4(10, 0, 0, 77), 5, 1, 10), SendResult::sent);
  for (int i = 0; i < 4; ++i) {
    run();
    clock.advance(kNsPerSecond);
  }
  ASSERT_EQ(sink.errors.size(), 1U);
  EXPECT_EQ(sink.errors[0], IcmpError::Kind::host_unreachable);
  a.set_echo_sink(nullptr);
  EXPECT_EQ(a.send_echo(kPeer, 5, 1, 10), SendResult::sent);
  run();
  EXPECT_EQ(sink.replies.size(), 7U);
}

TEST(TokenBucket, rate_and_burst) {
  TokenBucket bucket(100, 10);
  uint64_t now = kNsPerSecond;
  const auto taken = [&] {
    int count = 0;
    while (bucket.take(now)) ++count;
    return count;
  };
  EXPECT_EQ(taken(), 10);
  now += kNsPerSecond / 100;
  EXPECT_EQ(taken(), 1);
  now += 3600 * kNsPerSecond;
  EXPECT_EQ(taken(), 10);
  now -= kNsPerSecond;  // never gives more for a clock that steps back
  EXPECT_EQ(taken(), 0);
}

}  // namespace
}  // namespace nobounce::ip
