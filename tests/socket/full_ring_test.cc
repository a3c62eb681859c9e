// Behind a full receive ring: who empties it gets the rest, then the end or the error (C120, C132).
//
// Both stacks are driven by the test's thread, so that the reader can stop between any two steps of
// the shard. steal() is the reader that loses the race: it empties the ring having looked before the
// shard said that more waits in tcp/, so nobody is told. Time goes on by being looked at: a wait that
// would never end ends in operation_would_block.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "socket/stack_core.hpp"
#include "stack_pair.hpp"

namespace nobounce::test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kRing = TcpCore::kExtents;

class TickingClock final : public Clock {
 public:
  uint64_t now_ns() noexcept override {
    if (looks_left_ > 0 && --looks_left_ == 0) {
      stands_ = true;
      action_();
      stands_ = false;
    }
    return stands_ ? now_ns_ : now_ns_ += 1000;
  }
  // Runs `action` inside the `look`-th look at the time from now; it takes no time.
  void at_look(int look, std::function<void()> action) {
    looks_left_ = look;
    action_ = std::move(action);
  }

 private:
  int looks_left_ = 0;
  bool stands_ = false;
  std::function<void()> action_;
  uint64_t now_ns_ = kNsPerSecond;
};

class FullRing : public testing::TestWithParam<size_t> {
 protected:
  FullRing() : left(open(0)), right(open(1)) {
    auto listening = right->tcp_listen(right_endpoint(80));
    auto connecting = left->tcp_connect_start(right_endpoint(80));
    EXPECT_TRUE(listening.has_value() && connecting.has_value());
    listener = std::move(*listening);
    client = std::move(*connecting);
    pump();
    auto accepted = listener.accept(1s);
    EXPECT_TRUE(accepted.has_value());
    server = std::move(*accepted);
    EXPECT_TRUE(client.set_nodelay(true).has_value());
    server.set_receive_timeout(100us);  // a round takes a few
  }

  std::unique_ptr<Stack> open(int end) {
    StackOptions options;
    options.drive = Drive::inline_drive;
    options.address = {IpAddress::v4(10, 0, 0, static_cast<uint8_t>(end + 1)), 24};
    options.private_bytes = 16 << 20;
    options.connections_max = 16;
    auto stack = StackSetUp::open_on(
        options,
        [this, end](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
          return std::make_unique<PipeDevice>(pipe, end, *contexts[0]);
        },
        {.clock = &clock});
    EXPECT_TRUE(stack.has_value());
    return std::move(*stack);
  }
  // Until both sides have nothing to do.
  void pump() {
    Shard& a = StackSetUp::shard(*left);
    Shard& b = StackSetUp::shard(*right);
    for (int idle = 0; idle < 3;) idle = a.round() + b.round() > 0 ? 0 : idle + 1;
  }
  TcpCore& core() { return StackSetUp::core(server); }

  // Single bytes in segments of their own: one extent each.
  void send_pieces(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const std::byte byte = pattern(kSeed, sent++);
      ASSERT_EQ(client.send({&byte, 1}), 1u);
      pump();
    }
  }
  // What is in the ring, without a word to the shard. Returns the bytes.
  size_t steal() {
    size_t bytes = 0;
    Extent extent;
    while (core().received.try_pop(extent)) {
      bytes += extent.size;
      page_return(*extent.page);
    }
    core().consumed_bytes.fetch_add(bytes);
    received += bytes;
    return bytes;
  }
  // Reads until recv() has no more; what it said then. 0 is the end of the stream.
  SocketResult<size_t> read_on(size_t piece = 7) {
    std::vector<std::byte> buffer(piece);
    for (;;) {
      const auto taken = server.recv(buffer);
      if (!taken || *taken == 0) return taken;
      for (size_t i = 0; i < *taken; ++i) EXPECT_EQ(buffer[i], pattern(kSeed, received + i));
      received += *taken;
    }
  }
  static constexpr std::unexpected<std::errc> error(std::errc why) { return std::unexpected(why); }

  static constexpr uint64_t kSeed = 5;
  TickingClock clock;
  Pipe pipe;
  std::unique_ptr<Stack> left, right;
  TcpListener listener;
  TcpSocket client, server;
  size_t sent = 0, received = 0;
};

TEST_P(FullRing, C132_the_ring_holds_what_it_can_and_says_when_more_may_wait) {
  send_pieces(GetParam());
  EXPECT_EQ(core().received.size(), std::min(GetParam(), kRing));
  EXPECT_EQ(core().backlog_in_tcp.load(), GetParam() >= kRing);
  EXPECT_FALSE(core().end_of_stream.load());
}

TEST_P(FullRing, C120_a_reader_that_waits_gets_the_rest) {
  send_pieces(GetParam());
  EXPECT_EQ(read_on(), error(std::errc::operation_would_block));
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C120_a_reader_that_emptied_the_ring_unseen_gets_the_rest) {
  send_pieces(GetParam());
  EXPECT_EQ(steal(), std::min(GetParam(), kRing));
  EXPECT_EQ(read_on(), error(std::errc::operation_would_block));
  EXPECT_EQ(received, sent);
  // And what comes later, as often as it happens.
  for (int i = 0; i < 3; ++i) {
    send_pieces(GetParam());
    (void)steal();
    EXPECT_EQ(read_on(1), error(std::errc::operation_would_block));
    EXPECT_EQ(received, sent);
  }
}

// Nothing was there when it looked; it is woken for what it finds to be gone already.
TEST_P(FullRing, C120_a_reader_that_was_about_to_sleep_gets_the_rest) {
  // First look: when recv() has to be done. Second: how long it may sleep.
  clock.at_look(2, [this] {
    send_pieces(GetParam());
    (void)steal();
  });
  EXPECT_EQ(read_on(), error(std::errc::operation_would_block));
  EXPECT_EQ(sent, GetParam());
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C120_a_reader_that_does_not_wait_is_told_later) {
  server.set_nonblocking(true);
  send_pieces(GetParam());
  (void)steal();
  EXPECT_FALSE(server.is_readable());
  EXPECT_EQ(read_on(), error(std::errc::operation_would_block));
  const uint32_t before = core().event.prepare();
  pump();
  EXPECT_EQ(server.is_readable(), GetParam() > kRing);
  if (GetParam() > kRing) {
    EXPECT_NE(core().event.prepare(), before) << "nobody was woken";
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(read_on(), error(std::errc::operation_would_block));
    pump();
  }
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C132_then_the_end_of_the_stream) {
  send_pieces(GetParam());
  ASSERT_TRUE(client.shutdown(Shutdown::send).has_value());
  pump();
  // Not before the last byte.
  EXPECT_EQ(core().end_of_stream.load(), GetParam() <= kRing);
  EXPECT_EQ(read_on(), 0u);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(read_on(), 0u);  // again and again
}

TEST_P(FullRing, C132_then_the_end_of_the_stream_after_emptying_it_unseen) {
  send_pieces(GetParam());
  ASSERT_TRUE(client.shutdown(Shutdown::send).has_value());
  pump();
  (void)steal();
  EXPECT_EQ(read_on(), 0u);
  EXPECT_EQ(received, sent);
}

// The FIN comes when the ring was emptied and nobody has asked for the rest.
TEST_P(FullRing, C132_an_end_that_comes_to_an_emptied_ring) {
  send_pieces(GetParam());
  (void)steal();
  ASSERT_TRUE(client.shutdown(Shutdown::send).has_value());
  pump();
  EXPECT_TRUE(server.is_readable());
  EXPECT_EQ(read_on(), 0u);
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C132_both_sides_closed_before_anything_was_read) {
  send_pieces(GetParam());
  ASSERT_TRUE(server.shutdown(Shutdown::send).has_value());
  pump();
  client.close();
  pump();
  (void)steal();
  EXPECT_EQ(read_on(), 0u);
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C132_then_the_reset) {
  send_pieces(GetParam());
  client.abort();
  pump();
  EXPECT_EQ(server.error(), std::errc::connection_reset);
  EXPECT_EQ(read_on(), error(std::errc::connection_reset));
  EXPECT_EQ(received, sent);
}

TEST_P(FullRing, C132_then_the_reset_after_emptying_it_unseen) {
  send_pieces(GetParam());
  client.abort();
  pump();
  (void)steal();
  EXPECT_EQ(read_on(), error(std::errc::connection_reset));
  EXPECT_EQ(received, sent);
  EXPECT_EQ(read_on(), error(std::errc::connection_reset));
}

// A device that is gone takes what waits in tcp/ with it; the wait ends all the same.
TEST_P(FullRing, C132_then_network_down) {
  send_pieces(GetParam());
  pipe.broken = true;
  pump();
  EXPECT_EQ(read_on(), error(std::errc::network_down));
  EXPECT_EQ(received, std::min(GetParam(), kRing));
}

TEST_P(FullRing, C132_then_network_down_after_emptying_it_unseen) {
  send_pieces(GetParam());
  (void)steal();
  pipe.broken = true;
  pump();
  EXPECT_EQ(read_on(), error(std::errc::network_down));
}

// The window was not lost on the way: the sender may send as much again.
TEST_P(FullRing, C132_the_window_opens_again) {
  for (int i = 0; i < 3; ++i) {
    send_pieces(GetParam());
    (void)steal();
    EXPECT_EQ(read_on(100), error(std::errc::operation_would_block));
  }
  pump();
  EXPECT_EQ(core().consumed_bytes.load(), sent);
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(core().received.empty());
  EXPECT_EQ(client.error(), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Depths, FullRing,
                         testing::Values(1, 2, kRing - 1, kRing, kRing + 1, 2 * kRing,
                                         3 * kRing + 5));

}  // namespace
}  // namespace nobounce::test
