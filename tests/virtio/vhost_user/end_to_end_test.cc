// Our driver and our back-end, over a real socket: every frame goes out and comes back.
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <thread>

#include "support/backend_thread.hpp"
#include "support/virtio_rig.hpp"
#include "virtio/vhost_user/front_end.hpp"

namespace nobounce::test {
namespace {

using virtio::vhost_user::Role;

class EndToEnd : public BackendThread {
 protected:
  void open(VirtioRig& rig, Role role = Role::client) {
    auto transport = virtio::vhost_user::connect({.path = options_.sockets[0], .role = role});
    ASSERT_TRUE(transport) << transport.error().to_string();
    rig.open(std::move(*transport));
  }
  // Sleeps as a shard does until a frame is there, at most five seconds.
  static std::vector<PacketPtr> wait(VirtioRig& rig) {
    const uint64_t end_ns = MonotonicClock().now_ns() + 5 * kNsPerSecond;
    while (MonotonicClock().now_ns() < end_ns && !rig.net->is_broken()) {
      auto received = rig.receive();
      rig.net->reclaim(0);
      if (!received.empty()) return received;
      if (!rig.net->arm(0)) continue;
      pollfd handle{.fd = rig.net->wait_handle(0).fd, .events = POLLIN, .revents = 0};
      ::poll(&handle, 1, 1000);
      rig.net->acknowledge(0);
    }
    return {};
  }
};

TEST_F(EndToEnd, frames_go_out_and_come_back) {
  for (const unsigned percent : {45U, 0U}) {
    start();
    RigOptions rig_options;
    rig_options.quotas = {.tx_percent = 45, .rx_percent = percent};
    VirtioRig rig(rig_options);
    open(rig);
    EXPECT_TRUE(rig.net->features().tso4);
    for (uint32_t i = 0; i < 300; ++i) {
      SCOPED_TRACE(i);
      const size_t payload = (i * 37) % 1400;
      const auto memory = i % 2 == 0 ? VirtioRig::Memory::nocopy : VirtioRig::Memory::private_pages;
      ASSERT_EQ(rig.send(rig.make_packet(54, payload, memory, static_cast<uint8_t>(i))), 1U);
      const auto received = wait(rig);
      ASSERT_EQ(received.size(), 1U);
      EXPECT_EQ(VirtioRig::bytes_of(*received[0]),
                VirtioRig::pattern(54 + payload, static_cast<uint8_t>(i)));
    }
    EXPECT_FALSE(rig.net->is_broken()) << rig.net->broken_reason();
    rig.close();
    stop();
  }
}

// Segments leave as one super-frame and come back as one, in merged buffers.
TEST_F(EndToEnd, super_frames_go_out_and_come_back) {
  start();
  VirtioRig rig;
  open(rig);
  for (uint8_t i = 0; i < 50; ++i) {
    const size_t payload = 1449 + i * 1200u;
    PacketPtr packet = rig.make_packet(54, payload, VirtioRig::Memory::nocopy, i);
    packet->checksum = Checksum::partial;
    packet->csum_start = 34;
    packet->csum_offset = 16;
    packet->gso = Gso::tcp4;
    packet->gso_size = 1448;
    ASSERT_EQ(rig.send(std::move(packet)), 1U);
    const auto received = wait(rig);
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(received[0]->gso, Gso::tcp4);
    EXPECT_EQ(received[0]->gso_size, 1448);
    EXPECT_EQ(received[0]->checksum, Checksum::partial);
    auto expected = VirtioRig::pattern(54 + payload, i);
    EXPECT_EQ(VirtioRig::bytes_of(*received[0]), expected);
  }
  EXPECT_FALSE(rig.net->is_broken());
}

TEST_F(EndToEnd, C119_the_front_end_as_server_and_the_back_end_as_client) {
  options_.role = backend::Role::client;
  start();
  VirtioRig rig;
  open(rig, Role::server);
  ASSERT_EQ(rig.send(rig.make_packet(54, 100)), 1U);
  EXPECT_EQ(wait(rig).size(), 1U);
}

TEST_F(EndToEnd, a_back_end_that_ends_in_mid_stream_is_noticed_within_a_second) {
  start();
  VirtioRig rig;
  open(rig);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(rig.send(rig.make_packet(54, 1000)), 1U);
    if (i < 10) {
      ASSERT_FALSE(wait(rig).empty());
    }
  }
  stop();
  const uint64_t start_ns = MonotonicClock().now_ns();
  while (!rig.net->is_broken()) {
    (void)wait(rig);
    ASSERT_LT(MonotonicClock().now_ns() - start_ns, kNsPerSecond);
  }
  EXPECT_NE(std::string(rig.net->broken_reason()).find("closed the connection"), std::string::npos);
  EXPECT_EQ(rig.packets->in_use(), 0U);
}

TEST_F(EndToEnd, one_after_another_on_the_same_back_end) {
  start();
  for (int i = 0; i < 10; ++i) {
    VirtioRig rig;
    open(rig);
    ASSERT_EQ(rig.send(rig.make_packet(54, 500)), 1U);
    EXPECT_EQ(wait(rig).size(), 1U);
  }
}

}  // namespace
}  // namespace nobounce::test
