#include "backend/mac_table.hpp"

#include <gtest/gtest.h>

#include "base/clock.hpp"

namespace nobounce::backend::test {
namespace {

MacAddress mac_of(uint32_t n) {
  return {{0x02, 0, static_cast<uint8_t>(n >> 24), static_cast<uint8_t>(n >> 16),
           static_cast<uint8_t>(n >> 8), static_cast<uint8_t>(n)}};
}

class MacTableTest : public testing::Test {
 protected:
  SeededRandom random_{7};
  MacTable table_{random_};
};

TEST_F(MacTableTest, an_address_is_found_where_it_was_last_seen) {
  EXPECT_EQ(table_.find(mac_of(1), 1), std::nullopt);
  EXPECT_FALSE(table_.learn(mac_of(1), 3, 1));
  EXPECT_EQ(table_.find(mac_of(1), 2), 3);
  EXPECT_FALSE(table_.learn(mac_of(1), 4, 5));  // it moved
  EXPECT_EQ(table_.find(mac_of(1), 6), 4);
  EXPECT_EQ(table_.size(), 1u);
}

TEST_F(MacTableTest, group_and_zero_addresses_are_nobodys) {
  table_.learn(MacAddress::broadcast(), 1, 1);
  table_.learn(MacAddress{{0x01, 0, 0x5e, 0, 0, 1}}, 1, 1);
  table_.learn(MacAddress{}, 1, 1);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(MacTableTest, entries_age) {
  table_.learn(mac_of(1), 1, kNsPerSecond);
  EXPECT_EQ(table_.find(mac_of(1), kNsPerSecond + MacTable::kAgeNs - 1), 1);
  EXPECT_EQ(table_.find(mac_of(1), kNsPerSecond + MacTable::kAgeNs), std::nullopt);
  EXPECT_EQ(table_.find(mac_of(1), 0), 1);  // a clock that steps back loses nothing
}

TEST_F(MacTableTest, a_port_that_leaves_takes_its_addresses_along) {
  for (uint32_t i = 0; i < 10; ++i) table_.learn(mac_of(i), i % 2, 1);
  table_.forget(1);
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(table_.find(mac_of(i), 2).has_value(), i % 2 == 0) << i;
  }
}

// A guest that invents addresses changes nothing about the table's size, and who speaks stays.
TEST_F(MacTableTest, a_flood_of_addresses_is_bounded_and_spares_who_speaks) {
  uint64_t evictions = 0;
  uint64_t now = 1;
  for (uint32_t i = 0; i < 100'000; ++i) {
    if (i % 16 == 0) table_.learn(mac_of(0xffffff), 2, now++);
    if (table_.learn(mac_of(i), 1, now++)) ++evictions;
    ASSERT_EQ(table_.find(mac_of(0xffffff), now), 2) << i;
  }
  EXPECT_EQ(table_.size(), MacTable::kSets * MacTable::kWays);
  EXPECT_GT(evictions, 90'000u);
}

}  // namespace
}  // namespace nobounce::backend::test
