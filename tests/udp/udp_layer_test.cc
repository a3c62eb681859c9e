// UDP: ports, datagrams, errors (N-10), against a script and between two layers on a bad wire.
#include "udp/udp_layer.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/checksum.hpp"
#include "ip/reassembly.hpp"
#include "support/frames.hpp"

namespace nobounce::udp {
namespace {

using test::ByteVector;
using test::pattern;
using test::WireFrame;

const IpAddress kOurs = IpAddress::v4(10, 0, 0, 1);
const IpAddress kPeer = IpAddress::v4(10, 0, 0, 2);
const MacAddress kOurMac{{0x02, 0, 0, 0, 0, 1}};
const MacAddress kPeerMac{{0x02, 0, 0, 0, 0, 2}};

struct Inbox final : Owner {
  void on_datagram(PacketPtr packet, const Endpoint& from) noexcept override {
    EXPECT_TRUE(packet->head().empty());
    datagrams.push_back(test::flatten(*packet));
    senders.push_back(from);
  }
  void on_error(std::errc error) noexcept override { errors.push_back(error); }
  std::vector<ByteVector> datagrams;
  std::vector<Endpoint> senders;
  std::vector<std::errc> errors;
};

class Udp : public testing::Test {
 protected:
  void round() {
    end.begin_round();
    PacketBurst burst;
    while (device.receive(0, burst) > 0) ip.receive(burst);
    ip.flush();
  }
  void inject(WireFrame frame) {
    device.inject(std::move(frame));
    round();
  }
  static ByteVector frame(Bytes datagram, const IpAddress& to = kOurs) {
    return test::ethernet(
        {.destination = to == kOurs ? kOurMac : MacAddress::broadcast(),
         .source = kPeerMac,
         .ether_type = wire::kEtherTypeIpv4},
        test::ipv4({.protocol = 17, .source = kPeer, .destination = to}, datagram));
  }
  void inject_datagram(Bytes payload, uint16_t from = 4000, uint16_t to = 53) {
    inject({.bytes = frame(test::udp({kPeer, from}, {kOurs, to}, payload))});
  }
  void resolve_peer() {
    inject({.bytes = test::arp_frame(kOurMac, {.operation = wire::ArpOperation::request,
                                               .sender_mac = kPeerMac,
                                               .sender_ip = kPeer,
                                               .target_mac = {},
                                               .target_ip = kOurs})});
    while (device.pop()) {
    }
  }
  std::optional<ByteVector> next_ip() {
    round();
    while (auto sent = device.pop()) {
      if (load_be<uint16_t>(sent->bytes, 12) == wire::kEtherTypeIpv4) return sent->bytes;
    }
    return std::nullopt;
  }
  std::expected<void, std::errc> send(Port& port, const Endpoint& to, Bytes payload) {
    const Frag frag = end.make_frag(payload);
    return udp.send(port, to, &frag, 1);
  }
  Port& bind(uint16_t port, Inbox& owner) { return *udp.bind({IpAddress(), port}, owner).value(); }

  ManualClock clock;
  test::StackEnd end{clock};
  test::ScriptDevice device{end.context, {}};
  ip::Layer ip{end.context, device, {.address = {kOurs, 24}}};
  Layer udp{end.context, ip, 64};
  Inbox inbox;
};

// ---- ports --------------------------------------------------------------------------------------

TEST_F(Udp, bind_refusals) {
  ASSERT_TRUE(udp.bind({kOurs, 53}, inbox));
  EXPECT_EQ(udp.bind({kOurs, 53}, inbox).error(), std::errc::address_in_use);
  EXPECT_EQ(udp.bind({IpAddress(), 53}, inbox).error(), std::errc::address_in_use);
  ASSERT_TRUE(udp.bind({IpAddress(), 54}, inbox));
  EXPECT_EQ(udp.bind({kOurs, 54}, inbox).error(), std::errc::address_in_use);
  EXPECT_EQ(udp.bind({kPeer, 55}, inbox).error(), std::errc::address_not_available);
  EXPECT_EQ(udp.bind({*IpAddress::parse("::1"), 55}, inbox).error(),
            std::errc::address_family_not_supported);
  EXPECT_EQ(end.count("udp.ipv6_not_supported"), 1U);
}

TEST_F(Udp, unbound_ports_are_free_again) {
  for (int i = 0; i < 1000; ++i) {
    const auto port = udp.bind({kOurs, 53}, inbox);
    ASSERT_TRUE(port);
    EXPECT_EQ(udp.local(**port), (Endpoint{kOurs, 53}));
    udp.unbind(*port);
  }
}

TEST_F(Udp, the_table_is_bounded_and_counted) {
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(udp.bind({}, inbox));
  EXPECT_EQ(udp.bind({}, inbox).error(), std::errc::no_buffer_space);
  EXPECT_EQ(end.count("udp.limit.ports"), 1U);
}

TEST_F(Udp, T9_ephemeral_ports_are_random_and_distinct) {
  std::set<uint16_t> ports;
  size_t followers = 0;
  uint16_t last = 0;
  for (int i = 0; i < 64; ++i) {
    const uint16_t port = udp.local(*udp.bind({}, inbox).value()).port;
    EXPECT_GE(port, 32768);
    EXPECT_LE(port, 60999);
    if (port == last + 1) ++followers;
    last = port;
    ports.insert(port);
  }
  EXPECT_EQ(ports.size(), 64U);
  EXPECT_LE(followers, 2U);
}

// ---- receiving ----------------------------------------------------------------------------------

TEST_F(Udp, N10_datagram_boundaries_are_kept) {
  bind(53, inbox);
  for (const size_t size : {0U, 1U, 100U, 149U, 150U, 151U, 1472U}) {
    inject_datagram(pattern(size, size + 1));
    ASSERT_FALSE(inbox.datagrams.empty());
    EXPECT_EQ(inbox.datagrams.back(), pattern(size, size + 1)) << size;
    EXPECT_EQ(inbox.senders.back(), (Endpoint{kPeer, 4000}));
  }
  EXPECT_EQ(inbox.datagrams.size(), 7U);
}

TEST_F(Udp, N10_length_field) {
  bind(53, inbox);
  const ByteVector payload = pattern(40);
  for (unsigned length = 0; length < 70; ++length) {
    inbox.datagrams.clear();
    ByteVector datagram = test::udp({kPeer, 4000}, {kOurs, 53}, payload);
    store_be<uint16_t>(datagram, 4, static_cast<uint16_t>(length));
    store_be<uint16_t>(datagram, 6, 0);  // no checksum
    inject({.bytes = frame(datagram)});
    const bool is_right = length >= 8 && length <= 48;
    ASSERT_EQ(inbox.datagrams.size(), is_right ? 1U : 0U) << length;
    if (is_right) {
      EXPECT_EQ(inbox.datagrams[0],
                ByteVector(payload.begin(), payload.begin() + static_cast<int>(length) - 8));
    }
  }
  EXPECT_EQ(end.count("udp.drop.malformed"), 70U - 41);
}

// A datagram shorter than its IP packet: the checksum covers the datagram, not what follows.
TEST_F(Udp, N10_bytes_behind_the_datagram_do_not_count) {
  bind(53, inbox);
  ByteVector datagram = test::udp({kPeer, 4000}, {kOurs, 53}, pattern(40));
  datagram.insert(datagram.end(), 13, std::byte{0x5a});
  inject({.bytes = frame(datagram)});
  ASSERT_EQ(inbox.datagrams.size(), 1U);
  EXPECT_EQ(inbox.datagrams[0], pattern(40));
}

TEST_F(Udp, N10_checksum_zero_is_none_wrong_is_dropped_ffff_is_right) {
  bind(53, inbox);
  ByteVector datagram = test::udp({kPeer, 4000}, {kOurs, 53}, pattern(9));
  store_be<uint16_t>(datagram, 6, 0);
  inject({.bytes = frame(datagram)});
  EXPECT_EQ(inbox.datagrams.size(), 1U);
  store_be<uint16_t>(datagram, 6, 1);
  inject({.bytes = frame(datagram)});
  EXPECT_EQ(inbox.datagrams.size(), 1U);
  EXPECT_EQ(end.count("udp.drop.bad_checksum"), 1U);
  ByteVector payload(2);
  const ByteVector zeros = test::udp({kPeer, 4000}, {kOurs, 53}, payload);
  payload = {zeros[6], zeros[7]};
  const ByteVector special = test::udp({kPeer, 4000}, {kOurs, 53}, payload);
  EXPECT_EQ(load_be<uint16_t>(special, 6), 0xffff);
  inject({.bytes = frame(special)});
  EXPECT_EQ(inbox.datagrams.size(), 2U);
}

TEST_F(Udp, TM41_partial_and_verified_skip_the_sum_only) {
  bind(53, inbox);
  const auto deliver = [&](Checksum state, uint16_t start, uint16_t offset) {
    inbox.datagrams.clear();
    WireFrame made{.bytes = frame(test::udp({kPeer, 4000}, {kOurs, 53}, pattern(9))),
                   .checksum = state,
                   .csum_start = start,
                   .csum_offset = offset};
    store_be<uint16_t>(made.bytes, 34 + 6, 0);  // not yet filled; zero on purpose
    inject(made);
    return !inbox.datagrams.empty();
  };
  EXPECT_TRUE(deliver(Checksum::verified, 0, 0));
  EXPECT_TRUE(deliver(Checksum::partial, 34, 6));
  EXPECT_FALSE(deliver(Checksum::partial, 34, 16));
  EXPECT_FALSE(deliver(Checksum::partial, 35, 6));
  EXPECT_FALSE(deliver(Checksum::partial, 14, 6));
}

TEST_F(Udp, N10_no_port_answers_port_unreachable_limited) {
  resolve_peer();
  for (int i = 0; i < 200; ++i) {
    device.inject(frame(test::udp({kPeer, 4000}, {kOurs, 99}, pattern(9))));
  }
  size_t answers = 0;
  while (const auto sent = next_ip()) {
    EXPECT_EQ((*sent)[34], std::byte{3});
    EXPECT_EQ((*sent)[35], std::byte{3});
    ++answers;
  }
  EXPECT_GT(answers, 0U);
  EXPECT_LE(answers, 20U);
  EXPECT_EQ(end.count("udp.drop.no_port"), 200U);
}

TEST_F(Udp, broadcast_reaches_ports_on_any_only_and_is_never_answered) {
  Inbox specific;
  bind(53, inbox);
  ASSERT_TRUE(udp.bind({kOurs, 54}, specific));
  const IpAddress everyone = IpAddress::v4(10, 0, 0, 255);
  inject({.bytes = frame(test::udp({kPeer, 1}, {everyone, 53}, pattern(3)), everyone)});
  inject({.bytes = frame(test::udp({kPeer, 1}, {everyone, 54}, pattern(3)), everyone)});
  EXPECT_EQ(inbox.datagrams.size(), 1U);
  EXPECT_TRUE(specific.datagrams.empty());
  EXPECT_FALSE(next_ip());
}

TEST_F(Udp, N10_connected_ports_filter_the_source) {
  Port& port = bind(53, inbox);
  ASSERT_TRUE(udp.connect(port, {kPeer, 4000}));
  inject_datagram(pattern(3), 4000);
  EXPECT_EQ(inbox.datagrams.size(), 1U);
  inject_datagram(pattern(3), 4001);
  EXPECT_EQ(inbox.datagrams.size(), 1U);
  EXPECT_EQ(end.count("udp.drop.not_connected_peer"), 1U);
  ASSERT_TRUE(udp.connect(port, {}));  // dissolved
  inject_datagram(pattern(3), 4001);
  EXPECT_EQ(inbox.datagrams.size(), 2U);
}

TEST_F(Udp, connect_refusals) {
  Port& port = bind(53, inbox);
  EXPECT_EQ(udp.connect(port, {kPeer, 0}).error(), std::errc::invalid_argument);
  EXPECT_EQ(udp.connect(port, {IpAddress::v4(192, 0, 2, 1), 5}).error(),
            std::errc::network_unreachable);
  EXPECT_EQ(udp.connect(port, {*IpAddress::parse("::1"), 5}).error(),
            std::errc::address_family_not_supported);
}

TEST_F(Udp, N10_errors_of_the_connected_peer_are_reported) {
  Port& port = bind(53, inbox);
  const auto error = [&](uint8_t type, uint8_t code, uint16_t from, uint16_t to) {
    const ByteVector quote = test::ipv4({.protocol = 17, .source = kOurs, .destination = kPeer},
                                        test::udp({kOurs, from}, {kPeer, to}, {}));
    inject(
        {.bytes = test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = 0x0800},
                                 test::ipv4({.protocol = 1, .source = kPeer, .destination = kOurs},
                                            test::icmp({.type = type, .code = code}, quote)))});
  };
  error(3, 3, 53, 4000);  // not connected
  EXPECT_TRUE(inbox.errors.empty());
  ASSERT_TRUE(udp.connect(port, {kPeer, 4000}));
  error(3, 3, 53, 4001);
  error(3, 3, 54, 4000);
  EXPECT_TRUE(inbox.errors.empty());
  EXPECT_EQ(end.count("udp.icmp_unmatched"), 3U);
  error(3, 3, 53, 4000);
  error(3, 1, 53, 4000);
  error(3, 0, 53, 4000);
  error(3, 2, 53, 4000);
  error(3, 4, 53, 4000);
  EXPECT_EQ(inbox.errors, (std::vector{std::errc::connection_refused, std::errc::host_unreachable,
                                       std::errc::network_unreachable,
                                       std::errc::no_protocol_option, std::errc::message_size}));
}

// ---- sending ------------------------------------------------------------------------------------

TEST_F(Udp, T1_sends_with_a_right_checksum_at_odd_lengths_too) {
  resolve_peer();
  Port& port = bind(53, inbox);
  for (const size_t size : {1U, 2U, 3U, 999U, 1472U}) {
    ASSERT_TRUE(send(port, {kPeer, 4000}, pattern(size)));
    const auto sent = next_ip();
    ASSERT_TRUE(sent);
    EXPECT_TRUE(test::has_right_checksums(*sent));
    EXPECT_NE(load_be<uint16_t>(*sent, 34 + 6), 0);
    const auto header = wire::UdpView::parse(Bytes(*sent).subspan(34), size + 8);
    ASSERT_TRUE(header);
    EXPECT_EQ(header->source_port(), 53);
    EXPECT_EQ(header->destination_port(), 4000);
    EXPECT_EQ(header->length(), size + 8);
    EXPECT_EQ(ByteVector(sent->begin() + 42, sent->end()), pattern(size));
  }
}

TEST_F(Udp, C050_above_the_mtu_the_checksum_is_right_whoever_summed) {
  resolve_peer();
  Port& port = bind(53, inbox);
  ByteVector zeros(3000);
  ByteVector special = pattern(3001);  // chosen below so that its checksum is 0
  special[0] = special[1] = std::byte{0};
  const ByteVector cleared = test::udp({kOurs, 53}, {kPeer, 4000}, special);
  special[0] = cleared[6];
  special[1] = cleared[7];
  for (const ByteVector& payload :
       {pattern(1473), pattern(4000), pattern(65'507), zeros, special}) {
    const ByteVector whole = test::udp({kOurs, 53}, {kPeer, 4000}, payload);
    for (const bool summed : {false, true}) {
      const Frag frag = end.make_frag(payload);
      const uint16_t sum = checksum_fold(checksum_add(0, payload));
      ASSERT_TRUE(udp.send(port, {kPeer, 4000}, &frag, 1,
                           !summed    ? uint16_t{0}
                           : sum == 0 ? uint16_t{0xffff}
                                      : sum));
      ByteVector joined;
      while (const auto sent = next_ip()) {
        joined.insert(joined.end(), sent->begin() + 34, sent->end());
      }
      ASSERT_TRUE(joined == whole) << payload.size() << " " << summed;
    }
  }
  EXPECT_EQ(load_be<uint16_t>(test::udp({kOurs, 53}, {kPeer, 4000}, special), 6), 0xffff);
}

TEST_F(Udp, N10_computed_zero_is_sent_as_ffff) {
  resolve_peer();
  Port& port = bind(53, inbox);
  ByteVector payload(2);
  const ByteVector zeros = test::udp({kOurs, 53}, {kPeer, 4000}, payload);
  payload = {zeros[6], zeros[7]};
  ASSERT_TRUE(send(port, {kPeer, 4000}, payload));
  const auto sent = next_ip();
  ASSERT_TRUE(sent);
  EXPECT_EQ(load_be<uint16_t>(*sent, 34 + 6), 0xffff);
}

TEST_F(Udp, an_empty_datagram_and_several_frags) {
  resolve_peer();
  Port& port = bind(53, inbox);
  ASSERT_TRUE(udp.send(port, {kPeer, 4000}, nullptr, 0));
  EXPECT_EQ(next_ip()->size(), 42U);
  const ByteVector payload = pattern(900);
  const Frag frags[] = {end.make_frag(Bytes(payload).first(301)),
                        end.make_frag(Bytes(payload).subspan(301, 299), 7),
                        end.make_frag(Bytes(payload).subspan(600))};
  ASSERT_TRUE(udp.send(port, {kPeer, 4000}, frags, 3));
  const auto sent = next_ip();
  EXPECT_TRUE(test::has_right_checksums(*sent));
  EXPECT_EQ(ByteVector(sent->begin() + 42, sent->end()), payload);
}

// Every refusal returns the pages: the fixture's arena must be full again.
TEST_F(Udp, send_refusals_take_the_frags) {
  resolve_peer();
  Port& port = bind(53, inbox);
  const auto refused = [&](const Endpoint& to, size_t size) {
    return send(port, to, ByteVector(size)).error();
  };
  EXPECT_EQ(refused({kPeer, 0}, 10), std::errc::invalid_argument);
  EXPECT_EQ(refused({IpAddress::v4(192, 0, 2, 1), 5}, 10), std::errc::network_unreachable);
  EXPECT_EQ(refused({*IpAddress::parse("::1"), 5}, 10), std::errc::address_family_not_supported);
  EXPECT_EQ(refused({kPeer, 5}, 65508), std::errc::message_size);
  std::vector<Frag> many;
  for (int i = 0; i < 20; ++i) many.push_back(end.make_frag(pattern(10)));
  EXPECT_EQ(udp.send(port, {kPeer, 5}, many.data(), many.size()).error(), std::errc::message_size);
  std::vector<PacketPtr> hoard;
  while (PacketPtr packet = end.packets.make()) hoard.push_back(std::move(packet));
  EXPECT_EQ(refused({kPeer, 5}, 10), std::errc::no_buffer_space);
  hoard.clear();
  device.set_room(0);
  std::errc last{};
  for (int i = 0; i < 100; ++i) {
    if (const auto result = send(port, {kPeer, 5}, pattern(10)); !result) last = result.error();
  }
  EXPECT_EQ(last, std::errc::operation_would_block);
}

TEST_F(Udp, C018_mutated_datagrams_are_dropped_or_whole) {
  bind(53, inbox);
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    ByteVector datagram = test::udp({kPeer, 4000}, {kOurs, 53}, pattern(random.below(200), seed));
    for (uint32_t i = random.below(3); i > 0; --i) {
      datagram[random.below(8)] = static_cast<std::byte>(random.next_u32());
    }
    if (random.below(4) == 0) datagram.resize(random.below(12));
    inject({.bytes = frame(datagram),
            .checksum = random.below(4) == 0 ? Checksum::verified : Checksum::none});
    while (device.pop()) {
    }
    for (const ByteVector& got : inbox.datagrams) {
      ASSERT_LE(got.size() + 8, datagram.size());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), datagram.begin() + 8));
    }
    inbox.datagrams.clear();
  }
}

// ---- two layers on a bad wire --------------------------------------------------------------------

// Whatever the wire does, a datagram arrives as it was sent or not at all.
TEST(UdpOnWire, N10_exact_payload_or_nothing) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    ManualClock clock;
    test::StackEnd left(clock, seed), right(clock, seed + 1000);
    const bool offload = seed % 2 == 0;
    test::WireLink link(clock, seed, left.context, right.context,
                        {.features = {.tx_checksum = offload, .rx_checksum = seed % 3 == 0},
                         .loss = 50,
                         .reorder = 100,
                         .duplicate = 50,
                         .corrupt = 100,
                         .delay_ns = 1'000'000});
    ip::Layer ip_left(left.context, link.left(), {.address = {kOurs, 24}});
    ip::Layer ip_right(right.context, link.right(), {.address = {kPeer, 24}});
    Layer udp_left(left.context, ip_left), udp_right(right.context, ip_right);
    Inbox ignored, inbox;
    Port& from = *udp_left.bind({}, ignored).value();
    ASSERT_TRUE(udp_right.bind({kPeer, 53}, inbox));
    const auto run = [&] {
      clock.advance(500'000);
      left.begin_round();
      right.begin_round();
      PacketBurst burst;
      ip_left.flush();
      link.right().receive(0, burst);
      ip_right.receive(burst);
      ip_right.flush();
      link.left().receive(0, burst);
      ip_left.receive(burst);
    };
    // The first request may be lost: give it its seconds.
    for (int i = 0; i < 8; ++i) {
      const Frag frag = left.make_frag(pattern(3));
      EXPECT_TRUE(udp_left.send(from, {kPeer, 53}, &frag, 1));
      run();
      clock.advance(kNsPerSecond);
      run();
    }
    run();
    inbox.datagrams.clear();
    std::set<ByteVector> sent;
    for (uint32_t i = 0; i < 500; ++i) {
      ByteVector payload = pattern(4 + i, i);
      const Frag frag = left.make_frag(payload);
      EXPECT_TRUE(udp_left.send(from, {kPeer, 53}, &frag, 1));
      sent.insert(std::move(payload));
      run();
    }
    for (int i = 0; i < 20; ++i) run();
    EXPECT_EQ(link.in_flight(), 0U);
    std::set<ByteVector> got;
    for (const ByteVector& datagram : inbox.datagrams) {
      ASSERT_TRUE(sent.contains(datagram));
      got.insert(datagram);
    }
    EXPECT_GT(got.size(), 380U);
    EXPECT_LT(got.size(), 460U);
    EXPECT_GT(link.facts.lost, 0U);
    EXPECT_GT(link.facts.corrupted, 0U);
    EXPECT_GT(link.facts.duplicated, 0U);
    EXPECT_GT(link.facts.reordered, 0U);
  }
}

// C050: 1 to 65,507 bytes in fragments over the same kinds of wire: exact payload or nothing, and
// nothing is left when the time-outs are over.
TEST(UdpOnWire, C050_large_datagrams_exact_payload_or_nothing) {
  size_t arrived = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    ManualClock clock;
    test::StackEnd left(clock, seed), right(clock, seed + 1000);
    const bool is_bad = seed > 2;
    test::WireLink link(clock, seed, left.context, right.context,
                        {.mtu = static_cast<uint16_t>(seed % 2 == 0 ? 1500 : 9000),
                         .features = {.tx_checksum = seed % 2 == 0, .rx_checksum = seed % 3 == 0},
                         .loss = is_bad ? 5u : 0u,
                         .reorder = is_bad ? 100u : 0u,
                         .duplicate = is_bad ? 20u : 0u,
                         .corrupt = is_bad ? 5u : 0u,
                         .delay_ns = 1'000'000,
                         .reorder_delay_ns = 2'000'000});
    ip::Layer ip_left(left.context, link.left(), {.address = {kOurs, 24}});
    ip::Layer ip_right(right.context, link.right(), {.address = {kPeer, 24}});
    Layer udp_left(left.context, ip_left), udp_right(right.context, ip_right);
    Inbox ignored, inbox;
    Port& from = *udp_left.bind({}, ignored).value();
    ASSERT_TRUE(udp_right.bind({kPeer, 53}, inbox));
    const auto run = [&] {
      clock.advance(500'000);
      left.begin_round();
      right.begin_round();
      PacketBurst burst;
      ip_left.flush();
      while (link.right().receive(0, burst) > 0) ip_right.receive(burst);
      ip_right.flush();
      while (link.left().receive(0, burst) > 0) ip_left.receive(burst);
    };
    for (int i = 0; i < 8; ++i) {
      const Frag frag = left.make_frag(pattern(3));
      EXPECT_TRUE(udp_left.send(from, {kPeer, 53}, &frag, 1));
      run();
      clock.advance(kNsPerSecond);
      run();
    }
    run();
    inbox.datagrams.clear();
    std::map<size_t, ByteVector> sent;
    SeededRandom random(seed);
    for (size_t size : {size_t{1473}, size_t{8973}, size_t{65'507}}) sent[size] = {};
    for (int i = 0; i < 60; ++i) sent[1 + random.below(random.below(2) == 0 ? 5000 : 65'507)] = {};
    for (auto& [size, payload] : sent) {
      payload = pattern(size, size);
      const Frag frag = left.make_frag(payload);
      const uint16_t sum = seed % 2 == 0 ? checksum_fold(checksum_add(0, payload)) : uint16_t{0};
      EXPECT_TRUE(udp_left.send(from, {kPeer, 53}, &frag, 1, sum));
      for (int rounds = 0; rounds < 3; ++rounds) run();
    }
    for (int i = 0; i < 20; ++i) run();
    EXPECT_EQ(link.in_flight(), 0U);
    std::set<size_t> got;
    for (const ByteVector& datagram : inbox.datagrams) {
      ASSERT_TRUE(sent.contains(datagram.size()));
      ASSERT_TRUE(sent[datagram.size()] == datagram) << datagram.size();
      got.insert(datagram.size());
    }
    EXPECT_GE(got.size(), is_bad ? 1 : sent.size());
    arrived += got.size();
    clock.advance(ip::Reassembly::kTimeoutNs);
    for (int i = 0; i < 4; ++i) run();
    inbox.datagrams.clear();
    EXPECT_GT(right.count("ip.reassembly.whole"), 0U);
    EXPECT_EQ(right.arena->pages_free(), right.arena->bytes() / kPageSize);
  }
  EXPECT_GT(arrived, 300U);
}

}  // namespace
}  // namespace nobounce::udp
