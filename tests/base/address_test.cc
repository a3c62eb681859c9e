#include "nobounce/address.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(IpAddress, parses_and_prints_what_it_should) {
  const struct {
    const char* text;
    const char* printed;  // null: refused
  } kCases[] = {
      {"0.0.0.0", "0.0.0.0"},
      {"192.0.2.1", "192.0.2.1"},
      {"255.255.255.255", "255.255.255.255"},
      {"::", "::"},
      {"::1", "::1"},
      {"2001:DB8::1", "2001:db8::1"},
      {"2001:db8:0:0:0:0:0:1", "2001:db8::1"},
      {"::ffff:192.0.2.1", "192.0.2.1"},  // v4-mapped is the IPv4 address (RFC 4291 2.5.5.2)
      {"", nullptr},
      {"192.0.2", nullptr},
      {"192.0.2.256", nullptr},
      {"192.0.2.1.5", nullptr},
      {"192.0.2.01", nullptr},  // octal or decimal? refused
      {" 192.0.2.1", nullptr},
      {"192.0.2.1 ", nullptr},
      {"192.0.2.1/24", nullptr},
      {"-1.0.0.0", nullptr},
      {"1:2:3:4:5:6:7:8:9", nullptr},
      {"1::2::3", nullptr},
      {"fe80::1%eth0", nullptr},
      {"[::1]", nullptr},
      {"localhost", nullptr},
  };
  for (const auto& test : kCases) {
    const auto address = IpAddress::parse(test.text);
    ASSERT_EQ(address.has_value(), test.printed != nullptr) << '"' << test.text << '"';
    if (address) {
      EXPECT_EQ(address->to_string(), test.printed) << test.text;
    }
  }
}

TEST(IpAddress, text_with_a_zero_byte_inside_is_refused_or_whole) {
  using namespace std::string_view_literals;
  // What comes behind the zero byte must not be dropped in silence.
  EXPECT_FALSE(IpAddress::parse("192.0.2.1\0junk"sv).has_value());
}

TEST(IpAddress, kinds) {
  EXPECT_TRUE(IpAddress().is_v4());
  EXPECT_TRUE(IpAddress().is_any());
  EXPECT_TRUE(IpAddress::parse("::")->is_any());
  EXPECT_TRUE(IpAddress::parse("::")->is_v6());
  EXPECT_FALSE(IpAddress::v4(10, 0, 0, 1).is_any());
  EXPECT_TRUE(IpAddress::v4(224, 0, 0, 1).is_multicast());
  EXPECT_TRUE(IpAddress::v4(239, 255, 255, 255).is_multicast());
  EXPECT_FALSE(IpAddress::v4(240, 0, 0, 0).is_multicast());
  EXPECT_FALSE(IpAddress::v4(223, 255, 255, 255).is_multicast());
  EXPECT_TRUE(IpAddress::parse("ff02::1")->is_multicast());
  EXPECT_TRUE(IpAddress::v4(127, 1, 2, 3).is_loopback());
  EXPECT_TRUE(IpAddress::parse("::1")->is_loopback());
  EXPECT_FALSE(IpAddress::parse("::2")->is_loopback());
  EXPECT_TRUE(IpAddress::v4(255, 255, 255, 255).is_limited_broadcast());
  EXPECT_FALSE(IpAddress::parse("ffff::")->is_limited_broadcast());
  EXPECT_EQ(IpAddress::v4(0x01020304), IpAddress::v4(1, 2, 3, 4));
  EXPECT_EQ(IpAddress::v4(1, 2, 3, 4).v4_bits(), 0x01020304u);
}

TEST(Endpoint, parses_and_prints) {
  const struct {
    const char* text;
    bool good;
  } kCases[] = {
      {"192.0.2.1:80", true},
      {"0.0.0.0:0", true},
      {"[2001:db8::1]:65535", true},
      {"192.0.2.1", false},
      {"192.0.2.1:", false},
      {"192.0.2.1:65536", false},
      {"192.0.2.1:-1", false},
      {"192.0.2.1:+1", false},
      {"192.0.2.1:8o", false},
      {"2001:db8::1:80", false},
      {":80", false},
      {"", false},
      {"[]:80", false},
      {"[192.0.2.1]:80:90", false},
      {"192.0.2.1: 80", false},
  };
  for (const auto& test : kCases) {
    const auto endpoint = Endpoint::parse(test.text);
    ASSERT_EQ(endpoint.has_value(), test.good) << '"' << test.text << '"';
    if (endpoint) {
      EXPECT_EQ(endpoint->to_string(), test.text);
    }
  }
}

TEST(IpPrefix, parses_and_prints) {
  for (const char* good :
       {"192.0.2.1/24", "0.0.0.0/0", "10.0.0.1/32", "2001:db8::1/64", "::/0", "::1/128"}) {
    const auto prefix = IpPrefix::parse(good);
    ASSERT_TRUE(prefix.has_value()) << good;
    EXPECT_EQ(prefix->to_string(), good);
  }
  for (const char* bad : {"192.0.2.1", "192.0.2.1/33", "192.0.2.1/", "192.0.2.1/-1", "/24",
                          "::1/129", "192.0.2.1/24/8", "192.0.2.1/ 24", "192.0.2.1/256", ""}) {
    EXPECT_FALSE(IpPrefix::parse(bad).has_value()) << bad;
  }
}

TEST(IpPrefix, contains_at_every_length) {
  // Against a model that compares bit by bit.
  const IpAddress base = IpAddress::v4(0xa5c3'960f);
  for (uint8_t length = 0; length <= 32; ++length) {
    const IpPrefix prefix{base, length};
    for (unsigned bit = 0; bit < 32; ++bit) {
      const IpAddress other = IpAddress::v4(0xa5c3'960f ^ (uint32_t{1} << (31 - bit)));
      EXPECT_EQ(prefix.contains(other), bit >= length) << unsigned{length} << " bit " << bit;
    }
    EXPECT_TRUE(prefix.contains(base));
    EXPECT_FALSE(prefix.contains(*IpAddress::parse("2001:db8::1")));
  }
  const IpPrefix wide{*IpAddress::parse("2001:db8::"), 33};
  EXPECT_TRUE(wide.contains(*IpAddress::parse("2001:db8:7fff::1")));
  EXPECT_FALSE(wide.contains(*IpAddress::parse("2001:db8:8000::1")));
  EXPECT_FALSE(wide.contains(IpAddress::v4(10, 0, 0, 1)));
  // The widest IPv6 prefix holds IPv6 alone, though IPv4 lies inside its bytes as v4-mapped.
  EXPECT_FALSE((IpPrefix{*IpAddress::parse("::"), 0}).contains(IpAddress::v4(10, 0, 0, 1)));
}

TEST(IpPrefix, broadcast_is_directed) {
  EXPECT_EQ(IpPrefix::parse("10.1.2.3/24")->broadcast(), IpAddress::v4(10, 1, 2, 255));
  EXPECT_EQ(IpPrefix::parse("10.1.2.3/30")->broadcast(), IpAddress::v4(10, 1, 2, 3));
  EXPECT_EQ(IpPrefix::parse("10.1.2.3/0")->broadcast(), IpAddress::v4(255, 255, 255, 255));
  EXPECT_TRUE(IpPrefix::parse("10.1.2.3/31")->broadcast().is_any());  // RFC 3021: none
  EXPECT_TRUE(IpPrefix::parse("10.1.2.3/32")->broadcast().is_any());
  EXPECT_TRUE(IpPrefix::parse("2001:db8::1/64")->broadcast().is_any());
}

TEST(MacAddress, parses_and_prints) {
  const auto mac = MacAddress::parse("02:aB:00:00:00:fF");
  ASSERT_TRUE(mac.has_value());
  EXPECT_EQ(mac->to_string(), "02:ab:00:00:00:ff");
  EXPECT_FALSE(mac->is_multicast());
  EXPECT_TRUE(MacAddress::broadcast().is_multicast());
  EXPECT_TRUE(MacAddress{}.is_zero());
  EXPECT_FALSE(mac->is_zero());
  for (const char* bad :
       {"", "02:ab:00:00:00", "02:ab:00:00:00:ff:11", "02-ab-00-00-00-ff", "02:ab:00:00:00:fg",
        "2:ab:00:00:00:ff:", "02:ab:00:00:00:-1", "02:ab:00:00:00: 1", "02ab000000ff"}) {
    EXPECT_FALSE(MacAddress::parse(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace nobounce
