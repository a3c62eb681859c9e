#include <thread>

#include "socket/stack_core.hpp"
#include "stack_pair.hpp"

namespace nobounce::test {
namespace {

using namespace std::chrono_literals;

std::string text(const SocketResult<size_t>& result, const std::vector<std::byte>& buffer) {
  if (!result) return "error";
  return {reinterpret_cast<const char*>(buffer.data()), *result};
}

TEST(TcpSocket, request_and_reply) {
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_TRUE(c.server.is_open());
  EXPECT_EQ(c.server.remote().address, IpAddress::v4(10, 0, 0, 1));
  EXPECT_EQ(c.client.remote(), right_endpoint(80));
  EXPECT_EQ(c.server.remote(), c.client.local());
  std::vector<std::byte> buffer(100);
  EXPECT_EQ(c.client.send(as_bytes("question")), 8u);
  EXPECT_EQ(text(c.server.recv(buffer), buffer), "question");
  EXPECT_EQ(c.server.send(as_bytes("answer")), 6u);
  EXPECT_EQ(text(c.client.recv(buffer), buffer), "answer");
}

TEST(TcpSocket, half_close_delivers_everything_then_end_of_stream) {  // T-56, C001
  StackPair pair;
  Connection c = connect(pair);
  std::vector<std::byte> buffer(100);
  EXPECT_EQ(c.client.send(as_bytes("last words")), 10u);
  EXPECT_TRUE(c.client.shutdown(Shutdown::send).has_value());
  EXPECT_EQ(c.client.send(as_bytes("more")), std::unexpected(std::errc::broken_pipe));
  EXPECT_EQ(text(c.server.recv(buffer), buffer), "last words");
  EXPECT_EQ(c.server.recv(buffer), 0u);
  EXPECT_EQ(c.server.recv(buffer), 0u);
  EXPECT_EQ(c.server.send(as_bytes("still here")), 10u);
  EXPECT_EQ(text(c.client.recv(buffer), buffer), "still here");
}

// Both directions at once, sizes that do not fit anything, every byte checked.
void stream(StackPair& pair, size_t bytes, uint64_t seed) {
  Connection c = connect(pair);
  ASSERT_TRUE(c.server.is_open());
  const auto send_all = [bytes](TcpSocket& socket, uint64_t data_seed) {
    std::vector<std::byte> chunk(50'001);
    for (size_t sent = 0; sent < bytes;) {
      const size_t part = std::min(chunk.size(), bytes - sent);
      fill_pattern(MutableBytes(chunk).first(part), data_seed, sent);
      const auto taken = socket.send(Bytes(chunk).first(part));
      ASSERT_TRUE(taken.has_value()) << static_cast<int>(taken.error());
      ASSERT_EQ(*taken, part);  // blocking: all of it
      sent += part;
    }
    EXPECT_TRUE(socket.shutdown(Shutdown::send).has_value());
  };
  const auto receive_all = [bytes](TcpSocket& socket, uint64_t data_seed) {
    std::vector<std::byte> buffer(33'333);
    size_t received = 0;
    for (;;) {
      const auto taken = socket.recv(buffer);
      ASSERT_TRUE(taken.has_value()) << static_cast<int>(taken.error());
      if (*taken == 0) break;
      for (size_t i = 0; i < *taken; ++i) {
        ASSERT_EQ(buffer[i], pattern(data_seed, received + i)) << "at " << received + i;
      }
      received += *taken;
    }
    EXPECT_EQ(received, bytes);
  };
  std::thread a([&] { send_all(c.client, seed); });
  std::thread b([&] { receive_all(c.server, seed); });
  std::thread d([&] { send_all(c.server, seed + 1); });
  receive_all(c.client, seed + 1);
  a.join();
  b.join();
  d.join();
}

TEST(TcpSocket, stream_both_ways) {
  StackPair pair;
  stream(pair, 4 << 20, 1);
}

TEST(TcpSocket, stream_through_small_buffers) {
  StackOptions options;
  options.send_buffer = 16384;
  options.receive_buffer = 8192;
  StackPair pair(options);
  stream(pair, 1 << 20, 2);
}

TEST(TcpSocket, stream_over_a_wire_that_loses) {
  StackPair pair({}, {.mtu = 1500});
  pair.pipe.loss_per_mille = 5;
  stream(pair, 1 << 20, 3);
}

TEST(TcpSocket, one_byte_hand_offs_are_never_missed) {  // C022, C120
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_TRUE(c.client.set_nodelay(true).has_value());
  ASSERT_TRUE(c.server.set_nodelay(true).has_value());
  constexpr int kRounds = 3000;
  std::thread echo([&c] {
    std::byte byte{};
    for (;;) {
      const auto taken = c.server.recv({&byte, 1});
      if (!taken || *taken == 0) break;
      ASSERT_EQ(c.server.send({&byte, 1}), 1u);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    std::byte byte{static_cast<unsigned char>(i)};
    ASSERT_EQ(c.client.send({&byte, 1}), 1u);
    std::byte reply{};
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(c.client.recv({&reply, 1}), 1u);
    ASSERT_LT(std::chrono::steady_clock::now() - start, 2s);
    ASSERT_EQ(reply, byte);
  }
  ASSERT_TRUE(c.client.shutdown(Shutdown::send).has_value());
  echo.join();
}

TEST(TcpSocket, sends_of_several_threads_keep_whole_pieces_in_order) {
  StackPair pair;
  Connection c = connect(pair);
  constexpr size_t kPieces = 500;
  std::vector<std::thread> senders;
  for (uint8_t id = 0; id < 3; ++id) {
    senders.emplace_back([&c, id] {
      for (size_t i = 0; i < kPieces; ++i) {
        std::array<std::byte, 100> piece;
        piece.fill(static_cast<std::byte>(id));
        ASSERT_EQ(c.client.send(piece), piece.size());
      }
    });
  }
  std::array<size_t, 3> pieces{};
  std::array<std::byte, 100> piece;
  for (size_t i = 0; i < 3 * kPieces; ++i) {
    for (size_t got = 0; got < piece.size();) {
      const auto taken = c.server.recv(MutableBytes(piece).subspan(got));
      ASSERT_TRUE(taken.has_value());
      got += *taken;
    }
    for (const std::byte byte : piece) ASSERT_EQ(byte, piece[0]);
    ++pieces[std::to_integer<size_t>(piece[0])];
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(pieces, (std::array<size_t, 3>{kPieces, kPieces, kPieces}));
}

TEST(TcpSocket, refused_where_nobody_listens) {  // T-22
  StackPair pair;
  const auto socket = pair.left->tcp_connect(right_endpoint(81), 5s);
  ASSERT_FALSE(socket.has_value());
  EXPECT_EQ(socket.error(), std::errc::connection_refused);
}

TEST(TcpSocket, connect_times_out_when_nobody_answers) {
  StackPair pair;
  const auto socket = pair.left->tcp_connect({IpAddress::v4(10, 0, 0, 77), 80}, 50ms);
  ASSERT_FALSE(socket.has_value());
  EXPECT_EQ(socket.error(), std::errc::timed_out);
}

TEST(TcpSocket, nonblocking_says_would_block_instead_of_waiting) {
  StackOptions options;
  options.send_buffer = 16384;
  options.receive_buffer = 16384;
  StackPair pair(options);
  Connection c = connect(pair);
  c.client.set_nonblocking(true);
  std::vector<std::byte> buffer(1 << 20);
  EXPECT_EQ(c.client.recv(buffer), std::unexpected(std::errc::operation_would_block));
  // Nobody reads: at most both buffers' worth is taken, and then the socket says so (C128).
  size_t taken = 0;
  for (int i = 0; i < 200; ++i) {
    const auto part = c.client.send(buffer);
    if (part) taken += *part;
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_GE(taken, 16384u);
  EXPECT_LE(taken, 3u * 16384u);
  EXPECT_EQ(c.client.send(buffer), std::unexpected(std::errc::operation_would_block));
  EXPECT_FALSE(c.client.is_writable());
}

TEST(TcpSocket, receive_time_out) {
  StackPair pair;
  Connection c = connect(pair);
  c.client.set_receive_timeout(20ms);
  std::byte byte{};
  EXPECT_EQ(c.client.recv({&byte, 1}), std::unexpected(std::errc::operation_would_block));
}

TEST(TcpSocket, abort_resets_the_peer) {  // T-57
  StackPair pair;
  Connection c = connect(pair);
  c.client.abort();
  std::byte byte{};
  EXPECT_EQ(c.server.recv({&byte, 1}), std::unexpected(std::errc::connection_reset));
}

TEST(TcpSocket, close_with_unread_data_resets) {  // T-57
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_EQ(c.client.send(as_bytes("nobody reads this")), 17u);
  while (!c.server.is_readable()) std::this_thread::yield();
  c.server.close();
  std::byte byte{};
  EXPECT_EQ(c.client.recv({&byte, 1}), std::unexpected(std::errc::connection_reset));
}

// C132: the end of the stream and errors come after every byte, also when the ring is full.
class EndAfterFullRing : public testing::TestWithParam<size_t> {};

TEST_P(EndAfterFullRing, C132_all_bytes_then_end_of_stream) {
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_TRUE(c.client.set_nodelay(true).has_value());
  // Small segments that do not continue each other: one extent each.
  std::vector<std::byte> sent;
  for (size_t i = 0; i < GetParam(); ++i) {
    const std::byte byte{static_cast<unsigned char>(i)};
    ASSERT_EQ(c.client.send({&byte, 1}), 1u);
    sent.push_back(byte);
    if (i % 16 == 0) std::this_thread::sleep_for(100us);
  }
  ASSERT_TRUE(c.client.shutdown(Shutdown::send).has_value());
  std::this_thread::sleep_for(20ms);
  std::vector<std::byte> received;
  std::vector<std::byte> buffer(7);
  for (;;) {
    const auto taken = c.server.recv(buffer);
    ASSERT_TRUE(taken.has_value());
    if (*taken == 0) break;
    received.insert(received.end(), buffer.begin(),
                    buffer.begin() + static_cast<ptrdiff_t>(*taken));
  }
  EXPECT_EQ(received, sent);
}

// C132 again: both sides have closed while tcp/ still holds what the ring had no room for.
TEST(TcpSocket, C132_an_orderly_close_cuts_off_nothing_that_was_not_yet_read) {
  constexpr size_t kBytes = 3 << 20;  // three times what the ring holds
  StackPair pair;
  Connection c = connect(pair);
  std::vector<std::byte> sent(kBytes);
  fill_pattern(sent, 9, 0);
  ASSERT_TRUE(c.server.shutdown(Shutdown::send).has_value());
  ASSERT_EQ(c.client.send(sent), kBytes);
  ASSERT_TRUE(c.client.shutdown(Shutdown::send).has_value());
  std::byte byte{};
  ASSERT_EQ(c.client.recv({&byte, 1}), 0u);
  std::this_thread::sleep_for(50ms);  // the last ACKs: the server's side is closed too
  std::vector<std::byte> received(kBytes + 1);
  size_t done = 0;
  for (;;) {
    const auto taken = c.server.recv(MutableBytes(received).subspan(done));
    ASSERT_TRUE(taken.has_value());
    if (*taken == 0) break;
    done += *taken;
  }
  received.resize(done);
  EXPECT_TRUE(received == sent) << done << " of " << kBytes << " bytes";
}

TEST_P(EndAfterFullRing, C132_all_bytes_then_the_reset) {
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_TRUE(c.client.set_nodelay(true).has_value());
  for (size_t i = 0; i < GetParam(); ++i) {
    const std::byte byte{static_cast<unsigned char>(i)};
    ASSERT_EQ(c.client.send({&byte, 1}), 1u);
    if (i % 16 == 0) std::this_thread::sleep_for(100us);
  }
  std::this_thread::sleep_for(100ms);  // all of it is there
  c.client.abort();
  std::this_thread::sleep_for(20ms);
  std::vector<std::byte> buffer(7);
  size_t received = 0;
  for (;;) {
    const auto taken = c.server.recv(buffer);
    if (!taken) {
      EXPECT_EQ(taken.error(), std::errc::connection_reset);
      break;
    }
    ASSERT_GT(*taken, 0u);
    received += *taken;
  }
  EXPECT_EQ(received, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Depths, EndAfterFullRing,
                         testing::Values(1, 2, TcpCore::kExtents - 1, TcpCore::kExtents,
                                         TcpCore::kExtents + 1, 3 * TcpCore::kExtents));

TEST(TcpSocket, handles_are_safe_after_their_stack) {
  StackPair pair;
  Connection c = connect(pair);
  pair.left.reset();
  std::byte byte{};
  EXPECT_EQ(c.client.send({&byte, 1}), std::unexpected(std::errc::network_down));
  EXPECT_EQ(c.client.recv({&byte, 1}), std::unexpected(std::errc::network_down));
  EXPECT_EQ(c.client.shutdown(Shutdown::send), std::unexpected(std::errc::network_down));
}

TEST(TcpSocket, broken_device_ends_every_wait_within_a_second) {  // C136, TM-24
  StackPair pair;
  Connection c = connect(pair);
  std::thread reader([&c] {
    std::byte byte{};
    EXPECT_EQ(c.client.recv({&byte, 1}), std::unexpected(std::errc::network_down));
  });
  std::thread accepter([&c] { EXPECT_EQ(c.listener.accept().error(), std::errc::network_down); });
  std::thread writer([&c] {
    std::vector<std::byte> data(16 << 20);
    const auto sent = c.client.send(data);
    EXPECT_TRUE(!sent.has_value() || *sent < data.size());
  });
  std::this_thread::sleep_for(50ms);
  const auto start = std::chrono::steady_clock::now();
  pair.pipe.broken = true;
  reader.join();
  accepter.join();
  writer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
  EXPECT_TRUE(pair.left->failure().has_value());
  EXPECT_EQ(pair.left->tcp_connect(right_endpoint(80)).error(), std::errc::network_down);
}

TEST(TcpSocket, many_connects_and_closes_leave_nothing) {
  StackOptions options;
  options.connections_max = 2048;
  StackPair pair(options);
  auto listener = pair.right->tcp_listen(right_endpoint(80), 16);
  ASSERT_TRUE(listener.has_value());
  for (int i = 0; i < 500; ++i) {
    auto client = pair.left->tcp_connect(right_endpoint(80), 5s);
    ASSERT_TRUE(client.has_value()) << "round " << i;
    auto server = listener->accept(5s);
    ASSERT_TRUE(server.has_value());
    ASSERT_EQ(client->send(as_bytes("x")), 1u);
    std::byte byte{};
    ASSERT_EQ(server->recv({&byte, 1}), 1u);
    if (i % 2 == 0) {
      client->close();
      ASSERT_EQ(server->recv({&byte, 1}), 0u);
    }
  }
  // The pools' own destructors assert that everything came home.
}

TEST(TcpSocket, nothing_is_read_after_the_receiving_side_was_shut) {
  StackPair pair;
  Connection c = connect(pair);
  ASSERT_EQ(c.client.send(as_bytes("unread")), 6u);
  while (!c.server.is_readable()) std::this_thread::yield();
  ASSERT_TRUE(c.server.shutdown(Shutdown::receive).has_value());
  std::byte byte{};
  EXPECT_EQ(c.server.recv({&byte, 1}), 0u);
}

TEST(TcpListener, interrupt_ends_a_waiting_accept) {
  StackPair pair;
  auto listener = pair.right->tcp_listen(right_endpoint(80));
  ASSERT_TRUE(listener.has_value());
  std::thread waiting(
      [&] { EXPECT_EQ(listener->accept().error(), std::errc::operation_canceled); });
  std::this_thread::sleep_for(20ms);
  listener->interrupt();
  waiting.join();
}

TEST(TcpListener, address_in_use) {
  StackPair pair;
  auto first = pair.right->tcp_listen(right_endpoint(80));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(pair.right->tcp_listen(right_endpoint(80)).error(), std::errc::address_in_use);
  first->close();
  EXPECT_TRUE(pair.right->tcp_listen(right_endpoint(80)).has_value());
}

TEST(Stack, ping_and_its_refusals) {
  StackPair pair;
  for (const size_t size : {size_t{0}, size_t{56}, size_t{1400}}) {
    const auto reply = pair.left->ping(IpAddress::v4(10, 0, 0, 2), 1, size, 5s);
    ASSERT_TRUE(reply.has_value()) << size;
    EXPECT_EQ(reply->bytes, size);
    EXPECT_EQ(reply->from, IpAddress::v4(10, 0, 0, 2));
  }
  EXPECT_EQ(pair.left->ping(IpAddress::v4(10, 0, 0, 99), 1, 56, 50ms).error(),
            std::errc::timed_out);
  EXPECT_EQ(pair.left->ping(IpAddress::v4(192, 0, 2, 1), 1, 56, 50ms).error(),
            std::errc::network_unreachable);
}

TEST(Stack, inline_drive_needs_no_thread) {
  StackPair pair;
  StackOptions options;
  options.drive = Drive::inline_drive;
  options.private_bytes = 8 << 20;
  options.connections_max = 64;
  auto listener = pair.right->tcp_listen(right_endpoint(80));
  ASSERT_TRUE(listener.has_value());
  pair.left.reset();
  auto inline_stack = pair.open(options, 0);
  auto client = inline_stack->tcp_connect(right_endpoint(80), 5s);
  ASSERT_TRUE(client.has_value());
  auto server = listener->accept(5s);
  ASSERT_TRUE(server.has_value());
  ASSERT_EQ(client->send(as_bytes("inline")), 6u);
  inline_stack->poll(10ms);
  std::vector<std::byte> buffer(10);
  EXPECT_EQ(server->recv(buffer), 6u);
  EXPECT_EQ(server->send(as_bytes("ok")), 2u);
  EXPECT_EQ(client->recv(buffer), 2u);
}

TEST(Stack, idle_stack_sleeps) {  // under 1 % of a core
  StackPair pair;
  std::this_thread::sleep_for(100ms);
  const uint64_t before = pair.left->counter("shard.0.cpu_ns");
  std::this_thread::sleep_for(1s);
  EXPECT_LT(pair.left->counter("shard.0.cpu_ns") - before, 10'000'000u);
}

struct BadOption {
  const char* name;
  void (*spoil)(StackOptions&);
};

TEST(Stack, bad_options_get_one_sentence) {
  const BadOption cases[] = {
      {"no address", [](StackOptions& o) { o.address = {}; }},
      {"gateway elsewhere", [](StackOptions& o) { o.gateway = IpAddress::v4(192, 0, 2, 1); }},
      {"percentages", [](StackOptions& o) { o.nocopy_tx_percent = 60; }},
      {"queue size", [](StackOptions& o) { o.queue_size = 100; }},
      {"mtu", [](StackOptions& o) { o.mtu = 100; }},
      {"memory", [](StackOptions& o) { o.pool_bytes = 0; }},
      {"connections", [](StackOptions& o) { o.connections_max = 0; }},
      {"net", [](StackOptions& o) { o.net = "ethernet"; }},
      {"nobody there", [](StackOptions& o) { o.net = "vhost-user:/nonexistent/socket"; }},
  };
  for (const BadOption& bad : cases) {
    SCOPED_TRACE(bad.name);
    StackOptions options;
    options.net = "vhost-user:/nonexistent/socket";
    options.address = *IpPrefix::parse("10.0.0.2/24");
    options.pool_bytes = 4 << 20;
    options.private_bytes = 4 << 20;
    options.connections_max = 16;
    bad.spoil(options);
    const auto stack = Stack::open(options);
    ASSERT_FALSE(stack.has_value());
    EXPECT_FALSE(stack.error().to_string().empty());
    EXPECT_EQ(stack.error().to_string().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace nobounce::test
