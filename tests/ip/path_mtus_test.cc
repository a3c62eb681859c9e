// Paths narrower than the link: what is kept, for how long, and who keeps to it (T-53, C048).
#include "ip/path_mtus.hpp"

#include "ip/ip_fixture.hpp"

namespace nobounce::ip {
namespace {

class PathMtu : public IpTest {
 protected:
  static IpAddress host(unsigned n) {
    return IpAddress::v4(192, 0, static_cast<uint8_t>(n >> 8), static_cast<uint8_t>(n));
  }
  void pass(uint64_t ns) {
    clock.advance(ns);
    end.begin_round();
  }
  PathMtus table{end.context, 8};
};

TEST_F(PathMtu, T53_only_down_and_not_below_the_floor) {
  EXPECT_EQ(table.get(kFar, 1500), 1500);
  EXPECT_FALSE(table.lower(kFar, 1500, 1500));
  EXPECT_FALSE(table.lower(kFar, 9000, 1500));
  EXPECT_EQ(table.size(), 0U);
  EXPECT_TRUE(table.lower(kFar, 1400, 1500));
  EXPECT_EQ(table.get(kFar, 1500), 1400);
  EXPECT_EQ(table.get(kPeer, 1500), 1500);
  EXPECT_FALSE(table.lower(kFar, 1450, 1500));
  EXPECT_TRUE(table.lower(kFar, 68, 1500));
  EXPECT_EQ(table.get(kFar, 1500), 576);
  EXPECT_FALSE(table.lower(kFar, 0, 1500));
  EXPECT_EQ(table.get(kFar, 500), 500);  // the link is narrower still
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(end.count("ip.path_mtu.lowered"), 2U);
  EXPECT_EQ(end.count("ip.path_mtu.ignored"), 4U);
}

TEST_F(PathMtu, T53_an_entry_ends_after_ten_minutes) {
  EXPECT_TRUE(table.lower(kFar, 1400, 1500));
  pass(PathMtus::kAgeNs - 1);
  EXPECT_EQ(table.get(kFar, 1500), 1400);
  EXPECT_FALSE(table.lower(kFar, 1400, 1500));  // no longer life for what is known
  pass(1);
  EXPECT_EQ(table.get(kFar, 1500), 1500);
  EXPECT_TRUE(table.lower(kFar, 1450, 1500));  // higher than before, but that is forgotten
  EXPECT_EQ(table.get(kFar, 1500), 1450);
  pass(PathMtus::kAgeNs / 2);
  EXPECT_TRUE(table.lower(kFar, 1300, 1500));
  pass(PathMtus::kAgeNs / 2 + 1);
  EXPECT_EQ(table.get(kFar, 1500), 1300);
}

TEST_F(PathMtu, T53_a_full_table_forgets_the_oldest) {
  for (unsigned n = 0; n < 8; ++n) {
    EXPECT_TRUE(table.lower(host(n), 1400, 1500));
    pass(kNsPerSecond);
  }
  EXPECT_TRUE(table.lower(host(0), 1300, 1500));  // now the newest
  for (unsigned n = 8; n < 11; ++n) EXPECT_TRUE(table.lower(host(n), 1400, 1500));
  EXPECT_EQ(table.size(), 8U);
  EXPECT_EQ(end.count("ip.path_mtu.evicted"), 3U);
  EXPECT_EQ(table.get(host(0), 1500), 1300);
  for (unsigned n = 1; n < 4; ++n) EXPECT_EQ(table.get(host(n), 1500), 1500) << n;
  for (unsigned n = 4; n < 11; ++n) EXPECT_EQ(table.get(host(n), 1500), 1400) << n;
  for (unsigned n = 0; n < 10'000; ++n) {
    static_cast<void>(table.lower(host(n), 600, 1500));
    ASSERT_LE(table.size(), 8U);
  }
  pass(PathMtus::kAgeNs);
  EXPECT_TRUE(table.lower(host(1), 1400, 1500));
  EXPECT_EQ(table.size(), 1U);  // what has ended makes room
}

TEST_F(PathMtu, T53_what_may_be_cut_is_cut_for_the_path_what_may_not_goes_as_it_is) {
  resolve_peer();
  layer.lower_path_mtu(kPeer, 1000);
  EXPECT_EQ(layer.mtu_to(kPeer), 1000);
  EXPECT_EQ(layer.mtu_to(kFar), 1500);
  EXPECT_EQ(send(kPeer, 1400, false), SendResult::sent);
  const auto first = next(wire::kEtherTypeIpv4);
  const auto second = next(wire::kEtherTypeIpv4);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->size(), 14U + 20 + 976);
  EXPECT_EQ(second->size(), 14U + 20 + 1408 - 976);
  EXPECT_EQ(send(kPeer, 1400, true), SendResult::sent);
  EXPECT_EQ(next(wire::kEtherTypeIpv4)->size(), 14U + 20 + 8 + 1400);
  clock.advance(PathMtus::kAgeNs);
  end.begin_round();
  EXPECT_EQ(layer.mtu_to(kPeer), 1500);
}

}  // namespace
}  // namespace nobounce::ip
