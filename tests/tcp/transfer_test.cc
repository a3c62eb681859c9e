// Two stacks over a wire: bytes in are bytes out, whatever the wire does.
#include "tcp/pair.hpp"

namespace nobounce::test {
namespace {

TEST(TcpTransfer, clean_wire_both_ways_and_orderly_close) {
  Pair pair;
  Transfer transfer(pair, 1 << 20, 3 << 20);
  ASSERT_TRUE(transfer.run(10 * kNsPerSecond));
  transfer.expect_complete();
  EXPECT_EQ(pair.left.end.count("tcp.retransmitted"), 0U);
  EXPECT_EQ(pair.right.end.count("tcp.retransmitted"), 0U);
  pair.run(120 * kNsPerSecond);
  EXPECT_EQ(pair.left.tcp->connections(), 0U);
  EXPECT_EQ(pair.right.tcp->connections(), 0U);
}

}  // namespace
}  // namespace nobounce::test
