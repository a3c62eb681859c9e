// The main job at a smaller size: a stream out and back through the far end, every byte checked; and
// what happens when either process dies in the middle.
#include "backend_process.hpp"

namespace nobounce::test {
namespace {

struct TransferTest : SystemTest, testing::WithParamInterface<Mode> {};

TEST_P(TransferTest, out_and_back_unchanged) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, kEcho);
  constexpr size_t kBytes = 8 << 20;
  std::thread sender([&socket] {
    std::vector<std::byte> chunk(100'003);
    for (size_t sent = 0; sent < kBytes;) {
      const size_t part = std::min(chunk.size(), kBytes - sent);
      fill_letters(MutableBytes(chunk).first(part), 5, sent);
      ASSERT_EQ(socket.send(Bytes(chunk).first(part)), part);
      sent += part;
    }
    EXPECT_TRUE(socket.shutdown(Shutdown::send).has_value());
  });
  std::vector<std::byte> buffer(77'777);
  size_t received = 0;
  for (;;) {
    const auto taken = socket.recv(buffer);
    EXPECT_TRUE(taken.has_value());
    if (!taken || *taken == 0) break;
    size_t wrong = 0;
    for (size_t i = 0; i < *taken; ++i) wrong += buffer[i] != letter(5, received + i) ? 1 : 0;
    EXPECT_EQ(wrong, 0u) << "after " << received;
    received += *taken;
  }
  EXPECT_EQ(received, kBytes);
  sender.join();
}

// A thousand connections, each used and closed: at the end the pools are as full as at the start.
TEST_P(TransferTest, a_thousand_connections_leave_nothing) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  StackCore& core = StackSetUp::core(*stack);
  {
    TcpSocket warm = connect(*stack, kEcho);
  }
  std::byte byte{'x'};
  for (int i = 0; i < 1000; ++i) {
    TcpSocket socket = connect(*stack, kEcho);
    ASSERT_TRUE(socket.is_open()) << i;
    ASSERT_EQ(socket.send({&byte, 1}), 1u);
    ASSERT_EQ(socket.recv({&byte, 1}), 1u);
    i % 3 == 0 ? socket.abort() : socket.close();
  }
  // Blocks that sockets send from are lent only while a socket lives.
  for (int i = 0; i < 500 && core.swiotlb->slots_lent(BlockUse::transmit) > 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(core.swiotlb->slots_lent(BlockUse::transmit), 0u);
  stack.reset();  // the destructors assert that every page, packet and connection came home
}

INSTANTIATE_TEST_SUITE_P(Modes, TransferTest, testing::Values(Mode::nocopy, Mode::bounce),
                         mode_name);

TEST_P(TransferTest, backend_killed_in_mid_stream) {  // C136, TM-33
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  TcpSocket out = connect(*stack, kDiscard);
  TcpSocket in = connect(*stack, kSource);
  std::thread sender([&out] {
    std::vector<std::byte> chunk(1 << 20);
    for (;;) {
      const auto taken = out.send(chunk);
      if (!taken) {
        EXPECT_EQ(taken.error(), std::errc::network_down);
        break;
      }
    }
  });
  std::thread receiver([&in] {
    std::vector<std::byte> buffer(1 << 20);
    for (;;) {
      const auto taken = in.recv(buffer);
      if (!taken) {
        EXPECT_EQ(taken.error(), std::errc::network_down);
        break;
      }
      ASSERT_GT(*taken, 0u);
    }
  });
  std::this_thread::sleep_for(200ms);
  const auto start = std::chrono::steady_clock::now();
  backend->kill(SIGKILL);
  sender.join();
  receiver.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  ASSERT_TRUE(stack->failure().has_value());
  EXPECT_FALSE(stack->failure()->empty());
}

using LifeTest = SystemTest;

TEST_F(LifeTest, guest_killed_in_mid_stream_and_the_next_is_served) {
  for (int round = 0; round < 5; ++round) {
    {
      Child guest({kProgram, "perf", "--net", "vhost-user:" + socket_path, "--ip", "10.77.0.2/24",
                   "--client", "10.77.0.1", "--time", "30",
                   round % 2 == 0 ? "--reverse" : "--echo"});
      std::this_thread::sleep_for(300ms + round * 77ms);
      EXPECT_TRUE(guest.is_running());
      guest.kill(SIGKILL);
    }
    ASSERT_TRUE(backend->is_running());
    auto stack = open(Mode::nocopy);
    ASSERT_NE(stack, nullptr) << "round " << round;
    EXPECT_TRUE(stack->ping(kPeer, 1, 56, 5s).has_value());
  }
}

}  // namespace
}  // namespace nobounce::test
