// ReconnectingDevice and Reconnector on the fake device, with the test's clock: what is lost, what is kept,
// who is refused. Each test ends with all pools full (VirtioRig).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "base/log.hpp"
#include "support/virtio_rig.hpp"
#include "virtio/reconnecting_device.hpp"

namespace nobounce::test {
namespace {

using Memory = VirtioRig::Memory;
using virtio::ReconnectingDevice;
using virtio::Reconnector;
using virtio::ReconnectPace;

class Reconnect : public testing::Test {
 protected:
  Reconnect() {
    set_log_level(LogLevel::quiet);
    rig.device.config.mtu = 1500;
    rig.device.config.mac = MacAddress{{2, 1, 2, 3, 4, 5}};
  }
  ~Reconnect() override {
    held.clear();
    device.reset();
    rig.close();
    set_log_level(LogLevel::warning);
  }

  Result<std::unique_ptr<virtio::VirtioNet>> open_net(const virtio::VirtioNetOptions& options) {
    if (!is_present) return fail(std::errc::connection_refused, "connect", "nobody is there");
    ShardContext* const contexts[] = {rig.context.get()};
    return virtio::VirtioNet::open(rig.device.transport(), *rig.region, *rig.dma, contexts, options,
                                   &memory);
  }
  void open() {
    auto first = open_net(rig.options.net);
    ASSERT_TRUE(first) << first.error().to_string();
    again = rig.options.net;
    again.in_use = (*first)->in_use();
    again.name = (*first)->name();
    auto reconnector = Reconnector::create([this](int) { return open_net(again); }, again.name,
                                           rig.clock, rig.counters, Reconnector::Drive::caller);
    ASSERT_TRUE(reconnector);
    auto made = ReconnectingDevice::create(std::move(*first), std::move(*reconnector), rig.clock,
                                           rig.counters);
    ASSERT_TRUE(made);
    device = std::move(*made);
  }
  // Until receive() has looked at the transport.
  void lose() {
    is_present = false;
    rig.device.gone = "the back-end has closed the connection";
    for (int i = 0; i < 100 && device->link_up(); ++i) receive();
    receive();
  }
  void come_back() {
    is_present = true;
    rig.device.gone = nullptr;
  }
  void advance(uint64_t ns) {
    rig.clock.advance(ns);
    rig.context->now_ns = rig.clock.now_ns();
  }
  // Rounds of 10 ms for that long.
  void run_for(uint64_t ns) {
    for (uint64_t done = 0; done < ns; done += 10 * kNsPerMs) {
      advance(10 * kNsPerMs);
      receive();
    }
  }
  void receive() {
    PacketBurst burst;
    (void)device->receive(0, burst);
    for (PacketPtr& packet : burst) held.push_back(std::move(packet));
  }
  size_t send(PacketPtr packet) {
    PacketBurst burst;
    burst.push(std::move(packet));
    return device->transmit(0, burst);
  }
  [[nodiscard]] uint64_t count(const std::string& name) const { return rig.counters.value(name); }
  // A frame out and a frame in.
  void expect_works() {
    ASSERT_TRUE(device->link_up());
    ASSERT_EQ(send(rig.make_packet(54, 700)), 1U);
    const auto sent = rig.device.take_sent();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->bytes, VirtioRig::pattern(754, 0));
    device->reclaim(0);
    const auto frame = VirtioRig::pattern(900, 7);
    ASSERT_TRUE(rig.device.deliver(frame));
    const size_t before = held.size();
    receive();
    ASSERT_EQ(held.size(), before + 1);
    EXPECT_EQ(VirtioRig::bytes_of(*held.back()), frame);
  }

  VirtioRig rig;
  virtio::RingMemory memory;
  virtio::VirtioNetOptions again;
  bool is_present = true;
  std::vector<PacketPtr> held;  // with sockets
  std::unique_ptr<ReconnectingDevice> device;
};

TEST_F(Reconnect, TM33_what_was_in_the_rings_comes_home_once) {
  open();
  expect_works();
  held.clear();
  for (const Memory kind : {Memory::nocopy, Memory::private_pages, Memory::nocopy}) {
    ASSERT_EQ(send(rig.make_packet(54, 1300, kind)), 1U);
  }
  EXPECT_EQ(rig.packets->in_use(), 3U);
  lose();
  EXPECT_EQ(rig.packets->in_use(), 0U);
  EXPECT_EQ(rig.pool->slots_used(), 0U);
  EXPECT_EQ(rig.pool->slots_lent(BlockUse::receive), 0U);
  EXPECT_EQ(rig.pool->slots_lent(BlockUse::transmit), 0U);
  EXPECT_EQ(rig.device.stops, 1U);
  EXPECT_FALSE(device->link_up());
  EXPECT_FALSE(device->is_broken());
  EXPECT_EQ(count("reconnect.waiting"), 1U);
  come_back();
  run_for(kNsPerSecond);
  expect_works();
  EXPECT_EQ(count("reconnect.count"), 1U);
  EXPECT_EQ(count("reconnect.waiting"), 0U);
}

TEST_F(Reconnect, frames_for_a_link_that_is_down_are_dropped_and_counted) {
  open();
  lose();
  EXPECT_GT(device->transmit_room(0), 0U);
  PacketBurst burst;
  for (int i = 0; i < 5; ++i) burst.push(rig.make_packet(54, 100));
  EXPECT_EQ(device->transmit(0, burst), 5U);
  EXPECT_TRUE(burst.empty());
  EXPECT_EQ(rig.packets->in_use(), 0U);
  EXPECT_EQ(count("reconnect.tx_dropped"), 5U);
  EXPECT_TRUE(device->arm(0)) << "nothing keeps the thread awake while it waits (C136)";
  device->disarm(0);
  device->reclaim(0);
}

TEST_F(Reconnect, the_link_is_seen_down_between_two_devices) {
  open();
  rig.device.gone = "the back-end has closed the connection";
  while (device->link_up()) receive();
  come_back();  // back before anybody has looked
  receive();
  EXPECT_FALSE(device->link_up());
  receive();
  EXPECT_TRUE(device->link_up());
}

TEST_F(Reconnect, C136_a_device_that_is_lost_in_arm_is_looked_at_before_sleep) {
  open();
  receive();
  rig.device.gone = "the back-end has closed the connection";
  EXPECT_FALSE(device->arm(0));
  EXPECT_FALSE(device->arm(0)) << "until receive() has taken note";
  EXPECT_FALSE(device->is_broken());
  receive();
  EXPECT_TRUE(device->arm(0));
}

TEST_F(Reconnect, TM34_new_rings_over_old_memory_whatever_stands_in_it) {
  open();
  expect_works();
  held.clear();
  const auto before = rig.device.queue(0).layout;
  const auto before_out = rig.device.queue(1).layout;
  lose();
  for (const auto& layout : {before, before_out}) {
    for (const SharedBytes& part : {layout.descriptors, layout.driver_area, layout.device_area}) {
      const std::vector<std::byte> dirt(part.size(), std::byte{0xa5});
      part.copy_in(0, dirt);
    }
  }
  come_back();
  run_for(kNsPerSecond);
  EXPECT_EQ(rig.device.queue(0).layout.descriptors.address(), before.descriptors.address());
  EXPECT_EQ(rig.device.queue(1).layout.device_area.address(), before_out.device_area.address());
  EXPECT_EQ(before_out.device_area.load_le<uint16_t>(wire::kUsedIndex), 0U);
  expect_works();
  EXPECT_FALSE(device->is_broken());
}

// The old back-end still maps the region: what it writes while nobody uses the rings says nothing.
TEST_F(Reconnect, TM6_an_old_used_index_is_never_believed) {
  open();
  ASSERT_EQ(send(rig.make_packet(54, 100)), 1U);
  rig.device.write_used_index(1, 1);  // "sent", told after the end
  lose();
  rig.device.write_used_index(0, 30);
  come_back();
  run_for(kNsPerSecond);
  expect_works();
}

TEST_F(Reconnect, pages_of_before_go_home_when_their_reader_lets_go) {
  open();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(2000, 3)));
    receive();
  }
  ASSERT_EQ(held.size(), 10U);
  lose();
  come_back();
  run_for(kNsPerSecond);
  expect_works();
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(VirtioRig::bytes_of(*held[i]), VirtioRig::pattern(2000, 3));
  }
}

TEST_F(Reconnect, C058_two_hundred_times_and_all_pools_are_full) {
  open();
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    expect_works();
    ASSERT_EQ(send(rig.make_packet(54, 1300, i % 2 == 0 ? Memory::nocopy : Memory::private_pages)),
              1U);
    if (held.size() > 20) held.clear();
    lose();
    run_for((i % 7) * 100 * kNsPerMs);
    come_back();
    run_for(kNsPerSecond + 20 * kNsPerMs);
    ASSERT_TRUE(device->link_up());
  }
  EXPECT_EQ(count("reconnect.count"), 200U);
}

// ---- who comes back -----------------------------------------------------------------------------

TEST_F(Reconnect, TM28_fewer_features_are_refused_before_memory_is_shared) {
  for (const uint64_t bit : {wire::kNetCsum, wire::kNetHostTso4, wire::kNetMrgRxbuf,
                             wire::kNetGuestCsum, wire::kRingEventIdx, wire::kVersion1}) {
    SCOPED_TRACE(bit);
    rig.device.offer = FakeDevice::kHonestOffer;
    come_back();
    open();
    lose();
    come_back();
    rig.device.offer &= ~bit;
    run_for(kNsPerSecond);
    EXPECT_TRUE(device->is_broken());
    EXPECT_FALSE(device->link_up());
    ASSERT_NE(device->broken_reason(), nullptr);
    EXPECT_NE(std::string(device->broken_reason()).find("poorer"), std::string::npos);
    EXPECT_FALSE(rig.device.started);
    EXPECT_EQ(count("reconnect.waiting"), 0U);
    EXPECT_EQ(send(rig.make_packet(54, 10)), 0U);
    const uint64_t attempts = count("reconnect.attempts");
    rig.device.offer = FakeDevice::kHonestOffer;
    run_for(10 * kNsPerSecond);
    EXPECT_TRUE(device->is_broken()) << "latched";
    EXPECT_EQ(count("reconnect.attempts"), attempts);
    device.reset();
  }
}

TEST_F(Reconnect, TM28_a_smaller_mtu_is_refused_and_a_larger_one_not_used) {
  open();
  lose();
  come_back();
  rig.device.config.mtu = 9000;
  run_for(kNsPerSecond);
  expect_works();
  EXPECT_EQ(device->mtu(), 1500);
  lose();
  come_back();
  rig.device.config.mtu = 1499;
  run_for(2 * kNsPerSecond);
  EXPECT_TRUE(device->is_broken());
  EXPECT_NE(std::string(device->broken_reason()).find("1499"), std::string::npos);
}

TEST_F(Reconnect, TM31_mac_and_features_stay_what_they_were) {
  rig.device.offer &= ~wire::kNetHostTso6;
  open();
  const uint64_t accepted = rig.device.accepted;
  const MacAddress mac = device->mac();
  lose();
  come_back();
  rig.device.offer = FakeDevice::kHonestOffer & ~wire::kNetStatus;
  rig.device.config.mac = MacAddress{{2, 9, 9, 9, 9, 9}};
  run_for(kNsPerSecond);
  expect_works();
  EXPECT_EQ(device->mac(), mac);
  EXPECT_EQ(rig.device.accepted | wire::kNetStatus, accepted);
  EXPECT_FALSE(device->features().tso6);
}

TEST_F(Reconnect, TM33_a_handshake_that_fails_at_any_step_is_tried_again) {
  open();
  for (const char* step :
       {"read_features", "accept_features", "read_config", "share", "set_up_queue", "start"}) {
    SCOPED_TRACE(step);
    lose();
    come_back();
    rig.device.refuse = step;
    run_for(3 * kNsPerSecond);
    EXPECT_FALSE(device->link_up());
    EXPECT_FALSE(device->is_broken());
    EXPECT_EQ(rig.packets->in_use(), held.size());
    rig.device.refuse.clear();
    run_for(kNsPerSecond + 20 * kNsPerMs);
    expect_works();
    held.clear();
  }
}

TEST_F(Reconnect, TM7_a_breach_of_the_rings_is_not_waited_for) {
  open();
  rig.device.write_used_index(0, 1000);
  receive();
  EXPECT_TRUE(device->is_broken());
  EXPECT_STREQ(device->broken_reason(), virtio::describe(virtio::Breach::used_index));
  rig.device.gone = "the back-end has closed the connection";
  run_for(5 * kNsPerSecond);
  EXPECT_TRUE(device->is_broken());
  EXPECT_EQ(count("reconnect.attempts"), 0U);
}

TEST_F(Reconnect, TM84_a_breach_of_the_control_protocol_is_not_waited_for) {
  open();
  rig.device.gone = "the back-end sent a message that nobody asked for";
  rig.device.gone_by_breach = true;
  run_for(5 * kNsPerSecond);
  EXPECT_TRUE(device->is_broken());
  EXPECT_STREQ(device->broken_reason(), rig.device.gone);
  EXPECT_EQ(count("reconnect.attempts"), 0U);
  EXPECT_EQ(count(std::string(device->name()) + ".broken.control_protocol"), 1U);
}

// ---- when ---------------------------------------------------------------------------------------

TEST_F(Reconnect, C113_ten_minutes_of_nobody_and_back_within_a_second) {
  open();
  lose();
  run_for(600 * kNsPerSecond);
  EXPECT_GE(count("reconnect.attempts"), 590U);
  EXPECT_LE(count("reconnect.attempts"), 610U);
  come_back();
  run_for(kNsPerSecond + 20 * kNsPerMs);
  expect_works();
}

TEST_F(Reconnect, a_short_outage_is_noticed_soon) {
  open();
  advance(5 * kNsPerSecond);
  lose();
  run_for(100 * kNsPerMs);
  come_back();
  run_for(100 * kNsPerMs);
  EXPECT_TRUE(device->link_up());
}

TEST_F(Reconnect, a_device_that_comes_and_goes_does_not_make_us_spin) {
  open();
  for (int i = 0; i < 1000; ++i) {  // ten seconds
    lose();
    come_back();
    run_for(10 * kNsPerMs);
  }
  EXPECT_LE(count("reconnect.attempts"), 20U);
  EXPECT_GE(count("reconnect.count"), 8U);
}

TEST(ReconnectPaceTest, doubles_to_a_second_and_forgets_when_it_held) {
  ReconnectPace pace;
  uint64_t now = 5 * kNsPerSecond;
  EXPECT_LE(pace.next_ns(), now);
  for (const uint64_t ms : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    pace.attempted(now);
    EXPECT_EQ(pace.next_ns(), now + ms * kNsPerMs);
    now = pace.next_ns();
  }
  pace.lost(now + 10, kNsPerSecond - 1);
  EXPECT_GT(pace.next_ns(), now - 1);
  pace.attempted(now);
  EXPECT_EQ(pace.next_ns(), now + kNsPerSecond);
  pace.lost(now + 10, kNsPerSecond);
  EXPECT_EQ(pace.next_ns(), now + 10);
  pace.attempted(now);
  EXPECT_EQ(pace.next_ns(), now + 20 * kNsPerMs);
}

// ---- the helper thread --------------------------------------------------------------------------

TEST_F(Reconnect, the_helper_opens_and_says_so) {
  MonotonicClock clock;
  int tries = 0;
  auto reconnector = Reconnector::create(
      [&](int) -> Result<std::unique_ptr<virtio::VirtioNet>> {
        if (++tries < 3) return fail(std::errc::connection_refused, "connect", "nobody is there");
        return open_net(rig.options.net);
      },
      "virtio-test", clock, rig.counters);
  ASSERT_TRUE(reconnector);
  pollfd news{.fd = (*reconnector)->news_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&news, 1, 0), 0);
  EXPECT_EQ((*reconnector)->take(), nullptr);
  (*reconnector)->request(0);
  ASSERT_EQ(::poll(&news, 1, 10'000), 1);
  (*reconnector)->acknowledge();
  EXPECT_EQ(::poll(&news, 1, 0), 0);
  EXPECT_NE((*reconnector)->take(), nullptr);
  EXPECT_EQ((*reconnector)->take(), nullptr);
  EXPECT_EQ(tries, 3);
}

TEST_F(Reconnect, the_helper_ends_in_the_middle_of_an_attempt) {
  MonotonicClock clock;
  UniqueFd inside(::eventfd(0, EFD_CLOEXEC));
  auto reconnector = Reconnector::create(
      [&](int cancel_fd) -> Result<std::unique_ptr<virtio::VirtioNet>> {
        const uint64_t one = 1;
        (void)!::write(inside.get(), &one, sizeof one);
        pollfd cancel{.fd = cancel_fd, .events = POLLIN, .revents = 0};
        EXPECT_EQ(::poll(&cancel, 1, 10'000), 1);
        return fail(std::errc::timed_out, "connect", "cancelled");
      },
      "virtio-test", clock, rig.counters);
  ASSERT_TRUE(reconnector);
  (*reconnector)->request(0);
  pollfd ready{.fd = inside.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
  reconnector->reset();  // joins
}

TEST_F(Reconnect, what_was_made_and_not_taken_goes_home) {
  MonotonicClock clock;
  auto reconnector = Reconnector::create([&](int) { return open_net(rig.options.net); },
                                         "virtio-test", clock, rig.counters);
  ASSERT_TRUE(reconnector);
  (*reconnector)->request(0);
  pollfd news{.fd = (*reconnector)->news_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&news, 1, 10'000), 1);
  reconnector->reset();
}

}  // namespace
}  // namespace nobounce::test
