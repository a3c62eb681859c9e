// Our driver and our back-end, over a real socket: every frame goes out and comes back.
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <thread>

#include "backend/backend.hpp"
#include "backend/guest_port.hpp"
#include "backend/service.hpp"
#include "base/log.hpp"
#include "support/virtio_rig.hpp"
#include "support/wire_link.hpp"
#include "virtio/vhost_user/front_end.hpp"

namespace nobounce::test {
namespace {

using virtio::vhost_user::Role;

// Sends every frame back as it came.
class Mirror final : public backend::PortService {
 public:
  explicit Mirror(const backend::ServicePlace& place) : end_(clock_) {
    auto port = backend::GuestPort::open(place.session, end_.context, place.counters,
                                         {.mac = {{2, 0, 0, 0, 0, 1}}, .wake_fds = place.wake_fds});
    EXPECT_TRUE(port);
    port_ = std::move(*port);
  }
  size_t round() noexcept override {
    end_.context.now_ns = clock_.now_ns();
    (void)port_->receive(0, burst_);
    return burst_.empty() ? 0 : port_->transmit(0, burst_);
  }
  void sleep(uint64_t limit_ns) noexcept override {
    if (burst_.empty() && port_->arm(0)) {
      pollfd entry{port_->wait_handle(0).fd, POLLIN, 0};
      ::poll(&entry, 1, static_cast<int>(limit_ns / kNsPerMs));
      port_->acknowledge(0);
    }
    port_->disarm(0);
  }
  [[nodiscard]] bool is_down() const noexcept override { return port_->is_broken(); }

 private:
  MonotonicClock clock_;
  StackEnd end_;
  std::unique_ptr<backend::GuestPort> port_;
  PacketBurst burst_;
};

class EndToEnd : public testing::Test {
 protected:
  EndToEnd() {
    set_log_level(LogLevel::quiet);
    char folder[] = "/tmp/nobounce-end-to-end-XXXXXX";
    folder_ = ::mkdtemp(folder);
    options_.sockets = {folder_ + "/vhost.sock"};
  }
  ~EndToEnd() override {
    stop();
    set_log_level(LogLevel::warning);
    std::filesystem::remove_all(folder_);
  }
  void start() {
    auto opened = backend::Backend::open(options_, backend::one_guest([](const backend::ServicePlace& place) {
      return Result<std::unique_ptr<backend::PortService>>(std::make_unique<Mirror>(place));
    }));
    ASSERT_TRUE(opened) << opened.error().to_string();
    backend_ = std::move(*opened);
    thread_ = std::jthread([this](std::stop_token token) { (void)backend_->run(token); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
    backend_.reset();
  }
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

  std::string folder_;
  backend::BackendOptions options_;
  std::unique_ptr<backend::Backend> backend_;
  std::jthread thread_;
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
