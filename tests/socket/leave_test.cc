// The end of a stack: what sockets had sent when they were closed arrives, in bounded time.
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.hpp"
#include "socket/stack_pair.hpp"

namespace nobounce::test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMiB = 1 << 20;

uint64_t now_ns() { return MonotonicClock().now_ns(); }

// Everything up to the end of the stream, checked; the error that ended it, or nothing.
std::errc read_to_end(TcpSocket& socket, size_t& bytes) {
  std::vector<std::byte> buffer(64 << 10);
  socket.set_receive_timeout(20s);
  for (;;) {
    const auto got = socket.recv(buffer);
    if (!got) return got.error();
    if (*got == 0) return {};
    for (size_t i = 0; i < *got; ++i) EXPECT_EQ(buffer[i], pattern(7, bytes + i)) << bytes + i;
    bytes += *got;
  }
}

std::vector<std::byte> payload(size_t bytes) {
  std::vector<std::byte> data(bytes);
  fill_pattern(data, 7, 0);
  return data;
}

// Hands over more than the peer's window takes, and closes.
void send_and_close(TcpSocket& socket) {
  const std::vector<std::byte> data = payload(kMiB);
  ASSERT_EQ(socket.send(data), data.size());
  socket = {};
}

struct Case {
  const char* name;
  Drive drive;
  unsigned loss_per_mille;
};

class Leave : public testing::TestWithParam<Case> {};

TEST_P(Leave, T57_what_was_sent_before_close_arrives_with_its_end) {
  StackPair pair;
  StackOptions options;
  options.drive = GetParam().drive;
  options.private_bytes = 32 << 20;
  options.connections_max = 64;
  options.linger_ns = 30 * kNsPerSecond;  // a machine that is busy is no reason to fail
  pair.left.reset();
  pair.left = pair.open(options, 0);
  Connection c = connect(pair);
  pair.pipe.loss_per_mille = GetParam().loss_per_mille;
  size_t received = 0;
  std::errc end{};
  std::thread reader([&] { end = read_to_end(c.server, received); });
  send_and_close(c.client);
  pair.left.reset();
  reader.join();
  EXPECT_EQ(end, std::errc{});
  EXPECT_EQ(received, kMiB);
}

INSTANTIATE_TEST_SUITE_P(Drives, Leave,
                         testing::Values(Case{"io_thread", Drive::io_thread, 0},
                                         Case{"inline_drive", Drive::inline_drive, 0},
                                         Case{"lossy", Drive::io_thread, 50}),
                         [](const auto& test) { return test.param.name; });

TEST(LeaveBound, a_peer_that_never_reads_is_waited_for_no_longer_than_said) {
  StackOptions options;
  options.linger_ns = 200 * kNsPerMs;
  options.receive_buffer = 64 << 10;
  StackPair pair(options);
  Connection c = connect(pair);
  send_and_close(c.client);
  const uint64_t start_ns = now_ns();
  pair.left.reset();
  EXPECT_GE(now_ns() - start_ns, options.linger_ns);
  EXPECT_LT(now_ns() - start_ns, 5 * kNsPerSecond);
  // It is told that this was not all.
  size_t received = 0;
  EXPECT_EQ(read_to_end(c.server, received), std::errc::connection_reset);
  EXPECT_LT(received, kMiB);
}

TEST(LeaveBound, nothing_to_wait_for_takes_no_time) {
  StackOptions options;
  options.linger_ns = 3600 * kNsPerSecond;  // the test's time-out would tell
  StackPair pair(options);
  Connection open = connect(pair, 80);
  Connection closed = connect(pair, 81);
  ASSERT_EQ(closed.client.send(payload(10)), 10u);
  closed.client = {};
  pair.left.reset();
  size_t received = 0;
  EXPECT_EQ(read_to_end(closed.server, received), std::errc{});
  EXPECT_EQ(received, 10u);
  // A socket that was still open is reset: its peer does not wait for ever.
  received = 0;
  EXPECT_EQ(read_to_end(open.server, received), std::errc::connection_reset);
}

TEST(LeaveBound, C136_a_broken_device_ends_it_at_once) {
  StackOptions options;
  options.linger_ns = 3600 * kNsPerSecond;
  options.receive_buffer = 64 << 10;
  StackPair pair(options);
  Connection c = connect(pair);
  send_and_close(c.client);
  std::thread breaker([&] {
    std::this_thread::yield();
    pair.pipe.broken = true;
  });
  pair.left.reset();
  breaker.join();
}

// The stack goes while other threads still use theirs: nobody waits for them.
TEST(LeaveBound, sockets_in_use_do_not_hold_it_up) {
  StackOptions options;
  options.linger_ns = 3600 * kNsPerSecond;
  StackPair pair(options);
  Connection c = connect(pair);
  std::atomic<bool> begun{false};
  std::thread writer([&] {
    const std::vector<std::byte> data = payload(kMiB);
    while (c.client.send(data).has_value()) begun = true;
  });
  std::thread reader([&] {
    std::vector<std::byte> buffer(64 << 10);
    while (c.server.recv(buffer).value_or(0) > 0) {
    }
  });
  while (!begun) std::this_thread::yield();
  pair.left.reset();
  writer.join();
  reader.join();
}

// A connect with a time-out keeps it, also when this thread's sends wait for packets behind a peer
// that does not read.
TEST(Control, a_call_does_not_wait_behind_sends_that_cannot_go) {
  StackOptions options;
  options.receive_buffer = 4096;
  options.send_buffer = 1 << 30;
  options.linger_ns = 0;
  StackPair pair(options);
  Connection c = connect(pair);
  c.client.set_nonblocking(true);
  const std::byte byte{};
  const auto full = [&] { return pair.left->counter("shard.0.limit.submission_ring_full") > 0; };
  for (int i = 0; i < 1'000'000 && !full(); ++i) (void)c.client.send({&byte, 1});
  ASSERT_TRUE(full()) << "the sends were all taken: nothing is shown";
  auto other = pair.left->udp_bind();
  EXPECT_TRUE(other.has_value());
  EXPECT_TRUE(c.client.set_nodelay(true).has_value());
  pair.right.reset();
  const uint64_t start_ns = now_ns();
  EXPECT_FALSE(pair.left->tcp_connect(right_endpoint(4242), 100ms).has_value());
  EXPECT_LT(now_ns() - start_ns, 5 * kNsPerSecond);
}

}  // namespace
}  // namespace nobounce::test
