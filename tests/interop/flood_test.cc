// A flood from the kernel: what it leaves behind, and where what is lost is counted.
#include "base/clock.hpp"
#include "kernel_fixture.hpp"

namespace nobounce::test {
namespace {

// 60 s in the long tier.
std::chrono::seconds flood_time() {
  return std::getenv("NOBOUNCE_TEST_LONG") != nullptr ? 60s : 2s;
}

// Datagrams as fast as the kernel makes them; how many it took.
uint64_t flood(uint16_t port, std::chrono::seconds time) {
  const UniqueFd from = Host::bound(SOCK_DGRAM, 0);
  const sockaddr_in to = Host::inet(Host::kPeer, port);
  const std::array<char, 1000> payload{};
  uint64_t sent = 0;
  for (const auto end = std::chrono::steady_clock::now() + time;
       std::chrono::steady_clock::now() < end;) {
    for (int i = 0; i < 64; ++i) {
      sent += ::sendto(from.get(), payload.data(), payload.size(), 0,
                       reinterpret_cast<const sockaddr*>(&to), sizeof to) > 0;
    }
  }
  return sent;
}

TEST(KernelFloodTest, C024_a_ping_passes_right_after_and_every_loss_is_counted) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    host.set_queue_length(kTapName, 16);
    auto unread = fixture.stack->udp_bind({kGuest, 9000});
    ASSERT_TRUE(unread);
    ASSERT_TRUE(fixture.stack->ping(kKernel, 1, 56, 2s));
    const uint64_t dropped_before = Host::dropped(kTapName);

    const uint64_t sent = flood(9000, flood_time());
    const auto end = std::chrono::steady_clock::now() + 100ms;
    const uint64_t dropped = Host::dropped(kTapName) - dropped_before;
    // The kernel's answer to the first may still find its queue full.
    bool answered = false;
    for (uint16_t i = 2; !answered && std::chrono::steady_clock::now() < end; ++i) {
      answered = fixture.stack->ping(kKernel, i, 56, 25ms).has_value();
    }
    EXPECT_TRUE(answered);

    const auto received = [&] { return fixture.stack->counter("udp.received"); };
    for (int i = 0; i < 100 && dropped + received() < sent; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_GT(dropped, 0u);
    EXPECT_EQ(sent, dropped + received());
    uint64_t read = 0;
    unread->set_nonblocking(true);
    for (std::array<std::byte, 1000> buffer; unread->recv_from(buffer);) ++read;
    EXPECT_GT(read, 0u);
    EXPECT_EQ(received(), read + fixture.stack->counter("shard.0.limit.udp_queue_full"));
  });
}

// Nobody reads the TAP: its frames are the kernel's to drop, and not ours to look at.
TEST(KernelFloodTest, C067_costs_nothing_while_there_is_no_guest) {
  in_namespace([](Host& host) {
    char path[] = "/tmp/nobounce-test-XXXXXX";
    const std::string directory = ::mkdtemp(path);
    backend::BackendOptions device;
    device.sockets = {directory + "/vhost.sock"};
    device.net = std::string("tap:") + kTapName;
    auto opened = backend::open_backend(device);
    ASSERT_TRUE(opened) << opened.error().to_string();
    std::jthread thread([&](std::stop_token token) { EXPECT_TRUE((*opened)->run(token)); });
    host.set_addresses(kTapName, *MacAddress::parse("02:00:00:00:00:02"));
    host.bring_up(kTapName);
    clockid_t clock{};
    ASSERT_EQ(pthread_getcpuclockid(thread.native_handle(), &clock), 0);
    const auto used_ns = [&] {
      timespec time{};
      clock_gettime(clock, &time);
      return static_cast<uint64_t>(time.tv_sec) * kNsPerSecond +
             static_cast<uint64_t>(time.tv_nsec);
    };

    const uint64_t before_ns = used_ns();
    const auto time = flood_time();
    EXPECT_GT(flood(9000, time), 0u);
    const uint64_t flood_ns = static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
    EXPECT_LT(used_ns() - before_ns, flood_ns / 50);  // 2 %
    EXPECT_GT(Host::dropped(kTapName), 0u);
    thread.request_stop();
    thread.join();
    std::filesystem::remove_all(directory);
  });
}

}  // namespace
}  // namespace nobounce::test
