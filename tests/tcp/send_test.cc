// The send side: C003, C005, C006, C008, T-31, T-33..T-37, T-43, T-44, T-48, T-64, C128.
#include "tcp/pair.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

// RTT of the handshake is 0, so the RTO is its minimum, 200 ms.
ScriptOptions with_window(uint16_t window) {
  ScriptOptions options;
  options.peer_window = window;
  return options;
}

TEST(TcpSend, T33_T44_initial_window_is_ten_segments_psh_on_the_last) {
  Script script;
  script.accept();
  script.write(30 * 1460);
  ASSERT_EQ(script.pending(), 10U);
  for (uint32_t i = 0; i < 10; ++i) {
    const Out o = script.out();
    EXPECT_EQ(script.seq(o), 1 + i * 1460);
    EXPECT_EQ(o.size, 1460U);
    EXPECT_FALSE(o.has(kTcpPsh));
  }
  script.in(kA, 1, 1 + 2 * 1460);  // slow start: two more than acknowledged
  EXPECT_EQ(script.pending(), 4U);
  while (!script.quiet()) (void)script.out();
  for (uint32_t acked = 4; acked <= 30; acked += 2) script.in(kA, 1, 1 + acked * 1460);
  Out last = script.out();
  while (!script.quiet()) last = script.out();
  EXPECT_TRUE(last.has(kTcpPsh));
  EXPECT_EQ(script.seq(last), 1 + 29 * 1460U);
  EXPECT_EQ(script.recorder().acked, 30 * 1460U);
}

TEST(TcpSend, gso_when_the_device_offers_it) {
  ScriptOptions options;
  options.features = {.tx_checksum = true, .tso4 = true};
  Script script(options);
  script.accept();
  script.write(8 * 1460 + 7);
  ASSERT_EQ(script.pending(), 1U);
  EXPECT_EQ(script.out().size, 8 * 1460U + 7);
  script.write(1460 + 7);
  EXPECT_EQ(script.out().size, 1460U);  // whole segments; the short tail waits (Nagle)
  script.in(kA, 1, 1 + 9 * 1460 + 7);
  EXPECT_EQ(script.out().size, 7U);
}

TEST(TcpSend, T33_nagle_and_nodelay_and_more) {
  Script script;
  script.accept();
  script.write(10);
  EXPECT_EQ(script.out().size, 10U);  // nothing outstanding
  script.write(20);
  script.write(30);
  EXPECT_TRUE(script.quiet());
  script.in(kA, 1, 11);
  EXPECT_EQ(script.out().size, 50U);  // joined
  script.in(kA, 1, 61);
  tcp::ConnectionOptions options;
  options.nodelay = true;
  script.tcp->set_options(*script.connection, options);
  script.write(1);
  script.write(2);
  EXPECT_EQ(script.out().size, 1U);
  EXPECT_EQ(script.out().size, 2U);
  script.in(kA, 1, 64);
  const uint64_t start = script.clock.now_ns();
  script.write(100, true);  // more to come
  EXPECT_TRUE(script.quiet());
  script.advance(kNsPerSecond);
  const Out held = script.out();  // but not for ever
  EXPECT_EQ(held.at_ns - start, 200 * kMilli);
  EXPECT_EQ(held.size, 100U);
}

TEST(TcpSend, C003_T31_zero_window_probes_double_to_a_cap_and_never_give_up_while_answered) {
  Script script(with_window(1460));
  script.accept();
  script.write(5000);
  EXPECT_EQ(script.out().size, 1460U);
  script.in(kA, 1, 1461, {.window = 0});
  uint64_t last = script.clock.now_ns();
  uint64_t gap_before = 0;
  uint64_t expected = 200 * kMilli;
  for (int i = 0; i < 100; ++i) {  // more than an hour
    while (script.quiet()) script.advance(10 * kMilli);
    const Out probe = script.out();
    EXPECT_TRUE(probe.has(kTcpAck));
    EXPECT_EQ(probe.size, 0U);
    EXPECT_EQ(script.seq(probe), 1460U);  // SND.UNA - 1
    const uint64_t gap = probe.at_ns - last;
    EXPECT_EQ(gap, expected);
    EXPECT_GE(gap, gap_before);
    gap_before = gap;
    last = probe.at_ns;
    expected = std::min(expected * 2, 60 * kNsPerSecond);
    script.in(kA, 1, 1461, {.window = 0});
  }
  EXPECT_EQ(script.state(), "ESTABLISHED");
  script.in(kA, 1, 1461, {.window = 65535});
  EXPECT_EQ(script.out().size, 1460U);
}

TEST(TcpSend, T31_T36_unanswered_probes_end_the_connection) {
  Script script(with_window(1460));
  script.accept();
  script.write(5000);
  script.in(kA, 1, 1461, {.window = 0});
  script.drop_output();
  script.advance(99 * kNsPerSecond);
  EXPECT_EQ(script.recorder().closed, 0);
  script.advance(3600 * kNsPerSecond);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
}

TEST(TcpSend, C005_window_smaller_than_the_head_segment) {
  for (const bool tso : {false, true}) {
    ScriptOptions options;
    if (tso) options.features = {.tx_checksum = true, .tso4 = true};
    Script script(options);
    script.accept();
    script.write(64 * 1024);
    script.drop_output();
    // All that is out is acknowledged; 100 bytes are offered, then silence.
    const auto sent = static_cast<uint32_t>(script.info().bytes_unacked);
    script.in(kA, 1, 1 + sent, {.window = 100});
    EXPECT_TRUE(script.quiet());
    const uint64_t start = script.clock.now_ns();
    script.advance(250 * kMilli);
    const Out forced = script.out();
    EXPECT_EQ(forced.at_ns - start, 200 * kMilli);
    EXPECT_EQ(forced.size, 100U);
    EXPECT_EQ(script.seq(forced), 1 + sent);
    script.in(kA, 1, 1 + sent + 100, {.window = 0});
    script.advance(kNsPerSecond);
    const Out probe = script.out();
    EXPECT_EQ(probe.size, 0U);
    EXPECT_EQ(script.seq(probe), sent + 100);
    script.drop_output();
    script.in(kA, 1, 1 + sent + 100, {.window = 65535});
    EXPECT_EQ(script.seq(script.out()), 1 + sent + 100);
  }
}

TEST(TcpSend, C006_T26_peer_shrinks_its_window) {
  ScriptOptions options;
  options.peer_syn.window_scale = 7;
  Script script(options);
  script.accept();
  script.in(kA, 1, 1, {.window = 4096});  // 512 KiB
  uint32_t acked = 1;
  // Open the congestion window to 256 KiB in flight.
  script.write(3 << 20);
  while (script.info().bytes_unacked < 256 * 1024) {
    acked += 2920;
    script.in(kA, 1, acked, {.window = 4096});
    script.drop_output();
  }
  uint32_t edge = acked + 4096 * 128;
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    const auto flight = static_cast<uint32_t>(script.info().bytes_unacked);
    acked += flight / 2;
    edge -= 64 * 1024;  // to the left
    const uint16_t window =
        edge > acked ? static_cast<uint16_t>((edge - acked) / 128) : uint16_t{0};
    const uint32_t next = acked + (flight - flight / 2);
    script.in(kA, 1, acked, {.window = window});
    const uint32_t shown_edge = acked + window * 128U;
    while (!script.quiet()) {
      const Out o = script.out();
      const bool is_new = static_cast<int32_t>(script.seq(o) - next) >= 0;
      if (is_new) {
        EXPECT_LE(script.seq(o) + o.size, shown_edge);
      }
    }
  }
  script.advance(kNsPerSecond);  // outstanding data is still sent again
  bool again = false;
  while (!script.quiet()) again |= script.seq(script.out()) == acked;
  EXPECT_TRUE(again);
  script.in(kA, 1, acked + static_cast<uint32_t>(script.info().bytes_unacked), {.window = 4096});
  EXPECT_FALSE(script.quiet());
  script.drop_output();
}

TEST(TcpSend, C008_T34_duplicates_do_not_move_the_timer_and_backoff_doubles) {
  Script script;
  script.accept();
  script.write(10 * 1460);
  script.drop_output();
  const uint64_t start = script.clock.now_ns();
  for (int i = 1; i <= 3; ++i) {  // one each 50 ms
    script.advance(50 * kMilli);
    script.in(kA, 1, 1);
  }
  const Out fast = script.out();  // the third one (T-43)
  EXPECT_EQ(script.seq(fast), 1U);
  EXPECT_EQ(fast.at_ns - start, 150 * kMilli);
  script.drop_output();
  std::vector<uint64_t> fired;
  script.advance(40 * kNsPerSecond);
  while (!script.quiet()) {
    const Out o = script.out();
    if (script.seq(o) == 1 && o.size > 0) fired.push_back((o.at_ns - start) / kMilli);
  }
  ASSERT_GE(fired.size(), 5U);
  // At the original deadline; then x, 2x, 4x, 8x, 16x apart.
  EXPECT_EQ(fired[0], 200U);
  EXPECT_EQ(fired[1] - fired[0], 400U);
  EXPECT_EQ(fired[2] - fired[1], 800U);
  EXPECT_EQ(fired[3] - fired[2], 1600U);
  EXPECT_EQ(fired[4] - fired[3], 3200U);
  script.in(kA, 1, 1461);  // new data acknowledged: the back-off is gone
  script.drop_output();
  const uint64_t again = script.clock.now_ns();
  script.advance(300 * kMilli);
  EXPECT_EQ(script.out().at_ns - again, 200 * kMilli);
}

TEST(TcpSend, T43_newreno_partial_acks_repair_one_hole_each) {
  Script script;
  script.accept();
  script.write(20 * 1460);
  script.drop_output();
  for (int i = 0; i < 3; ++i) script.in(kA, 1, 1);
  EXPECT_EQ(script.seq(script.out()), 1 + 10 * 1460U);  // limited transmit
  EXPECT_EQ(script.seq(script.out()), 1 + 11 * 1460U);
  EXPECT_EQ(script.seq(script.out()), 1U);
  EXPECT_EQ(script.info().slow_start_threshold, 6 * 1460U);  // half of 12
  script.drop_output();
  script.in(kA, 1, 1 + 4 * 1460);  // partial: the next hole at once
  EXPECT_EQ(script.seq(script.out()), 1 + 4 * 1460U);
  script.drop_output();
  script.in(kA, 1, 1 + 12 * 1460);  // all that was out: recovery is over
  EXPECT_LE(script.info().congestion_window, 6 * 1460U);
  script.drop_output();
}

TEST(TcpSend, T43_duplicates_are_strict) {
  Script script;
  script.accept();
  script.write(10 * 1460);
  script.drop_output();
  for (uint16_t i = 0; i < 5; ++i) {
    script.in(kA, 1, 1, {.window = static_cast<uint16_t>(60000 + i)});  // window updates
  }
  for (uint32_t i = 0; i < 5; ++i) script.in(kA, 1 + i, 1, {.payload = 1});  // carry data
  EXPECT_EQ(script.count("tcp.fast_retransmits"), 0U);
  script.drop_output();
}

TEST(TcpSend, T36_silent_peer_ends_after_fifteen_sends) {
  Script script;
  script.accept();
  script.write(100);
  (void)script.out();
  script.advance(100 * kNsPerSecond);
  EXPECT_EQ(script.recorder().closed, 0);
  script.advance(3600 * kNsPerSecond);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_EQ(script.pending(), 15U);
  EXPECT_EQ(script.recorder().closed, 1);
}

TEST(TcpSend, T36_user_timeout) {
  ScriptOptions options;
  options.connection.user_timeout_ns = 5 * kNsPerSecond;
  Script script(options);
  script.accept();
  const uint64_t start = script.clock.now_ns();
  script.write(100);
  while (script.recorder().closed == 0) script.advance(10 * kMilli);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_NEAR(static_cast<double>(script.clock.now_ns() - start), 5e9, 2e7);
  script.drop_output();
}

TEST(TcpSend, T64_a_frozen_machine_does_not_abort) {
  ScriptOptions options;
  options.connection.user_timeout_ns = 30 * kNsPerSecond;
  options.connection.keepalive = true;
  Script script(options);
  script.accept();
  script.write(100);
  script.drop_output();
  script.clock.advance(7 * 86400 * kNsPerSecond);  // a week
  script.pump();
  EXPECT_EQ(script.recorder().closed, 0);
  EXPECT_EQ(script.pending(), 1U);  // one retransmission, one timer, once
  script.in(kA, 1, 101);
  EXPECT_EQ(script.recorder().acked, 100U);
  script.clock.advance(7 * 86400 * kNsPerSecond);
  script.pump();
  EXPECT_EQ(script.recorder().closed, 0);
  script.drop_output();
}

TEST(TcpSend, T34_T35_rtt_samples_in_numbers) {
  Script script;
  script.accept();
  uint32_t acked = 1;
  const auto exchange = [&](uint64_t ms) {
    script.write(100);
    script.drop_output();
    script.advance(ms * kMilli);
    acked += 100;
    script.in(kA, 1, acked);
  };
  // The handshake gave 0. Then SRTT = 7/8 SRTT + 1/8 R.
  exchange(80);
  EXPECT_EQ(script.info().smoothed_rtt_ns, 10 * kMilli);
  exchange(80);
  EXPECT_EQ(script.info().smoothed_rtt_ns, 18'750'000U);
  // RTTVAR: 0 -> 20 -> 15 + 70/4 = 32.5 ms; RTO = 18.75 + 130 ms < the minimum.
  EXPECT_EQ(script.info().rto_ns, 200 * kMilli);
  exchange(150);
  EXPECT_GT(script.info().rto_ns, 200 * kMilli);
  // Karn: a retransmitted segment gives none.
  const uint64_t before = script.info().smoothed_rtt_ns;
  exchange(700);
  EXPECT_EQ(script.info().smoothed_rtt_ns, before);
  script.drop_output();
}

// The second segment arrived at once, but is acknowledged only with the first, that went again.
TEST(TcpSend, T34_T35_what_waited_behind_a_hole_gives_no_sample) {
  Script script;
  script.accept();
  script.write(2 * 1460);
  script.drop_output();
  script.advance(250 * kMilli);
  EXPECT_EQ(script.seq(script.out()), 1U);
  script.in(kA, 1, 1 + 2 * 1460);
  EXPECT_EQ(script.info().smoothed_rtt_ns, 0U);
}

TEST(TcpSend, T37_after_a_timeout_all_goes_again_in_slow_start) {
  Script script;
  script.accept();
  script.write(10 * 1460);
  script.drop_output();
  script.advance(200 * kMilli);
  EXPECT_EQ(script.seq(script.out()), 1U);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.info().congestion_window, 1460U);
  script.in(kA, 1, 1461);
  EXPECT_EQ(script.seq(script.out()), 1461U);
  EXPECT_EQ(script.seq(script.out()), 2921U);
  EXPECT_TRUE(script.quiet());
  script.in(kA, 1, 1 + 10 * 1460);  // the rest had arrived
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().acked, 10 * 1460U);
}

TEST(TcpSend, T44_idle_restart_and_no_growth_when_the_application_is_slow) {
  Script script;
  script.accept();
  uint32_t acked = 1;
  for (int i = 0; i < 50; ++i) {
    script.write(100);
    acked += 100;
    script.in(kA, 1, acked);
  }
  EXPECT_EQ(script.info().congestion_window, 10 * 1460U);  // RFC 7661
  script.drop_output();
}

TEST(TcpSend, T48_split_and_optimistic_acks_gain_nothing) {
  Script script;
  script.accept();
  script.write(40 * 1460);
  script.drop_output();
  for (uint32_t i = 1; i <= 1460; i += 10) script.in(kA, 1, 1 + i);
  EXPECT_LE(script.info().congestion_window, 11 * 1460U + 10);
  const uint32_t before = script.info().congestion_window;
  script.in(kA, 1, 1 + 39 * 1460);  // not yet sent
  EXPECT_EQ(script.info().congestion_window, before);
  script.drop_output();
}

TEST(TcpSend, output_blocked_is_tried_again) {
  Script script;
  script.accept();
  script.device.set_room(0);
  for (int i = 0; i < 20; ++i) script.write(7 * 1460);
  EXPECT_TRUE(script.quiet());
  script.device.set_room(4096);
  script.advance(2 * kNsPerSecond);
  EXPECT_FALSE(script.quiet());
  std::vector<bool> seen(150);
  uint32_t acked = 1;
  for (int rounds = 0; rounds < 300 && acked < 1 + 140 * 1460; ++rounds) {
    while (!script.quiet()) {
      const Out o = script.out();
      if (script.seq(o) == acked) acked += static_cast<uint32_t>(o.size);
    }
    script.in(kA, 1, acked);
    script.advance(250 * kMilli);
  }
  EXPECT_EQ(script.recorder().acked, 140 * 1460U);
  script.drop_output();
}

TEST(TcpSend, send_refuses_cleanly_when_packets_are_used_up) {
  ScriptOptions options;
  options.packets = 64;
  Script script(options);
  script.accept();
  const ByteVector data(100'000, std::byte{1});
  int taken = 0;
  for (;;) {
    const Frag frag = script.end.make_frag(data);
    if (!script.tcp->send(*script.connection, frag, false)) {
      page_return(*frag.page);
      break;
    }
    ++taken;
  }
  EXPECT_GT(taken, 10);
  EXPECT_GT(script.count("tcp.no_packet"), 0U);
}

// C128: both sides write and nobody reads; the connection stays, quietly; then all arrives.
TEST(TcpSend, C128_C055_both_write_before_they_read) {
  PairOptions options;
  options.wire.delay_ns = kNsPerMs;
  Pair pair(options);
  tcp::ConnectionOptions small;
  small.receive_buffer = 100'000;
  Transfer transfer(pair, 400'000, 400'000, small, small);
  transfer.client.reading = transfer.server.reading = false;
  ASSERT_FALSE(transfer.run(10 * kNsPerSecond));
  const uint64_t before = pair.link.facts.frames;
  EXPECT_FALSE(transfer.run(600 * kNsPerSecond));
  EXPECT_LT(pair.link.facts.frames - before, 120U);  // 60 s apart in the end, both ways
  EXPECT_EQ(transfer.client.closed, 0);
  EXPECT_EQ(transfer.server.closed, 0);
  transfer.client.reading = transfer.server.reading = true;
  transfer.client.read();
  transfer.server.read();
  ASSERT_TRUE(transfer.run(300 * kNsPerSecond));
  transfer.expect_complete();
  pair.run(100 * kNsPerSecond);
}

}  // namespace
}  // namespace nobounce::test
