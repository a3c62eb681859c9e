// Tail loss probes (T-42).
#include "tcp/sack_script.hpp"

namespace nobounce::test {
namespace {

constexpr uint64_t kRtt = 20 * kMilli;

// The last `lost` of ten segments are lost: the probe shows it, and no time-out is needed.
TEST(TcpTailProbe, T42_the_tail_is_repaired_without_a_timeout) {
  for (uint32_t lost = 1; lost <= 4; ++lost) {
    SCOPED_TRACE(lost);
    SackScript s;
    s.start(10);
    s.advance(kRtt);
    s.ack(10 - lost);
    const uint64_t start = s.clock.now_ns();
    while (s.quiet()) s.advance(kMilli);
    const Out probe = s.out();
    EXPECT_EQ((s.seq(probe) - 1) / 1460, 9U);  // the last one
    EXPECT_EQ(probe.size, 1460U);
    // Two round trips; a single segment's ACK may be held back.
    EXPECT_EQ(probe.at_ns - start, 2 * kRtt + (lost == 1 ? 50 * kMilli : 0));
    s.advance(kRtt);
    if (lost == 1) {
      s.ack(10);
    } else {
      s.ack(10 - lost, {{9, 10}});
      s.advance(kRtt / 2);  // a quarter round trip of patience
      Segments again = s.sent();
      s.advance(kRtt);
      for (uint32_t next = 10 - lost + 1; next < 9; ++next) {
        s.ack(next, {{9, 10}});
        const Segments more = s.sent();
        again.insert(again.end(), more.begin(), more.end());
      }
      EXPECT_EQ(again.size(), lost - 1);
      s.ack(10);
    }
    EXPECT_EQ(s.recorder().acked, 10 * 1460U);
    EXPECT_EQ(s.count("tcp.tlp.probes"), 1U);
    EXPECT_EQ(s.count("tcp.timeouts"), 0U);
  }
}

TEST(TcpTailProbe, T42_new_data_is_the_better_probe) {
  SackScript s;
  s.start(10);
  s.write(5 * 1460);  // the congestion window is full
  EXPECT_TRUE(s.quiet());
  s.advance(3 * kRtt);
  EXPECT_EQ(s.sent(), Segments{10});
  EXPECT_EQ(s.count("tcp.retransmitted"), 0U);
  s.ack(11);
  EXPECT_EQ(s.count("tcp.tlp.repaired"), 0U);
}

TEST(TcpTailProbe, T42_a_repair_by_the_probe_reduces_the_window_once) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(9);
  const uint32_t before = s.info().congestion_window;
  s.advance(5 * kRtt);
  EXPECT_EQ(s.sent(), Segments{9});
  s.ack(10);
  EXPECT_EQ(s.info().congestion_window, before);  // not known yet
  s.start(2);
  s.ack(12);
  EXPECT_EQ(s.count("tcp.tlp.repaired"), 1U);
  EXPECT_EQ(s.info().slow_start_threshold, before / 2);
  EXPECT_LE(s.info().congestion_window, before / 2 + 2 * 1460);
  s.start(2);
  s.ack(14);
  EXPECT_EQ(s.count("tcp.tlp.repaired"), 1U);
}

TEST(TcpTailProbe, T42_a_needless_probe_costs_nothing) {
  for (const bool dsack : {false, true}) {
    SackScript s;
    s.start(10);
    s.advance(kRtt);
    s.ack(9);
    const uint32_t before = s.info().congestion_window;
    s.advance(5 * kRtt);
    EXPECT_EQ(s.sent(), Segments{9});
    s.ack(10);  // the first copy was late
    if (dsack) {
      s.ack_bytes(1 + 10 * 1460, {{s.at(9), s.at(10)}});
    } else {
      s.ack(10);  // a peer without D-SACK
    }
    s.start(2);
    s.ack(12);
    EXPECT_EQ(s.count("tcp.tlp.needless"), 1U);
    EXPECT_EQ(s.count("tcp.tlp.repaired"), 0U);
    EXPECT_GE(s.info().congestion_window, before);
  }
}

// The repair, or the one ACK that tells of it, is lost, and nothing else is on its way.
TEST(TcpTailProbe, T42_in_recovery_a_probe_asks_as_well) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(0, {{1, 10}});
  EXPECT_EQ(s.sent(), Segments{0});
  const uint64_t start = s.clock.now_ns();
  s.advance(199 * kMilli);
  const Out probe = s.out();
  EXPECT_EQ(s.seq(probe), 1U);
  EXPECT_EQ(probe.at_ns - start, 2 * kRtt);
  EXPECT_TRUE(s.quiet());  // one
  s.ack_bytes(1 + 10 * 1460, {{s.at(0), s.at(1)}});
  EXPECT_EQ(s.count("tcp.timeouts"), 0U);
  s.start(2);  // and the next tail has its own
  s.advance(150 * kMilli);
  EXPECT_EQ(s.sent(), Segments{11});
}

TEST(TcpTailProbe, T42_one_probe_then_the_time_out_counted_from_it) {
  SackScript s;
  s.start(10);
  const uint64_t start = s.clock.now_ns();
  s.advance(4 * kNsPerSecond);
  const Out probe = s.out();
  EXPECT_EQ((s.seq(probe) - 1) / 1460, 9U);
  EXPECT_EQ(probe.at_ns - start, 2 * kRtt);
  const Out first = s.out();
  EXPECT_EQ(s.seq(first), 1U);
  EXPECT_EQ(first.at_ns - probe.at_ns, 200 * kMilli);
  const Out second = s.out();
  EXPECT_EQ(s.seq(second), 1U);
  EXPECT_EQ(second.at_ns - first.at_ns, 400 * kMilli);
  EXPECT_EQ(s.count("tcp.tlp.probes"), 1U);
  s.drop_output();
}

// Two regular round trips of 300 ms are longer than the time-out: the probe takes its place.
TEST(TcpTailProbe, T42_never_later_than_the_time_out) {
  SackScript s({.rtt_ns = 300 * kMilli});
  for (uint32_t i = 1; i <= 30; ++i) {  // the variation dies away
    s.start(2);
    s.advance(300 * kMilli);
    s.ack(2 * i);
  }
  ASSERT_LT(s.info().rto_ns, 500 * kMilli);
  s.start(4);
  const uint64_t start = s.clock.now_ns();
  const uint64_t rto = s.info().rto_ns;
  s.advance(rto + kMilli);
  const Out probe = s.out();
  EXPECT_EQ((s.seq(probe) - 1) / 1460, 63U);
  EXPECT_EQ(probe.at_ns - start, rto);
  EXPECT_EQ(s.count("tcp.timeouts"), 0U);
}

TEST(TcpTailProbe, T42_a_lost_fin_is_asked_for) {
  SackScript s;
  s.start(3);
  s.tcp->shutdown_send(*s.connection);
  s.pump();
  EXPECT_TRUE(s.out().has(kTcpFin));
  s.advance(kRtt);
  s.ack(3);
  s.advance(5 * kRtt);
  const Out probe = s.out();
  EXPECT_TRUE(probe.has(kTcpFin));
  s.ack_bytes(1 + 3 * 1460 + 1);
  EXPECT_EQ(s.state(), "FIN-WAIT-2");
  EXPECT_EQ(s.count("tcp.timeouts"), 0U);
}

TEST(TcpTailProbe, T42_none_without_sack_nor_while_the_window_is_closed) {
  Script plain;
  plain.accept();
  plain.write(2 * 1460);
  plain.drop_output();
  plain.advance(199 * kMilli);
  EXPECT_TRUE(plain.quiet());
  EXPECT_EQ(plain.count("tcp.tlp.probes"), 0U);

  SackScript s;
  s.start(2);
  s.window = 0;
  s.ack(2);
  s.write(1460);
  s.advance(10 * kNsPerSecond);
  EXPECT_EQ(s.count("tcp.tlp.probes"), 0U);
  s.drop_output();
}

}  // namespace
}  // namespace nobounce::test
