// Losses found and repaired with SACK: T-37, T-39..T-41, T-46, as one sender with a scripted peer.
#include "tcp/prr.hpp"
#include "tcp/rack.hpp"
#include "tcp/sack_script.hpp"
#include "tcp/undo.hpp"

namespace nobounce::test {
namespace {

using tcp::Prr;
using tcp::Rack;
using tcp::Seq;
using tcp::Undo;

constexpr uint64_t kRtt = 20 * kMilli;

// ---- the parts ----------------------------------------------------------------------------------

TEST(Prr, T46_one_of_two_above_the_threshold_then_up_to_it) {
  Prr prr;
  prr.start(20'000);
  Prr::Ack ack{.threshold = 10'000, .mss = 1000};
  // The first repair goes in any case.
  ack.delivered = 1000;
  ack.pipe = 18'000;
  EXPECT_EQ(prr.window(ack), 19'000U);
  prr.sent += 1000;
  // Half of what is delivered, rounded up to a byte, not to a segment.
  ack.delivered = 1000;
  EXPECT_EQ(prr.window(ack), 18'000U);  // 2000 delivered: 1000 earned, and sent
  EXPECT_EQ(prr.window(ack), 18'500U);
  EXPECT_EQ(prr.window(ack), 19'000U);
  prr.sent += 1000;
  // A burst of losses: on its way is less than the threshold. As much as was delivered...
  ack.pipe = 4000;
  ack.delivered = 1000;
  EXPECT_EQ(prr.window(ack), 7000U);  // 5000 delivered, 2000 sent
  // ... and one segment more when nothing more is missing ...
  ack.goes_well = true;
  ack.delivered = 0;
  EXPECT_EQ(prr.window(ack), 8000U);
  // ... never beyond the threshold.
  ack.delivered = 9000;
  EXPECT_EQ(prr.window(ack), 10'000U);
}

TEST(LeastRtt, T41_is_of_the_last_ten_to_twenty_seconds) {
  tcp::LeastRtt least;
  EXPECT_EQ(least.value_ns(), tcp::LeastRtt::kUnknown);
  uint64_t now = 100 * kNsPerSecond;
  least.sample(5 * kMilli, now);
  least.sample(9 * kMilli, now);
  EXPECT_EQ(least.value_ns(), 5 * kMilli);
  least.sample(9 * kMilli, now += 11 * kNsPerSecond);
  EXPECT_EQ(least.value_ns(), 5 * kMilli);
  least.sample(9 * kMilli, now += 11 * kNsPerSecond);
  EXPECT_EQ(least.value_ns(), 9 * kMilli);
}

TEST(Rack, T41_patience_grows_with_needless_repairs_and_forgets_after_sixteen_recoveries) {
  Rack rack;
  const uint64_t smoothed = 30 * kMilli;
  rack.least_rtt.sample(kRtt, kNsPerSecond);
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), 0U);
  EXPECT_EQ(rack.window_ns(Rack::Evidence::weak, smoothed), kRtt / 4);
  rack.reordering_seen = true;
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), kRtt / 4);
  rack.was_needless(Seq(100), Seq(200));
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), 2 * kRtt / 4);
  rack.was_needless(Seq(199), Seq(300));  // the same round trip
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), 2 * kRtt / 4);
  rack.was_needless(Seq(200), Seq(300));
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), 3 * kRtt / 4);
  for (int i = 0; i < 15; ++i) rack.recovery_ended();
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), 3 * kRtt / 4);
  rack.recovery_ended();
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), kRtt / 4);
  for (uint32_t i = 0; i < 20; ++i) rack.was_needless(Seq(1000 + 100 * i), Seq(1100 + 100 * i));
  EXPECT_EQ(rack.window_ns(Rack::Evidence::strong, smoothed), smoothed);  // not beyond it
}

TEST(Undo, T37_all_that_went_again_and_nothing_else_counts) {
  tcp::Congestion window;
  window.start(1000);
  Undo undo;
  EXPECT_EQ(undo.duplicate(Seq(0), Seq(10)), Undo::Verdict::unrelated);
  undo.start(Undo::Cause::recovery, window, 0);
  undo.sent_again(Seq(1000), 1000);
  undo.sent_again(Seq(2000), 1000);
  undo.sent_again(Seq(8000), 500);
  EXPECT_EQ(undo.duplicate(Seq(3000), Seq(4000)), Undo::Verdict::unrelated);  // the wire's own
  EXPECT_EQ(undo.duplicate(Seq(1000), Seq(2000)), Undo::Verdict::needless);
  EXPECT_EQ(undo.duplicate(Seq(1000), Seq(2000)), Undo::Verdict::unrelated);
  EXPECT_EQ(undo.duplicate(Seq(8000), Seq(8500)), Undo::Verdict::needless);
  EXPECT_EQ(undo.duplicate(Seq(2000), Seq(3000)), Undo::Verdict::all_needless);
  // More than can be remembered is not taken back.
  undo.start(Undo::Cause::recovery, window, 0);
  for (uint32_t i = 0; i <= Undo::kSpansMax; ++i) undo.sent_again(Seq(i * 100), 50);
  for (uint32_t i = 0; i <= Undo::kSpansMax; ++i) {
    EXPECT_NE(undo.duplicate(Seq(i * 100), Seq(i * 100 + 50)), Undo::Verdict::all_needless);
  }
}

// ---- finding losses -----------------------------------------------------------------------------

TEST(TcpRecovery, T41_three_segments_sacked_and_the_hole_goes_at_once) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(0, {{1, 2}});
  s.ack(0, {{1, 3}});
  EXPECT_EQ(s.sent(), Segments{});  // there is nothing more to send; two could be reordering
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});
  EXPECT_EQ(s.count("tcp.fast_retransmits"), 1U);
  EXPECT_EQ(s.info().slow_start_threshold, 5 * 1460U);
  s.ack(0, {{1, 10}});
  s.advance(kRtt);
  s.ack(10);
  EXPECT_EQ(s.info().congestion_window, 5 * 1460U);
  EXPECT_EQ(s.count("tcp.retransmitted"), 1U);
  EXPECT_EQ(s.count("tcp.timeouts"), 0U);
}

TEST(TcpRecovery, T41_one_segment_sacked_waits_for_a_quarter_of_a_round_trip) {
  SackScript s;
  s.start(3);
  s.advance(kRtt);
  const uint64_t start = s.clock.now_ns();
  s.ack(0, {{2, 3}});
  EXPECT_TRUE(s.quiet());
  s.advance(kRtt);
  const Out first = s.out();
  EXPECT_EQ(s.seq(first), 1U);
  EXPECT_EQ(first.at_ns - start, kRtt / 4);
  EXPECT_TRUE(s.quiet());  // one repair at first; more when something was delivered
  s.ack(1, {{2, 3}});
  EXPECT_EQ(s.sent(), Segments{1});
  EXPECT_EQ(s.count("tcp.rack.timeouts"), 1U);
}

// G-3: of a piece of 64 KiB the missing segments alone go again.
TEST(TcpRecovery, G3_T39_holes_in_a_large_packet_go_again_alone) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(1, {{2, 3}, {5, 6}, {7, 8}});
  Segments again = s.sent();
  for (const uint32_t next : {8, 9, 10}) {
    s.ack(1, {{7, next}, {2, 3}, {5, 6}});
    for (const uint32_t segment : s.sent()) again.push_back(segment);
  }
  s.advance(kRtt);
  s.ack(3, {{7, 10}, {5, 6}});
  for (const uint32_t segment : s.sent()) again.push_back(segment);
  EXPECT_EQ(again, (Segments{1, 3, 4, 6}));
}

TEST(TcpRecovery, T41_a_lost_repair_is_found_without_a_timeout) {
  SackScript s;
  s.start(10);
  s.write(20 * 1460);
  EXPECT_EQ(s.sent(), Segments{});
  s.advance(kRtt);
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});  // lost again
  s.ack(0, {{1, 10}});
  const Segments behind = s.sent();
  ASSERT_FALSE(behind.empty());
  EXPECT_EQ(behind.front(), 10U);
  s.advance(kRtt);
  s.ack(0, {{1, 11}});  // sent after the repair, and there
  EXPECT_EQ(s.sent().front(), 0U);
  EXPECT_EQ(s.count("tcp.rack.lost_again"), 1U);
  EXPECT_EQ(s.count("tcp.timeouts"), 0U);
  EXPECT_EQ(s.count("tcp.fast_retransmits"), 1U);  // one reduction
}

// The path reorders by a segment or three, again and again: after the first time nothing goes twice.
TEST(TcpRecovery, T41_reordering_is_learned) {
  SackScript s;
  uint32_t next = 0;
  for (int round = 0; round < 20; ++round) {
    s.start(10);
    s.advance(kRtt);
    s.ack(next, {{next + 1, next + 2}});
    s.ack(next, {{next + 1, next + 5}});
    s.advance(kRtt / 8);
    s.ack(next + 10);  // the first one was only late
    next += 10;
    (void)s.sent();
    if (round == 0) {
      EXPECT_EQ(s.count("tcp.retransmitted"), 1U);  // three were ahead of it
      // The repair arrives as well: not lost, as the peer says.
      s.advance(kRtt);
      s.ack_bytes(1 + next * 1460, {{s.at(0), s.at(1)}});
    }
  }
  EXPECT_EQ(s.count("tcp.retransmitted"), 1U);
  EXPECT_EQ(s.count("tcp.rack.reordering"), 1U);
  EXPECT_EQ(s.count("tcp.undo.duplicates"), 1U);
}

// ---- the window ---------------------------------------------------------------------------------

TEST(TcpRecovery, T46_in_recovery_one_segment_for_two_delivered) {
  SackScript s;
  s.start(10);
  s.write(40 * 1460);
  s.advance(kRtt);
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});
  std::vector<size_t> each;
  for (uint32_t end = 5; end <= 10; ++end) {
    s.ack(0, {{1, end}});
    each.push_back(s.sent().size());
  }
  // Of 4 and 5 delivered 2 may go; at 6 the flight is at the threshold, and keeps it from then on.
  EXPECT_EQ(each, (std::vector<size_t>{1, 0, 0, 1, 1, 1}));
  s.advance(kRtt);
  s.ack(10);
  EXPECT_EQ(s.info().congestion_window, 5 * 1460U);
}

// What was sent before the loss was found is one window, and one reduction; what is lost of the next
// window is another, also when the same ACK ends the first.
TEST(TcpRecovery, T46_one_reduction_a_window) {
  SackScript s;
  s.start(10);
  s.write(20 * 1460);
  s.advance(kRtt);
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});
  s.ack(0, {{1, 4}, {6, 10}});
  Segments all = s.sent();
  s.advance(kRtt);
  s.ack(4, {{6, 10}});
  for (const uint32_t segment : s.sent()) all.push_back(segment);
  const uint32_t end = std::ranges::max(all) + 1;
  ASSERT_GE(end, 13U);
  EXPECT_EQ(s.count("tcp.fast_retransmits"), 1U);
  s.advance(kRtt);
  s.ack(10, {{11, end}});
  s.advance(kRtt / 2);  // two sacked are not yet proof
  EXPECT_EQ(s.count("tcp.fast_retransmits"), 2U);
  EXPECT_EQ(s.sent().front(), 10U);
}

TEST(TcpRecovery, T37_a_needless_reduction_is_taken_back) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});
  s.ack(10);  // it was only late
  EXPECT_EQ(s.info().congestion_window, 5 * 1460U);
  s.advance(kRtt);
  s.ack_bytes(1 + 10 * 1460, {{s.at(0), s.at(1)}});
  EXPECT_EQ(s.info().congestion_window, 10 * 1460U);
  EXPECT_EQ(s.count("tcp.undo.duplicates"), 1U);
  EXPECT_EQ(s.count("tcp.sack.duplicate_in"), 1U);
}

TEST(TcpRecovery, T37_a_duplicate_of_the_wires_own_proves_nothing) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(0, {{1, 4}});
  EXPECT_EQ(s.sent(), Segments{0});
  s.ack_bytes(1, {{s.at(2), s.at(3)}, {s.at(1), s.at(5)}});
  s.advance(kRtt);
  s.ack(10);
  EXPECT_EQ(s.count("tcp.sack.duplicate_in"), 1U);
  EXPECT_EQ(s.count("tcp.undo.duplicates"), 0U);
  EXPECT_EQ(s.info().congestion_window, 5 * 1460U);
}

// RFC 3522: the ACK echoes a timestamp from before the time-out.
TEST(TcpRecovery, T37_a_needless_timeout_is_taken_back) {
  SackScript s({.timestamps = true});
  s.start(10);
  s.echo = s.sent_timestamp;
  s.advance(kNsPerSecond);
  EXPECT_GE(s.count("tcp.timeouts"), 1U);
  (void)s.sent();
  s.ack(5);
  EXPECT_EQ(s.count("tcp.undo.timeout"), 1U);
  EXPECT_GE(s.info().congestion_window, 10 * s.mss);
  EXPECT_EQ(s.sent(), Segments{});  // the rest is on its way
  s.ack(10);
  EXPECT_EQ(s.recorder().acked, 10 * s.mss);
}

TEST(TcpRecovery, T37_a_timeout_is_not_taken_back_when_its_repair_is_answered) {
  SackScript s({.timestamps = true});
  s.start(10);
  s.advance(kNsPerSecond);
  (void)s.sent();
  s.echo = s.sent_timestamp;
  s.ack(1);
  EXPECT_EQ(s.count("tcp.undo.timeout"), 0U);
  EXPECT_EQ(s.sent(), (Segments{1, 2}));
}

// ---- what a peer may say ------------------------------------------------------------------------

TEST(TcpRecovery, T37_T40_what_was_sacked_and_thrown_away_goes_again) {
  SackScript s;
  s.start(4);
  s.advance(kRtt);
  s.ack(0, {{1, 3}});
  s.advance(kRtt);
  (void)s.sent();
  s.ack(1);  // and not 3: reneged
  Segments again;
  for (int i = 0; i < 20 && s.recorder().acked < 4 * 1460; ++i) {
    s.advance(400 * kMilli);
    const Segments more = s.sent();
    again.insert(again.end(), more.begin(), more.end());
    if (!again.empty()) s.ack(again.back() + 1);
  }
  EXPECT_EQ(s.count("tcp.sack.reneged"), 1U);
  EXPECT_EQ(s.recorder().acked, 4 * 1460U);
}

TEST(TcpRecovery, T39_blocks_that_cannot_be_are_ignored) {
  SackScript s;
  s.start(10);
  s.advance(kRtt);
  s.ack(4);
  const uint32_t far = 0x7fffffff;
  s.ack_bytes(1 + 4 * 1460, {{s.at(8), s.at(11)}});                     // beyond what was sent
  s.ack_bytes(1 + 4 * 1460, {{s.at(9), s.at(7)}});                      // reversed
  s.ack_bytes(1 + 4 * 1460, {{s.at(6), s.at(6)}});                      // empty
  s.ack_bytes(1 + 4 * 1460, {{s.at(8), s.at(9)}, {s.at(2), s.at(6)}});  // begins below
  s.ack_bytes(1 + 4 * 1460, {{s.at(9) + far, s.at(5)}});                // half the numbers away
  s.ack_bytes(1 + 4 * 1460, {{s.at(0) - far, s.at(0)}});
  EXPECT_EQ(s.count("tcp.sack.invalid"), 6U);
  s.advance(kMilli);
  EXPECT_EQ(s.count("tcp.retransmitted"), 0U);
}

// CVE-2019-11477, -11478: crumbs of SACK over segments of 88 bytes.
TEST(TcpRecovery, T40_a_storm_over_tiny_segments_costs_a_bounded_amount) {
  SackScript s({.mss = 88, .packets = 8192});
  uint32_t sent = 0;
  uint32_t acked = 0;
  // Until more segments are out than a scoreboard has ranges.
  for (uint32_t round = 0; round < 3000 && sent - acked < 2000; ++round) {
    s.write(size_t{88} * 8);
    sent += static_cast<uint32_t>(s.sent().size());
    s.ack(acked += 3);
    sent += static_cast<uint32_t>(s.sent().size());
  }
  ASSERT_GT(sent - acked, 1500U);
  const uint32_t base = acked;
  const uint32_t end = sent;
  for (uint32_t i = base + 1; i + 1 < end; i += 2) {
    s.ack_bytes(1 + base * 88, {{s.at(i), s.at(i) + 40}, {s.at(i) + 60, s.at(i) + 80}});
    (void)s.sent();
  }
  EXPECT_GT(s.count("tcp.limit.sack_ranges"), 100U);
  s.advance(kNsPerSecond);
  (void)s.sent();
  uint32_t all = 1 + base * 88;
  while (s.info().bytes_unacked > 0)
    s.ack_bytes(all += static_cast<uint32_t>(s.info().bytes_unacked));
  EXPECT_EQ(s.state(), "ESTABLISHED");
}

// ---- what we say (T-39) -------------------------------------------------------------------------

std::vector<TcpSackBlock> blocks_of(const Out& o) {
  return {o.header.options.sack.begin(),
          o.header.options.sack.begin() + o.header.options.sack_count};
}

TEST(TcpRecovery, T39_we_tell_what_came_twice_first) {
  SackScript s;
  const uint32_t isn = s.options.peer_isn;
  s.in(kA, 1, 1, {.payload = 1000});
  s.in(kA, 1001, 1, {.payload = 1000});
  s.drop_output();
  s.in(kA, 1001, 1, {.payload = 1000});  // below what we acknowledge
  EXPECT_EQ(blocks_of(s.out()), (std::vector<TcpSackBlock>{{isn + 1001, isn + 2001}}));
  s.in(kA, 3001, 1, {.payload = 1000});
  EXPECT_EQ(blocks_of(s.out()), (std::vector<TcpSackBlock>{{isn + 3001, isn + 4001}}));
  s.in(kA, 5001, 1, {.payload = 1000});
  EXPECT_EQ(blocks_of(s.out()),
            (std::vector<TcpSackBlock>{{isn + 5001, isn + 6001}, {isn + 3001, isn + 4001}}));
  s.in(kA, 3001, 1, {.payload = 1000});  // held already: the block around it is the second
  EXPECT_EQ(blocks_of(s.out()),
            (std::vector<TcpSackBlock>{
                {isn + 3001, isn + 4001}, {isn + 3001, isn + 4001}, {isn + 5001, isn + 6001}}));
  s.in(kA, 1501, 1, {.payload = 1000});  // half of it is new
  EXPECT_EQ(blocks_of(s.out()),
            (std::vector<TcpSackBlock>{
                {isn + 1501, isn + 2001}, {isn + 3001, isn + 4001}, {isn + 5001, isn + 6001}}));
  s.in(kA, 2501, 1, {.payload = 500});  // told once
  EXPECT_EQ(blocks_of(s.out()), (std::vector<TcpSackBlock>{{isn + 5001, isn + 6001}}));
  EXPECT_EQ(s.count("tcp.sack.duplicate_out"), 3U);
}

TEST(TcpRecovery, T39_nothing_of_it_without_sack) {
  Script s;
  s.accept();
  s.in(kA, 1, 1, {.payload = 1000});
  s.in(kA, 1, 1, {.payload = 1000});
  s.in(kA, 3001, 1, {.payload = 1000});
  while (!s.quiet()) EXPECT_EQ(s.out().header.options.sack_count, 0);
  EXPECT_EQ(s.count("tcp.sack.duplicate_out"), 0U);
}

}  // namespace
}  // namespace nobounce::test
