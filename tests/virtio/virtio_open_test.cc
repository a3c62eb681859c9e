// Set-up of the driver: what is refused, what is chosen, how much is carved; several queue pairs.
#include <gtest/gtest.h>

#include "base/log.hpp"
#include "support/virtio_rig.hpp"

namespace nobounce::test {
namespace {

using Memory = VirtioRig::Memory;

TEST(VirtioNetOpen, TM27_a_device_without_version_1_is_refused) {
  VirtioRig rig;
  rig.device.offer &= ~wire::kVersion1;
  const auto opened = rig.try_open();
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().to_string().find("VERSION_1"), std::string::npos);
}

TEST(VirtioNetOpen, every_failing_step_leaves_nothing_behind) {
  for (const char* step :
       {"read_features", "accept_features", "read_config", "share", "set_up_queue", "start"}) {
    SCOPED_TRACE(step);
    VirtioRig rig;
    rig.device.refuse = step;
    const auto opened = rig.try_open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().operation, step);
    EXPECT_EQ(rig.device.stops, 1U);
  }
}

TEST(VirtioNetOpen, options_out_of_range_are_refused_with_a_hint) {
  const auto refused = [](const virtio::VirtioNetOptions& net) {
    VirtioRig rig;
    rig.shards = 1;
    rig.options.net = net;
    const auto opened = rig.try_open();
    ASSERT_FALSE(opened);
    EXPECT_FALSE(opened.error().hint.empty());
  };
  refused({.queue_size = 0});
  refused({.queue_size = 16});
  refused({.queue_size = 96});
  refused({.queue_size = 64, .queue_pairs = 0});
  refused({.queue_size = 64, .queue_pairs = 2});  // one shard only
  refused({.queue_size = 64, .mtu = 67});
  refused({.queue_size = 64, .mac = MacAddress::broadcast()});
  refused({.queue_size = 64, .mac = MacAddress{}});
}

TEST(VirtioNetOpen, TM30_mtu_is_the_devices_at_most) {
  const auto mtu_of = [](std::optional<uint16_t> wanted, std::optional<uint16_t> device,
                         uint64_t without = 0) {
    VirtioRig rig;
    rig.options.net.mtu = wanted;
    rig.device.config.mtu = device;
    rig.device.offer &= ~without;
    rig.open();
    return rig.net->mtu();
  };
  EXPECT_EQ(mtu_of({}, {}), 1500);
  EXPECT_EQ(mtu_of({}, 9000), 9000);
  EXPECT_EQ(mtu_of(1400, 9000), 1400);
  EXPECT_EQ(mtu_of(9000, 1450), 1450);
  EXPECT_EQ(mtu_of({}, 68), 68);
  EXPECT_EQ(mtu_of(65535, {}), 65535);
  // One page a frame without mergeable buffers.
  EXPECT_EQ(mtu_of(9000, {}, wire::kNetMrgRxbuf), 4096 - 12 - 18);
  VirtioRig rig;
  rig.device.config.mtu = 67;
  EXPECT_FALSE(rig.try_open());
}

TEST(VirtioNetOpen, TM30_a_mac_that_is_none_is_replaced) {
  const auto mac_of = [](std::optional<MacAddress> device) {
    VirtioRig rig;
    rig.device.config.mac = device;
    rig.open();
    return rig.net->mac();
  };
  const MacAddress good{{2, 1, 2, 3, 4, 5}};
  EXPECT_EQ(mac_of(good), good);
  for (const auto& bad : {std::optional<MacAddress>{}, std::optional(MacAddress::broadcast()),
                          std::optional(MacAddress{})}) {
    const MacAddress mac = mac_of(bad);
    EXPECT_FALSE(mac.is_multicast());
    EXPECT_EQ(mac.bytes[0] & 3, 2);
  }
}

TEST(VirtioNetOpen, a_pool_that_cannot_fill_the_floor_is_too_small) {
  RigOptions options;
  options.arena_bytes = 2 << 20;
  options.region_bytes = 4 << 20;
  options.quotas = {.tx_percent = 90, .rx_percent = 0};
  options.net.queue_size = 64;
  VirtioRig rig(options);
  std::vector<Page*> taken;
  while (Page* page = rig.arena->alloc(0)) taken.push_back(page);
  const auto opened = rig.try_open();
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().hint.find("--pool-size"), std::string::npos);
  for (Page* page : taken) page_put(*page);
}

TEST(VirtioNetOpen, C065_iova_addresses_only_never_pointers) {
  VirtioRig rig;
  rig.open();
  ASSERT_EQ(rig.send(rig.make_packet(54, 3000)), 1U);
  ASSERT_EQ(rig.send(rig.make_packet(54, 1000, Memory::private_pages)), 1U);
  for (const uint16_t index : {uint16_t{0}, uint16_t{1}}) {
    while (const auto chain = rig.device.pop(index)) {
      for (const FakeDescriptor& part : chain->parts) {
        EXPECT_TRUE(rig.device.reaches(part.address, part.length));
      }
    }
  }
}

TEST(VirtioNetOpen, carve_bytes_is_enough) {
  for (const uint16_t size : {uint16_t{32}, uint16_t{64}, uint16_t{256}, uint16_t{1024}}) {
    const virtio::VirtioNetOptions net{.queue_size = size};
    RigOptions options;
    options.net = net;
    options.region_bytes = 32 << 20;
    options.arena_bytes = 16 << 20;
    VirtioRig rig(options);
    rig.open();
    SharedBytes lowest = rig.device.queue(0).layout.descriptors;
    const auto rest = rig.region->carve(64, 64);
    EXPECT_LE(rest.address() - lowest.address(), virtio::VirtioNet::carve_bytes(net));
  }
}

// ---- queue pairs ------------------------------------------------------------------------------

TEST(VirtioNetPairs, C061_frames_go_and_come_on_their_own_pair) {
  VirtioRig rig;
  rig.options.net.queue_pairs = 3;
  rig.device.offer |= wire::kNetMq;
  rig.device.config.queue_pairs_max = 4;
  rig.open();
  EXPECT_NE(rig.device.accepted & wire::kNetMq, 0U);
  ASSERT_EQ(rig.net->queue_pairs(), 3);
  EXPECT_EQ(rig.device.queue_count(), 6U);
  for (uint16_t pair = 0; pair < 3; ++pair) {
    ASSERT_EQ(rig.send(rig.make_packet(54, 100, Memory::nocopy, static_cast<uint8_t>(pair)), pair),
              1U);
    for (uint16_t other = 0; other < 3; ++other) {
      EXPECT_EQ(rig.device.available(static_cast<uint16_t>(2 * other + 1)),
                other == pair ? 1U : 0U);
    }
    ASSERT_TRUE(rig.device.take_sent(static_cast<uint16_t>(2 * pair + 1)));
    rig.net->reclaim(pair);
    const auto frame = VirtioRig::pattern(100, static_cast<uint8_t>(pair));
    ASSERT_TRUE(rig.device.deliver(frame, {}, static_cast<uint16_t>(2 * pair)));
    const auto received = rig.receive(pair);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(received[0]->queue, pair);
    EXPECT_EQ(VirtioRig::bytes_of(*received[0]), frame);
  }
}

TEST(VirtioNetPairs, C061_more_pairs_than_the_device_has_are_refused) {
  for (const bool has_mq : {false, true}) {
    VirtioRig rig;
    rig.options.net.queue_pairs = 3;
    if (has_mq) rig.device.offer |= wire::kNetMq;
    rig.device.config.queue_pairs_max = 2;
    const auto opened = rig.try_open();
    ASSERT_FALSE(opened);
    EXPECT_FALSE(opened.error().hint.empty());
  }
}

TEST(VirtioNetPairs, one_pair_asks_for_no_more) {
  VirtioRig rig;
  rig.device.offer |= wire::kNetMq;
  rig.device.config.queue_pairs_max = 4;
  rig.open();
  EXPECT_EQ(rig.device.accepted & wire::kNetMq, 0U);
}

TEST(VirtioNetPairs, a_breach_of_one_brings_all_home) {
  set_log_level(LogLevel::quiet);
  VirtioRig rig;
  rig.options.net.queue_pairs = 2;
  rig.device.offer |= wire::kNetMq;
  rig.device.config.queue_pairs_max = 2;
  rig.open();
  for (const uint16_t pair : {uint16_t{0}, uint16_t{1}}) {
    ASSERT_EQ(rig.send(rig.make_packet(54, 1000), pair), 1U);
  }
  rig.device.write_used_index(2, 1000);
  EXPECT_TRUE(rig.receive(1).empty());
  EXPECT_TRUE(rig.net->is_broken());
  EXPECT_EQ(rig.packets->in_use(), 1U) << "the other pair's thread brings its own home";
  rig.net->reclaim(0);
  EXPECT_EQ(rig.packets->in_use(), 0U);
  EXPECT_EQ(rig.device.stops, 1U);
  set_log_level(LogLevel::warning);
}

}  // namespace
}  // namespace nobounce::test
