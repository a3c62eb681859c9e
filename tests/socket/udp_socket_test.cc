// UDP through the public face: bounds of datagrams, waiting, floods, errors.
#include <thread>

#include "socket/stack_core.hpp"
#include "stack_pair.hpp"

namespace nobounce::test {
namespace {

using namespace std::chrono_literals;

TEST(UdpSocket, datagrams_keep_their_bounds) {  // N-10
  StackPair pair;
  auto a = pair.left->udp_bind(left_endpoint(5000));
  auto b = pair.right->udp_bind(right_endpoint(6000));
  ASSERT_TRUE(a.has_value());
  ASSERT_TRUE(b.has_value());
  std::vector<std::byte> buffer(70'000);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{150}, size_t{1000},
                            size_t{1472}, size_t{1473}, size_t{30'000}, size_t{65'507}}) {
    std::vector<std::byte> data(size);
    fill_pattern(data, size, 0);
    ASSERT_EQ(a->send_to(data, right_endpoint(6000)), size);
    const auto got = b->recv_from(buffer);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->bytes, size);
    EXPECT_EQ(got->full_size, size);
    EXPECT_EQ(got->from, left_endpoint(5000));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
  }
  EXPECT_EQ(a->send_to(std::vector<std::byte>(65508), right_endpoint(6000)),
            std::unexpected(std::errc::message_size));
  // Too small a buffer: cut, and said so.
  ASSERT_EQ(a->send_to(std::vector<std::byte>(1000), right_endpoint(6000)), 1000u);
  const auto cut = b->recv_from(MutableBytes(buffer).first(10));
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->bytes, 10u);
  EXPECT_EQ(cut->full_size, 1000u);
}

// A datagram of several pieces is seen whole or not at all, however the reader is timed.
TEST(UdpSocket, large_datagrams_are_never_seen_in_part) {
  StackPair pair({}, {.mtu = 9000});
  auto a = pair.left->udp_bind();
  auto b = pair.right->udp_bind(right_endpoint(6000));
  ASSERT_TRUE(a.has_value() && b.has_value());
  b->set_receive_timeout(200ms);
  std::thread reader([&b] {
    std::vector<std::byte> buffer(9000);
    size_t datagrams = 0;
    while (const auto got = b->recv_from(buffer)) {
      ASSERT_EQ(got->bytes, 8900u);
      ++datagrams;
    }
    EXPECT_GT(datagrams, 0u);
  });
  const std::vector<std::byte> data(8900);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(a->send_to(data, right_endpoint(6000)), data.size());
  }
  reader.join();
}

TEST(UdpSocket, a_pending_error_does_not_hide_that_the_stack_is_down) {
  StackPair pair;
  auto socket = pair.left->udp_bind();
  ASSERT_TRUE(socket.has_value());
  ASSERT_TRUE(socket->connect(right_endpoint(6001)).has_value());
  ASSERT_EQ(socket->send_to(as_bytes("x"), right_endpoint(6001)), 1u);
  std::this_thread::sleep_for(50ms);  // port unreachable
  pair.left.reset();
  std::vector<std::byte> buffer(10);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(socket->recv_from(buffer).has_value());
}

TEST(UdpSocket, never_read_flood_is_bounded_and_counted) {  // C098
  StackPair pair;
  auto a = pair.left->udp_bind();
  auto b = pair.right->udp_bind(right_endpoint(6000));
  ASSERT_TRUE(a.has_value() && b.has_value());
  // The neighbour first: what waits for it is bounded too.
  ASSERT_TRUE(pair.left->ping(IpAddress::v4(10, 0, 0, 2), 1, 8, 5s).has_value());
  std::vector<std::byte> data(1000);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(a->send_to(data, right_endpoint(6000)), data.size());
  }
  for (int i = 0; i < 100 && pair.right->counter("shard.0.limit.udp_queue_full") == 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_GT(pair.right->counter("shard.0.limit.udp_queue_full"), 0u);
  Connection c = connect(pair);  // TCP lives beside it
  EXPECT_TRUE(c.server.is_open());
}

// The wire below takes fewer frames at a time than are sent: who waits loses none.
TEST(UdpSocket, a_full_device_makes_senders_wait) {
  for (const size_t size : {size_t{100}, size_t{20'000}}) {
    StackPair pair({}, {.depth = 8});
    auto a = pair.left->udp_bind();
    auto b = pair.right->udp_bind(right_endpoint(6000));
    ASSERT_TRUE(a.has_value() && b.has_value());
    ASSERT_TRUE(pair.left->ping(IpAddress::v4(10, 0, 0, 2), 1, 8, 5s).has_value());
    const std::vector<std::byte> data(size);
    constexpr uint64_t kCount = 3000;
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(a->send_to(data, right_endpoint(6000)), size) << i;
    }
    for (int i = 0; i < 500 && pair.right->counter("udp.received") < kCount; ++i) {
      std::this_thread::sleep_for(10ms);
    }
    EXPECT_EQ(pair.right->counter("udp.received"), kCount);
    EXPECT_EQ(pair.left->counter("ip.drop.output_full"), 0u);
  }
}

// Inline: nobody takes anything from the ring while we send.
TEST(UdpSocket, nonblocking_says_would_block_instead_of_waiting) {
  StackOptions options;
  options.drive = Drive::inline_drive;
  StackPair pair(options, {.depth = 8});
  auto a = pair.left->udp_bind();
  ASSERT_TRUE(a.has_value());
  a->set_nonblocking(true);
  const std::vector<std::byte> data(100);
  SocketResult<size_t> sent = size_t{0};
  for (int i = 0; i < 100'000 && sent; ++i) sent = a->send_to(data, right_endpoint(6000));
  EXPECT_EQ(sent, std::unexpected(std::errc::operation_would_block));
}

}  // namespace
}  // namespace nobounce::test
