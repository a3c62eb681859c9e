// What the product claims, counted: who copies how many payload bytes, in each mode and direction.
#include "backend_process.hpp"

namespace nobounce::test {
namespace {

constexpr size_t kBytes = 64 << 20;

struct Copies {
  uint64_t application_send, application_receive, io_bounce, io_header, io_send, io_receive;

  static Copies of(Stack& stack) {
    const CopyLedger& ledger = *StackSetUp::core(stack).copies;
    return {ledger.bytes(ThreadKind::application, CopyKind::send),
            ledger.bytes(ThreadKind::application, CopyKind::receive),
            ledger.bytes(ThreadKind::io, CopyKind::bounce),
            ledger.bytes(ThreadKind::io, CopyKind::header),
            ledger.bytes(ThreadKind::io, CopyKind::send),
            ledger.bytes(ThreadKind::io, CopyKind::receive)};
  }
};

struct CopiesTest : SystemTest, testing::WithParamInterface<Mode> {
  static uint64_t frames(Stack& stack) {
    uint64_t sum = 0;
    for (const CounterValue& counter : stack.counters()) {
      if (counter.name.starts_with("virtio") &&
          (counter.name.ends_with(".tx_packets") || counter.name.ends_with(".rx_packets"))) {
        sum += counter.value;
      }
    }
    return sum;
  }
};

TEST_P(CopiesTest, NC82_transmit) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, kDiscard);
  std::vector<std::byte> chunk(256 << 10);
  fill_letters(chunk, 1, 0);
  for (size_t sent = 0; sent < kBytes;) {
    const auto taken = socket.send(chunk);
    ASSERT_TRUE(taken.has_value());
    sent += *taken;
  }
  ASSERT_TRUE(socket.shutdown(Shutdown::send).has_value());
  std::byte byte{};
  EXPECT_EQ(socket.recv({&byte, 1}), 0u);  // everything arrived
  const Copies copies = Copies::of(*stack);
  EXPECT_EQ(copies.application_send, kBytes);
  EXPECT_EQ(copies.io_send, 0u);
  if (GetParam() == Mode::nocopy) {
    EXPECT_EQ(copies.io_bounce, 0u);
    EXPECT_EQ(stack->counter("dma.map.bounce"), 0u);
  } else {
    // Each byte once; on top only the frames that carry acknowledgements back.
    EXPECT_GE(copies.io_bounce, kBytes);
    EXPECT_LE(copies.io_bounce, kBytes + kBytes / 20);
  }
  EXPECT_LE(copies.io_header, 256 * frames(*stack));
}

TEST_P(CopiesTest, NC83_receive) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, kSource);
  std::vector<std::byte> buffer(256 << 10);
  size_t received = 0;
  while (received < kBytes) {
    const auto taken = socket.recv(buffer);
    ASSERT_TRUE(taken.has_value());
    received += *taken;
  }
  const Copies copies = Copies::of(*stack);
  EXPECT_EQ(copies.application_receive, received);
  EXPECT_EQ(copies.io_receive, 0u);
  if (GetParam() == Mode::nocopy) {
    EXPECT_EQ(copies.io_bounce, 0u);
  } else {
    // Once each, with the frames' headers; what is on its way is not received yet.
    EXPECT_GE(copies.io_bounce, received);
    EXPECT_LE(copies.io_bounce, received + received / 20 + (8 << 20));
  }
  EXPECT_LE(copies.io_header, 256 * frames(*stack));
}

INSTANTIATE_TEST_SUITE_P(Modes, CopiesTest, testing::Values(Mode::nocopy, Mode::bounce), mode_name);

}  // namespace
}  // namespace nobounce::test
