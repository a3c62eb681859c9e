#include "cli/values.hpp"

#include <gtest/gtest.h>

#include "netdev/net_device.hpp"

namespace nobounce::cli {
namespace {

TEST(Values, sizes) {
  EXPECT_EQ(parse_bytes("1"), 1u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("64k"), 65536u);
  EXPECT_EQ(parse_bytes("3M"), 3u << 20);
  EXPECT_EQ(parse_bytes("2G"), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_bytes("17179869183G"), uint64_t{17179869183} << 30);
  for (const char* bad : {"", "K", "0", "0K", "-1", "1.5M", "1 K", "1KB", "x",
                          "18446744073709551616", "17179869184G"}) {
    EXPECT_FALSE(parse_bytes(bad).has_value()) << bad;
  }
}

TEST(Values, durations) {
  using std::chrono::milliseconds;
  using std::chrono::minutes;
  using std::chrono::seconds;
  EXPECT_EQ(parse_duration("5"), seconds(5));
  EXPECT_EQ(parse_duration("5s"), seconds(5));
  EXPECT_EQ(parse_duration("2.5"), milliseconds(2500));
  EXPECT_EQ(parse_duration("200ms"), milliseconds(200));
  EXPECT_EQ(parse_duration("2m"), minutes(2));
  for (const char* bad : {"", "0", "-1", "s", "ms", "1h", "nan", "inf", "1e300", "86401",
                          "0.0001ms", "5 s", "five"}) {
    EXPECT_FALSE(parse_duration(bad).has_value()) << bad;
  }
}

TEST(Values, modes) {
  EXPECT_EQ(parse_mode("bounce"), Mode::bounce);
  EXPECT_EQ(parse_mode("nocopy"), Mode::nocopy);
  EXPECT_FALSE(parse_mode("Nocopy").has_value());
  EXPECT_FALSE(parse_mode("").has_value());
  EXPECT_STREQ(to_string(Mode::bounce), "bounce");
  EXPECT_STREQ(to_string(Mode::nocopy), "nocopy");
}

TEST(Values, queue_sizes_are_powers_of_two) {
  EXPECT_EQ(parse_queue_size("256"), 256);
  EXPECT_EQ(parse_queue_size("32768"), 32768);
  for (const char* bad : {"0", "16", "63", "100", "1000", "65536", "-256", ""}) {
    EXPECT_FALSE(parse_queue_size(bad).has_value()) << bad;
  }
}

TEST(Values, queue_sizes_and_mtus_have_the_bounds_of_the_devices) {
  EXPECT_EQ(parse_queue_size(std::to_string(kQueueSizeMin)), kQueueSizeMin);
  EXPECT_FALSE(parse_queue_size(std::to_string(kQueueSizeMin / 2)).has_value());
  EXPECT_EQ(parse_mtu(std::to_string(kMtuMin)), kMtuMin);
  EXPECT_EQ(parse_mtu(std::to_string(kMtuMax)), kMtuMax);
  EXPECT_FALSE(parse_mtu(std::to_string(kMtuMin - 1)).has_value());
  EXPECT_FALSE(parse_mtu(std::to_string(kMtuMax + 1)).has_value());
  EXPECT_EQ(right_queue_size(), "a power of two from 32 to 32768");
  EXPECT_EQ(right_mtu(), "a number of bytes from 576 to 65535");
}

TEST(Values, endpoints_with_and_without_a_port) {
  EXPECT_EQ(parse_endpoint("10.77.0.1"), (Endpoint{IpAddress::v4(10, 77, 0, 1), 0}));
  EXPECT_EQ(parse_endpoint("10.77.0.1:9"), (Endpoint{IpAddress::v4(10, 77, 0, 1), 9}));
  EXPECT_EQ(parse_endpoint("2001:db8::1")->port, 0);
  EXPECT_EQ(parse_endpoint("[2001:db8::1]:7")->port, 7);
  for (const char* bad : {"", "10.77.0.1:", "10.77.0.1:0", "10.77.0.1:65536", "host", "host:7"}) {
    EXPECT_FALSE(parse_endpoint(bad).has_value()) << bad;
  }
}

TEST(Values, hosts_addresses_only) {
  for (const char* good :
       {"10.77.0.2/24", "10.77.0.0/31", "10.77.0.1/31", "10.77.0.2/32", "2001:db8::1/64"}) {
    EXPECT_TRUE(parse_host_prefix(good).has_value()) << good;
  }
  for (const char* bad : {"10.77.0.0/24", "10.77.0.255/24", "0.0.0.0/0", "224.0.0.1/4",
                          "255.255.255.255/32", "10.77.0.2", "::/64", "ff02::1/64", "10.0.0.0/8"}) {
    EXPECT_FALSE(parse_host_prefix(bad).has_value()) << bad;
  }
}

TEST(Values, mac_addresses_a_host_can_have) {
  EXPECT_TRUE(parse_unicast_mac("02:00:00:00:00:01").has_value());
  EXPECT_FALSE(parse_unicast_mac("01:00:00:00:00:01").has_value());  // multicast
  EXPECT_FALSE(parse_unicast_mac("00:00:00:00:00:00").has_value());
  EXPECT_FALSE(parse_unicast_mac("ff:ff:ff:ff:ff:ff").has_value());
}

TEST(Values, sizes_for_people) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(uint64_t{256} << 20), "256.0 MiB");
  EXPECT_EQ(format_bytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16777216.0 TiB");
}

}  // namespace
}  // namespace nobounce::cli
