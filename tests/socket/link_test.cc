// The shard and a link that comes and goes: who is told, how often. virtio.md 13, TM-32, C058.
#include <gtest/gtest.h>

#include "nobounce/stack.hpp"
#include "socket/set_up.hpp"
#include "socket/shard.hpp"
#include "support/wire_link.hpp"
#include "wire/arp.hpp"
#include "wire/ethernet.hpp"

namespace nobounce::test {
namespace {

struct LinkTest : testing::Test {
  LinkTest() {
    StackOptions options;
    options.address = {IpAddress::v4(10, 0, 0, 1), 24};
    options.drive = Drive::inline_drive;
    options.private_bytes = 32 << 20;
    options.connections_max = 64;
    auto opened = StackSetUp::open_on(
        options,
        [this](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
          auto made = std::make_unique<ScriptDevice>(*contexts[0], ScriptDevice::Options{});
          device = made.get();
          return made;
        },
        {.clock = &clock});
    EXPECT_TRUE(opened);
    stack = std::move(*opened);
    shard = &StackSetUp::shard(*stack);
  }
  void round(uint64_t ns = 0) {
    clock.advance(ns);
    (void)shard->round();
  }
  // ARP frames since the last call.
  size_t announcements() {
    size_t count = 0;
    while (const auto frame = device->pop()) {
      const auto ethernet = wire::EthernetView::parse(frame->bytes);
      count += ethernet && ethernet->ether_type() == wire::kEtherTypeArp ? 1 : 0;
    }
    return count;
  }

  ManualClock clock;
  ScriptDevice* device = nullptr;
  std::unique_ptr<Stack> stack;
  Shard* shard = nullptr;
};

TEST_F(LinkTest, the_address_is_announced_at_start_and_when_the_link_is_back) {
  round();
  EXPECT_EQ(announcements(), 1U);
  round(kNsPerSecond);
  EXPECT_EQ(announcements(), 0U);
  device->set_link_up(false);
  round(kNsPerSecond);
  EXPECT_EQ(announcements(), 0U);
  device->set_link_up(true);
  round(kNsPerSecond);
  EXPECT_EQ(announcements(), 1U);
  EXPECT_FALSE(stack->failure().has_value());
}

TEST_F(LinkTest, TM32_a_link_that_flaps_is_announced_once_a_second) {
  round();
  (void)announcements();
  for (int i = 0; i < 100'000; ++i) {  // ten seconds at 10 kHz
    device->set_link_up(i % 2 == 0);
    round(100'000);
  }
  const size_t count = announcements();
  EXPECT_GE(count, 9U);
  EXPECT_LE(count, 11U);
  device->set_link_up(true);
  round(kNsPerSecond);  // the last word gets through
  (void)announcements();
  EXPECT_FALSE(stack->failure().has_value());
}

TEST_F(LinkTest, why_a_device_is_broken_is_said) {
  device->set_broken(true);
  round();
  ASSERT_TRUE(stack->failure().has_value());
  EXPECT_EQ(*stack->failure(), "device script: it is broken or gone");
}

}  // namespace
}  // namespace nobounce::test
