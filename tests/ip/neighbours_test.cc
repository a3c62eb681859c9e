// ARP: learning rules, pending packets, ageing, bounds (N-5, C043, C045).
#include "ip/neighbours.hpp"
#include "ip/ip_fixture.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kArp = wire::kEtherTypeArp;
constexpr uint16_t kIp = wire::kEtherTypeIpv4;
constexpr uint64_t kSecond = kNsPerSecond;

class Arp : public IpTest {
 protected:
  explicit Arp(size_t neighbours = 256) : IpTest({}, neighbours) {}

  static wire::ArpView view(const ByteVector& frame) {
    return wire::ArpView::parse(Bytes(frame).subspan(14)).value();
  }
  static MacAddress destination(const ByteVector& frame) {
    return wire::EthernetView::parse(frame)->destination();
  }
  static MacAddress mac(uint32_t n) {
    return {{0x02, 7, 0, 0, static_cast<uint8_t>(n >> 8), static_cast<uint8_t>(n)}};
  }
};

TEST_F(Arp, asks_by_broadcast_and_sends_when_answered) {
  EXPECT_EQ(send(kPeer, 100), SendResult::sent);
  const auto request = next(kArp);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->size(), 42U);
  EXPECT_EQ(destination(*request), MacAddress::broadcast());
  EXPECT_EQ(view(*request).operation(), wire::ArpOperation::request);
  EXPECT_EQ(view(*request).sender_mac(), kOurMac);
  EXPECT_EQ(view(*request).sender_ip(), kOurs);
  EXPECT_EQ(view(*request).target_ip(), kPeer);
  EXPECT_TRUE(view(*request).target_mac().is_zero());
  EXPECT_FALSE(next(kIp));
  inject(reply_from(kPeer, kPeerMac));
  const auto frame = next(kIp);
  ASSERT_TRUE(frame);
  EXPECT_EQ(destination(*frame), kPeerMac);
  EXPECT_EQ(frame->size(), 14U + 20 + 8 + 100);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_TRUE(next(kIp));
  EXPECT_EQ(end.count("arp.requests_sent"), 1U);
}

TEST_F(Arp, C045_the_last_packets_wait_in_order) {
  for (int i = 0; i < 7; ++i) EXPECT_EQ(send(kPeer), SendResult::sent);
  inject(reply_from(kPeer, kPeerMac));
  for (unsigned i = 7 - Neighbours::kPendingMax + 1; i <= 7; ++i) {
    const auto frame = next(kIp);
    ASSERT_TRUE(frame);
    EXPECT_EQ((*frame)[34], static_cast<std::byte>(i));
  }
  EXPECT_FALSE(next(kIp));
  EXPECT_EQ(end.count("arp.pending_dropped"), 7 - Neighbours::kPendingMax);
  static_assert(Neighbours::kPendingMax >= 3);
}

TEST_F(Arp, C045_a_burst_of_three_and_a_first_ping_are_never_lost) {
  for (uint32_t round_number = 0; round_number < 200; ++round_number) {
    const IpAddress peer = IpAddress::v4(10, 0, 0, static_cast<uint8_t>(2 + round_number));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(send(peer), SendResult::sent);
    inject(reply_from(peer, mac(round_number)));
    EXPECT_EQ(count_frames(kIp), 3U);
  }
}

TEST_F(Arp, pending_packets_are_bounded_in_all) {
  for (uint8_t host = 2; host < 102; ++host) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(send(IpAddress::v4(10, 0, 0, host)), SendResult::sent);
    layer.flush();
  }
  EXPECT_EQ(end.packets.in_use(), Neighbours::kPendingTotalMax);
  EXPECT_EQ(end.count("arp.pending_dropped"), 200 - Neighbours::kPendingTotalMax);
}

TEST_F(Arp, N5_three_requests_a_second_apart_then_the_transport_is_told) {
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 1U);
  advance(kSecond - 1);
  EXPECT_EQ(count_frames(kArp), 0U);
  advance(1);
  EXPECT_EQ(count_frames(kArp), 1U);
  advance(kSecond);
  EXPECT_EQ(count_frames(kArp), 1U);
  EXPECT_TRUE(udp.errors.empty());
  advance(kSecond);
  EXPECT_EQ(count_frames(kArp), 0U);
  ASSERT_EQ(udp.errors.size(), 2U);
  EXPECT_EQ(udp.errors[0].kind, IcmpError::Kind::host_unreachable);
  EXPECT_EQ(udp.errors[0].source, kOurs);
  EXPECT_EQ(udp.errors[0].destination, kPeer);
  EXPECT_EQ(udp.quotes[0], ByteVector(8, std::byte{1}));
  EXPECT_EQ(end.count("arp.unresolved"), 1U);
  EXPECT_EQ(end.timers.armed(), 0U);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(Arp, T64_a_frozen_clock_gap_asks_once) {
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 1U);
  advance(1000 * kSecond);
  EXPECT_EQ(count_frames(kArp), 1U);
  EXPECT_TRUE(udp.errors.empty());
}

TEST_F(Arp, N5_ageing_asks_unicast_while_the_entry_serves) {
  resolve_peer();
  advance(Neighbours::kReachableNs - 1);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 0U);
  advance(1);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  layer.flush();
  const auto probe = device.pop();
  const auto data = device.pop();
  ASSERT_TRUE(probe && data);
  EXPECT_EQ(load_be<uint16_t>(probe->bytes, 12), kArp);
  EXPECT_EQ(destination(probe->bytes), kPeerMac);
  EXPECT_EQ(destination(data->bytes), kPeerMac);
  inject(reply_from(kPeer, kPeerMac));
  advance(Neighbours::kReachableNs - 1);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 0U);
}

TEST_F(Arp, N5_an_unanswered_probe_removes_the_entry) {
  resolve_peer();
  advance(Neighbours::kReachableNs);
  size_t asked = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(send(kPeer), SendResult::sent);
    layer.flush();
    while (const auto frame = device.pop()) {
      EXPECT_EQ(destination(frame->bytes), kPeerMac);
      if (load_be<uint16_t>(frame->bytes, 12) == kArp) ++asked;
    }
    advance(kSecond);
  }
  EXPECT_EQ(asked, 3U);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  const auto request = next(kArp);
  ASSERT_TRUE(request);
  EXPECT_EQ(destination(*request), MacAddress::broadcast());
}

TEST_F(Arp, answers_requests_for_our_address_only) {
  inject(request_from(kPeer, kPeerMac));
  const auto reply = next(kArp);
  ASSERT_TRUE(reply);
  EXPECT_EQ(destination(*reply), kPeerMac);
  EXPECT_EQ(view(*reply).operation(), wire::ArpOperation::reply);
  EXPECT_EQ(view(*reply).sender_mac(), kOurMac);
  EXPECT_EQ(view(*reply).sender_ip(), kOurs);
  EXPECT_EQ(view(*reply).target_mac(), kPeerMac);
  EXPECT_EQ(view(*reply).target_ip(), kPeer);
  inject(request_from(kPeer, kPeerMac, kGateway));
  EXPECT_FALSE(next(kArp));
  // An address probe (RFC 5227) is answered and teaches nothing.
  inject(request_from(IpAddress(), kPeerMac));
  EXPECT_TRUE(next(kArp));
}

TEST_F(Arp, N5_a_request_to_us_is_learned_and_confirmed_on_use) {
  inject(request_from(kPeer, kPeerMac));
  EXPECT_EQ(count_frames(kArp), 1U);  // our reply
  EXPECT_EQ(send(kPeer), SendResult::sent);
  layer.flush();
  const auto probe = device.pop();
  const auto data = device.pop();
  ASSERT_TRUE(probe && data);
  EXPECT_EQ(destination(probe->bytes), kPeerMac);
  EXPECT_EQ(destination(data->bytes), kPeerMac);
}

TEST_F(Arp, N5_what_is_never_learned) {
  const MacAddress group{{0x01, 0, 0, 0, 0, 1}};
  inject(request_from(kPeer, group));
  inject(request_from(kPeer, MacAddress::broadcast()));
  inject(request_from(kPeer, MacAddress{}));
  inject(request_from(kPeer, kOurMac));             // our own, looped back
  inject(request_from(kPeer, kPeerMac, kGateway));  // to someone else
  inject(request_from(kPeer, kPeerMac, kPeer));     // gratuitous, unknown sender
  inject(reply_from(kPeer, kPeerMac));              // nobody asked
  inject(request_from(kFar, kPeerMac));             // not of this link
  inject(request_from(IpAddress::v4(10, 0, 0, 255), kPeerMac));
  inject(request_from(IpAddress::v4(224, 0, 0, 1), kPeerMac));
  while (device.pop()) {
  }
  EXPECT_EQ(send(kPeer), SendResult::sent);
  const auto request = next(kArp);
  ASSERT_TRUE(request);
  EXPECT_EQ(destination(*request), MacAddress::broadcast());
  // Replies that do not fit while we ask.
  inject(reply_from(kPeer, group));
  inject(reply_from(kPeer, MacAddress{}));
  inject(test::arp_frame(kOurMac, {.operation = wire::ArpOperation::reply,
                                   .sender_mac = kPeerMac,
                                   .sender_ip = kPeer,
                                   .target_mac = kOurMac,
                                   .target_ip = kGateway}));
  inject(test::arp_frame(kOurMac, {.operation = wire::ArpOperation::reply,
                                   .sender_mac = kPeerMac,
                                   .sender_ip = kPeer,
                                   .target_mac = kPeerMac,
                                   .target_ip = kOurs}));
  EXPECT_FALSE(next(kIp));
  inject(reply_from(kPeer, kPeerMac));
  EXPECT_TRUE(next(kIp));
}

TEST_F(Arp, N5_truncated_and_malformed_are_counted) {
  const ByteVector whole = request_from(kPeer, kPeerMac);
  for (size_t size = 14; size < whole.size(); ++size) {
    inject(ByteVector(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)));
  }
  EXPECT_EQ(end.count("arp.malformed"), wire::kArpSize);
  EXPECT_EQ(device.sent(), 0U);
  ByteVector padded = whole;
  padded.resize(60);
  inject(padded);
  EXPECT_EQ(count_frames(kArp), 1U);
}

TEST_F(Arp, a_moved_neighbour_is_followed_and_asked_again) {
  resolve_peer();
  const MacAddress moved = mac(9);
  inject(request_from(kPeer, moved, kPeer));  // gratuitous, but just confirmed elsewhere
  EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_EQ(destination(*next(kIp)), kPeerMac);
  advance(2 * kSecond);
  inject(request_from(kPeer, moved, kPeer));
  EXPECT_EQ(send(kPeer), SendResult::sent);
  layer.flush();
  const auto probe = device.pop();
  ASSERT_TRUE(probe);
  EXPECT_EQ(load_be<uint16_t>(probe->bytes, 12), kArp);
  EXPECT_EQ(destination(probe->bytes), moved);
  EXPECT_EQ(destination(*next(kIp)), moved);
}

TEST_F(Arp, N5_our_address_is_announced_and_defended_at_most_each_ten_seconds) {
  layer.announce();
  const auto frame = next(kArp);
  ASSERT_TRUE(frame);
  EXPECT_EQ(destination(*frame), MacAddress::broadcast());
  EXPECT_EQ(view(*frame).sender_ip(), kOurs);
  EXPECT_EQ(view(*frame).target_ip(), kOurs);
  for (int i = 0; i < 100; ++i) inject(request_from(kOurs, kPeerMac, kOurs));
  EXPECT_EQ(count_frames(kArp), 1U);
  advance(Neighbours::kDefendIntervalNs);
  inject(request_from(kOurs, kPeerMac, kOurs));
  EXPECT_EQ(count_frames(kArp), 1U);
  EXPECT_EQ(end.count("arp.conflicts"), 101U);
}

TEST_F(Arp, off_link_goes_by_the_gateway) {
  EXPECT_EQ(send(kFar), SendResult::sent);
  EXPECT_EQ(view(*next(kArp)).target_ip(), kGateway);
  inject(reply_from(kGateway, mac(1)));
  const auto frame = next(kIp);
  ASSERT_TRUE(frame);
  EXPECT_EQ(destination(*frame), mac(1));
  EXPECT_EQ(load_be<uint32_t>(*frame, 14 + 16), kFar.v4_bits());
}

// ---- a small table ------------------------------------------------------------------------------

class SmallArp : public Arp {
 protected:
  SmallArp() : Arp(8) {}
};

TEST_F(SmallArp, C043_hosts_that_speak_never_push_out_the_live_flow) {
  resolve_peer();
  std::map<uint32_t, uint64_t> asked_at;
  for (uint32_t n = 0; n < 10'000; ++n) {
    const IpAddress host = IpAddress::v4(10, 0, 0, static_cast<uint8_t>(3 + n % 250));
    device.inject(request_from(host, mac(n % 250)));
    // Each is answered too, so that its entry is used.
    device.inject(
        test::ethernet({.destination = kOurMac, .source = mac(n % 250), .ether_type = kIp},
                       test::ipv4({.protocol = kProtocolIcmp, .source = host, .destination = kOurs},
                                  test::icmp({.type = wire::kIcmpEchoRequest}, {}))));
    EXPECT_EQ(send(kPeer), SendResult::sent);
    advance(kSecond / 100);
    bool has_flow = false;
    while (const auto frame = device.pop()) {
      const Bytes bytes(frame->bytes);
      if (load_be<uint16_t>(bytes, 12) == kIp) {
        has_flow |= load_be<uint32_t>(bytes, 14 + 16) == kPeer.v4_bits();
        continue;
      }
      const auto arp = view(frame->bytes);
      if (arp.operation() == wire::ArpOperation::reply) continue;
      const uint32_t target = arp.target_ip().v4_bits();
      const auto last = asked_at.find(target);
      if (last != asked_at.end()) {
        ASSERT_GE(clock.now_ns() - last->second, kSecond) << arp.target_ip().to_string();
      }
      asked_at[target] = clock.now_ns();
      if (arp.target_ip() == kPeer) device.inject(reply_from(kPeer, kPeerMac));
    }
    ASSERT_TRUE(has_flow) << n;
  }
  EXPECT_LE(asked_at.size(), 251U);
}

TEST_F(SmallArp, C043_targets_that_do_not_answer_are_bounded) {
  resolve_peer();
  for (uint32_t n = 0; n < 1000; ++n) {
    static_cast<void>(send(IpAddress::v4(10, 0, 0, static_cast<uint8_t>(3 + n % 250))));
    EXPECT_EQ(send(kPeer), SendResult::sent);
    layer.flush();
    bool has_flow = false;
    while (const auto frame = device.pop()) {
      has_flow |= load_be<uint16_t>(frame->bytes, 12) == kIp;
    }
    ASSERT_TRUE(has_flow);
  }
  EXPECT_GT(end.count("arp.incomplete_limit"), 0U);
  EXPECT_LE(end.count("arp.requests_sent"), 1U + 4);
  // They leave by themselves; then there is room again.
  for (int i = 0; i < 3; ++i) advance(kSecond);
  while (device.pop()) {
  }
  EXPECT_EQ(send(IpAddress::v4(10, 0, 0, 200)), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 1U);
}

TEST_F(SmallArp, C043_idle_confirmed_entries_make_room_busy_ones_do_not) {
  for (uint8_t host = 10; host < 18; ++host) {
    const IpAddress address = IpAddress::v4(10, 0, 0, host);
    EXPECT_EQ(send(address), SendResult::sent);
    inject(reply_from(address, mac(host)));
  }
  while (device.pop()) {
  }
  const IpAddress late = IpAddress::v4(10, 0, 0, 99);
  EXPECT_EQ(send(late), SendResult::sent);  // dropped: the table is full of confirmed entries
  EXPECT_EQ(end.count("arp.table_full"), 1U);
  EXPECT_EQ(count_frames(kArp), 0U);
  clock.advance(Neighbours::kIdleNs);
  round();
  EXPECT_EQ(send(late), SendResult::sent);
  EXPECT_EQ(count_frames(kArp), 1U);
  EXPECT_EQ(end.count("arp.evicted"), 1U);
}

TEST_F(SmallArp, N5_random_arp_never_breaks_the_table) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const auto some_ip = [&] {
      return random.below(10) == 0
                 ? IpAddress::v4(random.next_u32())
                 : IpAddress::v4(10, 0, 0, static_cast<uint8_t>(random.below(20)));
    };
    const auto some_mac = [&] { return random.below(5) == 0 ? kOurMac : mac(random.below(5)); };
    wire::ArpPacket arp{
        .operation = random.below(2) == 0 ? wire::ArpOperation::request : wire::ArpOperation::reply,
        .sender_mac = some_mac(),
        .sender_ip = some_ip(),
        .target_mac = some_mac(),
        .target_ip = random.below(2) == 0 ? kOurs : some_ip()};
    device.inject(test::arp_frame(kOurMac, arp));
    if (random.below(2) == 0) static_cast<void>(send(some_ip()));
    advance(random.below(2) * kSecond / 3);
    while (device.pop()) {
    }
  }
  for (int i = 0; i < 5; ++i) advance(kSecond);
  EXPECT_EQ(end.packets.in_use(), 0U);
  EXPECT_EQ(end.timers.armed(), 0U);
}

}  // namespace
}  // namespace nobounce::ip
