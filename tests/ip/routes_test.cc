// Several own addresses and routes (N-1, N-5, N-9).
#include "ip/routes.hpp"

#include "ip/two_addresses.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kIp = wire::kEtherTypeIpv4;

IpAddress ip(const char* text) { return *IpAddress::parse(text); }
IpPrefix prefix(const char* text) { return *IpPrefix::parse(text); }

TEST(Routes, N9_the_longest_prefix_wins_and_gives_the_source) {
  const std::vector<IpPrefix> addresses{prefix("10.77.0.2/24"), prefix("10.78.0.2/16"),
                                        prefix("10.78.9.2/24"), prefix("10.77.0.3/24")};
  const std::vector<Route> routes{
      *Route::parse("10.88.0.0/16=10.77.0.9"), *Route::parse("10.88.5.0/24=10.78.0.9"),
      *Route::parse("10.88.5.7/32=10.78.9.9"),
      *Route::parse("10.88.5.0/24=10.77.0.8"),  // later: never used
      *Route::parse("10.77.0.0/24=10.78.0.9"), *Route::parse("10.77.0.64/26=10.78.0.9"),
      *Route::parse("10.77.0.3/32=10.78.0.9")};
  const Routes table({.addresses = addresses, .gateway = ip("10.77.0.1"), .routes = routes});
  const auto expect = [&](const char* to, const char* neighbour, const char* source) {
    const auto hop = table.find(ip(to));
    ASSERT_TRUE(hop) << to;
    EXPECT_EQ(hop->neighbour.to_string(), neighbour) << to;
    EXPECT_EQ(hop->source.to_string(), source) << to;
  };
  expect("10.77.0.200", "10.77.0.200", "10.77.0.2");  // on the link, whatever a route says
  expect("10.77.0.65", "10.78.0.9", "10.78.0.2");     // but for a narrower one
  expect("10.77.0.2", "10.77.0.2", "10.77.0.2");
  expect("10.77.0.3", "10.77.0.3", "10.77.0.3");  // ours, whatever a route says
  expect("10.78.1.1", "10.78.1.1", "10.78.0.2");
  expect("10.78.9.1", "10.78.9.1", "10.78.9.2");
  expect("10.88.1.1", "10.77.0.9", "10.77.0.2");
  expect("10.88.5.1", "10.78.0.9", "10.78.0.2");
  expect("10.88.5.7", "10.78.9.9", "10.78.9.2");
  expect("192.0.2.1", "10.77.0.1", "10.77.0.2");
  expect("255.255.255.255", "255.255.255.255", "10.77.0.2");
  expect("10.78.255.255", "10.78.255.255", "10.78.0.2");
  expect("10.78.9.255", "10.78.9.255", "10.78.9.2");
  for (const char* nowhere : {"0.0.0.0", "127.0.0.1", "::1", "2001:db8::1"}) {
    EXPECT_FALSE(table.find(ip(nowhere))) << nowhere;
  }
}

TEST(Routes, N1_what_is_ours_a_group_or_a_neighbour) {
  const std::vector<IpPrefix> addresses{prefix("10.77.0.2/24"), prefix("10.79.0.1/32"),
                                        prefix("10.80.0.4/31")};
  const Routes table({.addresses = addresses, .gateway = {}, .routes = {}});
  for (const char* own : {"10.77.0.2", "10.79.0.1", "10.80.0.4"}) {
    EXPECT_TRUE(table.is_ours(ip(own)));
    EXPECT_FALSE(table.is_neighbour(ip(own)));
  }
  for (const char* group : {"10.77.0.255", "255.255.255.255", "224.0.0.1", "239.1.1.1"}) {
    EXPECT_TRUE(table.is_group(ip(group)));
    EXPECT_FALSE(table.is_neighbour(ip(group)));
  }
  EXPECT_FALSE(table.is_group(ip("10.80.0.5")));  // a /31 has no broadcast (RFC 3021)
  EXPECT_TRUE(table.is_neighbour(ip("10.80.0.5")));
  EXPECT_TRUE(table.is_neighbour(ip("10.77.0.1")));
  for (const char* other : {"10.78.0.1", "0.0.0.0", "127.0.0.1", "10.79.0.2", "::1"}) {
    EXPECT_FALSE(table.is_neighbour(ip(other))) << other;
  }
  EXPECT_EQ(table.source_on_link(ip("10.80.0.5")), ip("10.80.0.4"));
  EXPECT_EQ(table.source_on_link(ip("192.0.2.1")), ip("10.77.0.2"));
  EXPECT_FALSE(table.find(ip("192.0.2.1")));
}

// The model: look at every entry. Random tables, random destinations.
TEST(Routes, N9_random_tables_against_a_model) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    const auto near = [&] { return IpAddress::v4(0x0a000000 + random.below(1 << 12)); };
    std::vector<IpPrefix> addresses{prefix("10.0.0.1/20")};
    for (uint32_t i = random.below(4); i > 0; --i) {
      addresses.push_back({near(), static_cast<uint8_t>(20 + random.below(13))});
    }
    const Routes links({.addresses = addresses, .gateway = {}, .routes = {}});
    std::vector<Route> routes;
    for (uint32_t i = random.below(10); i > 0; --i) {
      const Route route{{near(), static_cast<uint8_t>(random.below(33))}, near()};
      if (links.is_neighbour(route.gateway)) routes.push_back(route);
    }
    const Routes table({.addresses = addresses, .gateway = {}, .routes = routes});
    for (int i = 0; i < 100; ++i) {
      const IpAddress to = random.below(4) == 0 ? IpAddress::v4(random.next_u32()) : near();
      if (to.is_any() || to.is_loopback() || table.is_group(to) || table.is_ours(to)) continue;
      int best = -1;
      IpAddress hop;
      for (const IpPrefix& own : addresses) {
        if (own.contains(to) && own.length > best) best = own.length, hop = to;
      }
      for (const Route& route : routes) {
        if (route.prefix.contains(to) && route.prefix.length > best) {
          best = route.prefix.length;
          hop = route.gateway;
        }
      }
      const auto found = table.find(to);
      ASSERT_EQ(found.has_value(), best >= 0);
      if (found) {
        ASSERT_EQ(found->neighbour, hop);
        ASSERT_TRUE(table.is_ours(found->source));
      }
    }
  }
}

// ---- a layer with two addresses -----------------------------------------------------------------

TEST_F(TwoAddresses, N5_every_own_address_is_answered_for_and_announced) {
  for (const auto& [from, target] :
       {std::pair{kPeer, kOurs}, std::pair{kSecondPeer, kSecond}, std::pair{kPeer, kSecond}}) {
    inject(arp_request(from, target));
    const auto reply = next_arp();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->operation(), wire::ArpOperation::reply);
    EXPECT_EQ(reply->sender_ip(), target);
    EXPECT_EQ(reply->target_ip(), from);
  }
  inject(arp_request(kPeer, IpAddress::v4(10, 9, 0, 2)));
  EXPECT_FALSE(next_arp());
  layer.announce();
  EXPECT_EQ(next_arp()->sender_ip(), kOurs);
  const auto second = next_arp();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->sender_ip(), kSecond);
  EXPECT_EQ(second->target_ip(), kSecond);
  inject(arp_request(kSecond, kSecond));  // someone claims it
  EXPECT_EQ(next_arp()->target_ip(), kSecond);
  EXPECT_EQ(end.count("arp.conflicts"), 1U);
}

TEST_F(TwoAddresses, N5_each_address_is_defended_by_itself_and_not_too_often) {
  for (const IpAddress& own : {kOurs, kSecond}) {
    inject(arp_request(own, own));
    const auto answer = next_arp();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->sender_ip(), own);
  }
  for (const IpAddress& own : {kSecond, kOurs, kSecond}) {
    inject(arp_request(own, own));
    EXPECT_FALSE(next_arp());
  }
  clock.advance(10 * kNsPerSecond);
  inject(arp_request(kSecond, kSecond));
  EXPECT_EQ(next_arp()->sender_ip(), kSecond);
}

TEST_F(TwoAddresses, N5_a_neighbour_is_asked_from_the_address_on_its_network) {
  EXPECT_EQ(layer.source_for(kSecondPeer), kSecond);
  EXPECT_EQ(layer.source_for(kPeer), kOurs);
  EXPECT_EQ(layer.source_for(kFar), kOurs);
  EXPECT_EQ(layer.source_for(IpAddress::v4(10, 88, 1, 1)), kSecond);
  EXPECT_EQ(send(kOurs, kSecondPeer), SendResult::sent);  // a source of the sender's own choice
  const auto request = next_arp();
  ASSERT_TRUE(request);
  EXPECT_EQ(request->sender_ip(), kSecond);
  EXPECT_EQ(request->target_ip(), kSecondPeer);
  EXPECT_EQ(send(kSecond, IpAddress::v4(10, 88, 1, 1)), SendResult::sent);
  EXPECT_FALSE(next_arp());  // the gateway is asked for already
  EXPECT_EQ(send(kSecond, kFar), SendResult::sent);
  EXPECT_EQ(next_arp()->target_ip(), kGateway);
  EXPECT_EQ(send(kPeer, kFar), SendResult::no_route);
  EXPECT_EQ(end.count("ip.drop.bad_source"), 1U);
}

TEST_F(TwoAddresses, N1_received_for_each_address_and_each_broadcast) {
  for (const IpAddress& to : {kOurs, kSecond, IpAddress::v4(10, 9, 0, 255)}) {
    const bool is_group = to != kOurs && to != kSecond;
    inject(test::ethernet({.destination = is_group ? MacAddress::broadcast() : kOurMac,
                           .source = kPeerMac,
                           .ether_type = kIp},
                          test::ipv4({.protocol = kProtocolUdp, .source = kPeer, .destination = to},
                                     test::udp({kPeer, 1}, {to, 2}, test::pattern(9)))));
    ASSERT_FALSE(udp.packets.empty());
    EXPECT_EQ(udp.last.destination, to);
    EXPECT_EQ(udp.last.to_unicast, !is_group);
  }
  inject(test::ethernet({.destination = kOurMac, .source = kPeerMac, .ether_type = kIp},
                        test::ipv4({.protocol = kProtocolUdp,
                                    .source = kSecond,  // ours, from the wire
                                    .destination = kOurs},
                                   test::udp({kSecond, 1}, {kOurs, 2}, test::pattern(9)))));
  EXPECT_EQ(end.count("ip.drop.bad_source_address"), 1U);
}

}  // namespace
}  // namespace nobounce::ip
