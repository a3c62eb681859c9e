// Our stack against the Linux kernel's, over a TAP.
#include <fmt/format.h>

#include "kernel_fixture.hpp"
#include "wire/vring.hpp"

namespace nobounce::test {
namespace {

constexpr size_t kBytes = 8 << 20;

class Modes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Kernel, Modes, testing::Values(Mode::nocopy, Mode::bounce),
                         [](const auto& mode) {
                           return mode.param == Mode::nocopy ? "nocopy" : "bounce";
                         });

TEST_P(Modes, streams_both_ways_in_both_roles) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host, {.mode = GetParam()});
    exchange_both_roles(fixture, 4 * kBytes);
    EXPECT_GT(fixture.device_count("tap.tx.super_frames"), 0u);  // offloads pass through
    EXPECT_GT(fixture.device_count("tap.rx.super_frames"), 0u);
  });
}

TEST_P(Modes, streams_over_a_bad_wire) {
  in_namespace([](Host& host) {
    KernelFixture fixture(
        host,
        {.mode = GetParam(),
         .impair = ImpairOptions{
             .loss = 0.01, .reorder = 0.02, .duplicate = 0.01, .corrupt = 0.001, .seed = 42}});
    exchange_both_roles(fixture, kBytes / 4);
    EXPECT_GT(fixture.device_count("impair.rx.lost"), 0u);
    EXPECT_GT(fixture.device_count("impair.tx.lost"), 0u);
  });
}

// ---- options, sizes, offloads -------------------------------------------------------------------

TEST(KernelOptionsTest, T3_T49_T50_every_combination_of_tcp_options) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    for (unsigned bits = 0; bits < 8; ++bits) {
      SCOPED_TRACE(bits);
      Host::set_sysctl("ipv4/tcp_sack", (bits & 1) != 0 ? "1" : "0");
      Host::set_sysctl("ipv4/tcp_timestamps", (bits & 2) != 0 ? "1" : "0");
      Host::set_sysctl("ipv4/tcp_window_scaling", (bits & 4) != 0 ? "1" : "0");
      exchange_both_roles(fixture, kBytes / 8);
    }
  });
}

TEST(KernelOptionsTest, C047_every_mtu) {
  for (const auto mtu :
       std::initializer_list<uint16_t>{576, 577, 1280, 1428, 1450, 1500, 4096, 9000, 65520}) {
    SCOPED_TRACE(mtu);
    in_namespace([mtu](Host& host) {
      KernelFixture fixture(host, {.mtu = mtu});
      EXPECT_EQ(fixture.stack->mtu(), mtu);
      EXPECT_EQ(host.mtu(kTapName), mtu);
      exchange_both_roles(fixture, kBytes / 8);
    });
    if (IsSkipped()) return;
  }
}

TEST(KernelOptionsTest, C021_TM29_offloads_on_and_off) {
  const uint64_t tso = wire::kNetHostTso4 | wire::kNetHostTso6;
  const uint64_t guest_tso = wire::kNetGuestTso4 | wire::kNetGuestTso6;
  const uint64_t csum = wire::kNetCsum | tso;
  const uint64_t guest_csum = wire::kNetGuestCsum | guest_tso;
  for (const uint64_t without :
       {tso, guest_tso, tso | guest_tso, csum, guest_csum, csum | guest_csum, wire::kNetMrgRxbuf,
        wire::kNetMrgRxbuf | guest_tso, wire::kRingEventIdx}) {
    SCOPED_TRACE(fmt::format("{:#x}", without));
    in_namespace([without](Host& host) {
      KernelFixture fixture(host, {.feature_mask = ~without});
      exchange_both_roles(fixture, kBytes / 8);
    });
    if (IsSkipped()) return;
  }
}

// ---- ends of connections ------------------------------------------------------------------------

// C001: read to the end, then answer.
TEST(KernelEndsTest, C001_half_close_in_both_directions) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    const UniqueFd listener = kernel_listen(7001);
    for (int round = 0; round < 20; ++round) {
      TcpSocket ours = fixture.connect(7001);
      const UniqueFd theirs = kernel_accept(listener);
      const size_t bytes = round * 50'001;
      std::jthread kernel([&] {
        EXPECT_EQ(kernel_receive(theirs, 1), bytes);
        kernel_send(theirs, 2, bytes + 1);
        ::shutdown(theirs.get(), SHUT_WR);
      });
      guest_send(ours, 1, bytes);
      EXPECT_TRUE(ours.shutdown(Shutdown::send));
      EXPECT_EQ(guest_receive(ours, 2), bytes + 1);
    }
    auto ours_listening = fixture.stack->tcp_listen({kGuest, 7002});
    ASSERT_TRUE(ours_listening);
    for (int round = 0; round < 20; ++round) {
      const UniqueFd theirs = kernel_connect(7002);
      ASSERT_TRUE(theirs.is_open());
      auto ours = ours_listening->accept(10s);
      ASSERT_TRUE(ours);
      limit_waiting(*ours);
      const size_t bytes = round * 50'001;
      std::jthread kernel([&] {
        kernel_send(theirs, 1, bytes);
        ::shutdown(theirs.get(), SHUT_WR);
        EXPECT_EQ(kernel_receive(theirs, 2), bytes + 1);
      });
      EXPECT_EQ(guest_receive(*ours, 1), bytes);
      guest_send(*ours, 2, bytes + 1);
      EXPECT_TRUE(ours->shutdown(Shutdown::send));
    }
  });
}

TEST(KernelEndsTest, C015_resets_arrive_both_ways) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    const UniqueFd listener = kernel_listen(7001);
    {
      TcpSocket ours = fixture.connect(7001);
      UniqueFd theirs = kernel_accept(listener);
      const linger now{1, 0};
      ::setsockopt(theirs.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      theirs.reset();
      std::array<std::byte, 16> in;
      const auto got = ours.recv(in);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error(), std::errc::connection_reset);
    }
    TcpSocket ours = fixture.connect(7001);
    const UniqueFd theirs = kernel_accept(listener);
    ours.abort();
    char byte = 0;
    EXPECT_EQ(::recv(theirs.get(), &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
  });
}

TEST(KernelEndsTest, T14_refused_both_ways) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    const auto refused = fixture.stack->tcp_connect({kKernel, 7999}, 5s);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), std::errc::connection_refused);
    EXPECT_FALSE(kernel_connect(7999).is_open());
    EXPECT_EQ(errno, ECONNREFUSED);
  });
}

TEST(KernelEndsTest, T56_both_close_at_once) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    const UniqueFd listener = kernel_listen(7001);
    for (int round = 0; round < 100; ++round) {
      TcpSocket ours = fixture.connect(7001);
      const UniqueFd theirs = kernel_accept(listener);
      std::jthread kernel([&] {
        ::shutdown(theirs.get(), SHUT_WR);
        char byte = 0;
        EXPECT_EQ(::recv(theirs.get(), &byte, 1, 0), 0);
      });
      EXPECT_TRUE(ours.shutdown(Shutdown::send));
      std::array<std::byte, 16> in;
      const auto got = ours.recv(in);
      EXPECT_TRUE(got && *got == 0);
    }
  });
}

// The window goes to 0 and opens again, each end as the slow reader.
TEST(KernelEndsTest, T31_window_zero_and_open_again) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host, {.receive_buffer = 64 << 10});
    const UniqueFd listener = kernel_listen(7001);
    TcpSocket ours = fixture.connect(7001);
    const UniqueFd theirs = kernel_accept(listener);
    {
      std::jthread kernel([&] {
        kernel_send(theirs, 2, kBytes / 4);
        ::shutdown(theirs.get(), SHUT_WR);
      });
      std::this_thread::sleep_for(1500ms);  // the kernel probes
      EXPECT_EQ(guest_receive(ours, 2), kBytes / 4);
    }
    std::jthread sender([&] {
      guest_send(ours, 1, 4 * kBytes);
      EXPECT_TRUE(ours.shutdown(Shutdown::send));
    });
    std::this_thread::sleep_for(1500ms);  // we probe
    EXPECT_EQ(kernel_receive(theirs, 1), 4 * kBytes);
  });
}

// ---- many connections ---------------------------------------------------------------------------

TEST(KernelChurnTest, C013_C078_ten_thousand_short_connections) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    Host::set_sysctl("ipv4/ip_local_port_range", "1024 65535");
    constexpr int kConnections = 5000;  // each way
    {
      const UniqueFd listener = kernel_listen(7001);
      std::jthread kernel([&] {
        for (int i = 0; i < kConnections; ++i) {
          const UniqueFd theirs = kernel_accept(listener);
          char byte = 0;
          ASSERT_EQ(::recv(theirs.get(), &byte, 1, 0), 1) << i;
          ASSERT_EQ(::send(theirs.get(), &byte, 1, MSG_NOSIGNAL), 1) << i;
          ASSERT_EQ(::recv(theirs.get(), &byte, 1, 0), 0) << i;
        }
      });
      for (int i = 0; i < kConnections; ++i) {
        TcpSocket ours = fixture.connect(7001);
        ASSERT_TRUE(ours.is_open()) << i;
        std::array<std::byte, 1> byte{};
        ASSERT_TRUE(ours.send(byte)) << i;
        const auto got = ours.recv(byte);
        ASSERT_TRUE(got && *got == 1) << i;
      }
    }
    auto listener = fixture.stack->tcp_listen({kGuest, 7002});
    ASSERT_TRUE(listener);
    std::jthread kernel([&] {
      for (int i = 0; i < kConnections; ++i) {
        const UniqueFd theirs = kernel_connect(7002);
        ASSERT_TRUE(theirs.is_open()) << i << ' ' << std::strerror(errno);
        char byte = 0;
        ASSERT_EQ(::send(theirs.get(), &byte, 1, MSG_NOSIGNAL), 1) << i;
        ASSERT_EQ(::recv(theirs.get(), &byte, 1, 0), 1) << i;
      }
    });
    for (int i = 0; i < kConnections; ++i) {
      auto ours = listener->accept(10s);
      ASSERT_TRUE(ours) << i;
      limit_waiting(*ours);
      std::array<std::byte, 1> byte{};
      const auto got = ours->recv(byte);
      ASSERT_TRUE(got && *got == 1) << i;
      ASSERT_TRUE(ours->send(byte)) << i;
      const auto end = ours->recv(byte);
      ASSERT_TRUE(end && *end == 0) << i;
    }
  });
}

TEST(KernelChurnTest, T15_a_full_backlog_is_waited_out) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    auto listener = fixture.stack->tcp_listen({kGuest, 7002}, 4);
    ASSERT_TRUE(listener);
    std::vector<std::jthread> clients;
    std::atomic<int> served{0};
    for (int i = 0; i < 16; ++i) {
      clients.emplace_back([&] {
        const UniqueFd theirs = kernel_connect(7002);
        char byte = 7;
        if (theirs.is_open() && ::send(theirs.get(), &byte, 1, MSG_NOSIGNAL) == 1 &&
            ::recv(theirs.get(), &byte, 1, 0) == 1) {
          ++served;
        }
      });
    }
    for (int i = 0; i < 16; ++i) {
      auto ours = listener->accept(20s);
      ASSERT_TRUE(ours) << i;
      limit_waiting(*ours);
      std::array<std::byte, 1> byte{};
      const auto got = ours->recv(byte);
      ASSERT_TRUE(got && *got == 1) << i;
      ASSERT_TRUE(ours->send(byte));
    }
    clients.clear();
    EXPECT_EQ(served, 16);
  });
}

// ---- below TCP ----------------------------------------------------------------------------------

TEST(KernelPacketsTest, N4_ping_of_every_size_up_to_the_mtu) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    uint16_t sequence = 0;
    for (size_t size = 0; size <= 1472; size += size < 64 ? 1 : 61) {
      EXPECT_TRUE(fixture.stack->ping(kKernel, ++sequence, size, 5s)) << size;
    }
    EXPECT_TRUE(fixture.stack->ping(kKernel, ++sequence, 1472, 5s));
  });
}

TEST(KernelPacketsTest, C045_the_first_packet_to_an_unknown_neighbour_arrives) {
  in_namespace([](Host& host) {
    KernelFixture fixture(host);
    const UniqueFd theirs = Host::bound(SOCK_DGRAM, 7003);
    limit_waiting(theirs);
    auto ours = fixture.stack->udp_bind({kGuest, 7004});
    ASSERT_TRUE(ours);
    ours->set_receive_timeout(5s);
    for (int i = 0; i < 200; ++i) {
      host.forget_neighbour(kTapName);  // ARP churn
      Host::send_to(theirs, 7004, &i, sizeof i);
      int value = 0;
      const auto got = ours->recv_from(std::as_writable_bytes(std::span(&value, 1)));
      ASSERT_TRUE(got) << i;
      EXPECT_EQ(value, i);
      ASSERT_TRUE(ours->send_to(std::as_bytes(std::span(&value, 1)), got->from));
      ASSERT_EQ(::recv(theirs.get(), &value, sizeof value, 0), ssize_t{sizeof value}) << i;
    }
  });
}

}  // namespace
}  // namespace nobounce::test
