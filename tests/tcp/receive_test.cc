// The receive side: C011, T-24, T-26, T-28..T-30, T-32, T-39 (blocks we send), T-50, T-51, C085.
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

ByteVector pattern(uint32_t from, size_t bytes) {
  ByteVector v(bytes);
  for (size_t i = 0; i < bytes; ++i) v[i] = static_cast<std::byte>((from + i) * 7);
  return v;
}

TEST(TcpReceive, T28_delayed_ack_and_every_second_segment) {
  Script script;
  script.accept();
  const uint64_t start = script.clock.now_ns();
  script.in(kA, 1, 1, {.payload = 1000});
  EXPECT_TRUE(script.quiet());
  script.advance(100 * kMilli);
  const Out late = script.out();
  EXPECT_EQ(late.at_ns - start, 40 * kMilli);
  EXPECT_EQ(script.ack(late), 1001U);
  script.in(kA, 1001, 1, {.payload = 1000});
  EXPECT_TRUE(script.quiet());
  script.in(kA, 2001, 1, {.payload = 1000});
  EXPECT_EQ(script.ack(script.out()), 3001U);
  script.advance(kNsPerSecond);
  EXPECT_TRUE(script.quiet());
}

TEST(TcpReceive, T29_one_ack_a_burst) {
  Script script;
  script.accept();
  for (uint32_t i = 0; i < 20; ++i) script.queue(kA, 1 + i * 1000, 1, {.payload = 1000});
  script.pump();
  EXPECT_EQ(script.pending(), 1U);
  EXPECT_EQ(script.ack(script.out()), 20'001U);
}

TEST(TcpReceive, T28_immediate_ack_on_gap_fill_duplicate_and_fin) {
  Script script;
  script.accept();
  script.in(kA, 1001, 1, {.payload = 1000});  // out of order
  EXPECT_EQ(script.ack(script.out()), 1U);
  script.in(kA, 1, 1, {.payload = 1000});  // fills
  EXPECT_EQ(script.ack(script.out()), 2001U);
  script.in(kA, 1, 1, {.payload = 1000});  // duplicate
  EXPECT_EQ(script.ack(script.out()), 2001U);
  script.in(kTcpFin | kA, 2001, 1);
  EXPECT_EQ(script.ack(script.out()), 2002U);
}

TEST(TcpReceive, C011_T56_fin_before_its_data) {
  for (const size_t fin_payload : {0u, 200u}) {
    Script script;
    script.accept();
    script.in(kTcpFin | kA, 1001, 1, {.payload = fin_payload});
    EXPECT_EQ(script.state(), "ESTABLISHED");
    EXPECT_EQ(script.ack(script.out()), 1U);
    EXPECT_EQ(script.read(), 0U);
    EXPECT_FALSE(script.tcp->at_end(*script.connection));
    script.in(kA, 1, 1, {.payload = 1000});
    EXPECT_EQ(script.state(), "CLOSE-WAIT");
    EXPECT_EQ(script.ack(script.out()), 1001U + fin_payload + 1);
    EXPECT_FALSE(script.tcp->at_end(*script.connection));
    EXPECT_EQ(script.read(), 1000U + fin_payload);
    EXPECT_TRUE(script.tcp->at_end(*script.connection));
  }
}

TEST(TcpReceive, T24_overlaps_keep_the_first_copy) {
  Script script;
  script.accept();
  script.in(kA, 11, 1, {.bytes = ByteVector(10, std::byte{2})});
  script.in(kA, 6, 1, {.bytes = ByteVector(20, std::byte{3})});  // around it
  script.in(kA, 1, 1, {.bytes = ByteVector(30, std::byte{1})});  // around all
  EXPECT_EQ(script.read(), 30U);
  for (uint32_t at = 1; at <= 30; ++at) {
    const int first = at >= 11 && at <= 20 ? 2 : at >= 6 && at <= 25 ? 3 : 1;
    EXPECT_EQ(std::to_integer<int>(script.received[at - 1]), first) << at;
  }
}

TEST(TcpReceive, T24_random_permutations_with_overlaps_are_the_stream) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Script script;
    script.accept();
    SeededRandom random(seed);
    constexpr uint32_t kTotal = 40'000;
    while (script.received.size() < kTotal) {
      const auto have = static_cast<uint32_t>(script.received.size());
      const uint32_t back = std::min(have, random.below(500));
      uint32_t from = have - back + random.below(3000);
      if (random.below(10) == 0) from = have;
      const uint32_t size = std::min(1 + random.below(1400), kTotal > from ? kTotal - from : 0);
      if (size == 0) continue;
      script.queue(kA, 1 + from, 1, {.bytes = pattern(from, size)});
      if (random.below(3) == 0) {
        script.pump();
        script.read();
      }
    }
    EXPECT_EQ(script.received, pattern(0, kTotal));
    script.drop_output();
  }
}

TEST(TcpReceive, T24_out_of_order_is_bounded_and_cheap) {
  ScriptOptions options;
  options.layer.out_of_order_max = 64;
  options.connection.receive_buffer = 1 << 20;
  options.peer_syn.window_scale = 7;
  Script script(options);
  script.accept();
  SeededRandom random(5);
  for (int i = 0; i < 100'000; ++i) {  // SegmentSmack
    script.queue(kA, 10 + 2 * random.below(30'000), 1, {.payload = 1});
    if (i % 60 == 59) {
      script.pump();
      script.drop_output();
    }
  }
  script.pump();
  EXPECT_LE(script.end.packets.in_use(), 70U);
  EXPECT_GT(script.count("tcp.limit.out_of_order"), 1000U);
}

TEST(TcpReceive, T39_sack_blocks_newest_first) {
  ScriptOptions options;
  options.peer_syn.sack_permitted = true;
  Script script(options);
  script.accept();
  script.in(kA, 1001, 1, {.payload = 100});
  script.in(kA, 2001, 1, {.payload = 100});
  script.in(kA, 3001, 1, {.payload = 100});
  script.in(kA, 2101, 1, {.payload = 50});
  (void)script.out();
  (void)script.out();
  (void)script.out();
  const Out last = script.out();
  ASSERT_EQ(last.header.options.sack_count, 3);
  const auto& sack = last.header.options.sack;
  EXPECT_EQ(sack[0].left - script.options.peer_isn, 2001U);
  EXPECT_EQ(sack[0].right - script.options.peer_isn, 2151U);
  EXPECT_EQ(sack[1].left - script.options.peer_isn, 3001U);
  EXPECT_EQ(sack[2].left - script.options.peer_isn, 1001U);
  script.in(kA, 1, 1, {.payload = 1000});
  const Out filled = script.out();
  EXPECT_EQ(script.ack(filled), 1101U);
  EXPECT_EQ(filled.header.options.sack_count, 2);
}

TEST(TcpReceive, T39_no_blocks_unless_permitted) {
  Script script;
  script.accept();
  script.in(kA, 1001, 1, {.payload = 100});
  EXPECT_EQ(script.out().header.options.sack_count, 0);
}

TEST(TcpReceive, T26_T30_window_right_edge_never_moves_left_and_grows_by_segments) {
  ScriptOptions options;
  options.connection.receive_buffer = 100'001;  // not a multiple of the scale
  options.peer_syn.window_scale = 0;
  Script script(options);
  script.accept();
  SeededRandom random(3);
  uint32_t seq = 1;
  uint32_t edge = 0;
  for (int i = 0; i < 3000; ++i) {
    const uint32_t window = script.info().receive_window;
    const auto size = static_cast<uint32_t>(std::min<uint32_t>(1 + random.below(1400), window));
    if (size > 0) {
      script.in(kA, seq, 1, {.payload = size});
      seq += size;
    }
    script.read(random.below(3) == 0 ? 1 + random.below(3000) : 1);
    script.advance(50 * kMilli);
    while (!script.quiet()) {
      const Out o = script.out();
      const uint32_t now_edge = script.ack(o) + (uint32_t{o.header.window} << 1);
      EXPECT_GE(static_cast<int32_t>(now_edge - edge), 0);
      // Not by crumbs: a segment, or what keeping the edge costs in rounding.
      if (edge != 0 && now_edge - edge > 1) {
        EXPECT_GE(now_edge - edge, 1460U - 1);
      }
      edge = now_edge;
    }
  }
  EXPECT_GT(edge, 200'000U);
}

// A window that is rounded up at each ACK must not let a peer of one-byte segments fill us for ever,
// and each of them pins a page.
TEST(TcpReceive, T26_T63_crumbs_do_not_outgrow_the_buffer) {
  ScriptOptions options;
  options.connection.receive_buffer = 200'000;
  options.peer_syn.window_scale = 0;
  Script script(options);
  script.accept();
  const uint64_t pages = script.end.arena->pages_free();
  uint32_t seq = 1;
  for (int i = 0; i < 20'000; ++i) {
    script.queue(kA, seq++, 1, {.payload = 1});
    if (i % 60 == 59) {
      script.pump();
      script.drop_output();
    }
  }
  script.pump();
  EXPECT_GT(script.count("tcp.limit.receive_queue"), 0U);
  EXPECT_LE(pages - script.end.arena->pages_free(), 900U);  // 250,000 / 512 and 200,000 / 512
  script.read();
  EXPECT_LE(script.received.size(), 500U);
  script.drop_output();
  EXPECT_EQ(script.info().receive_window > 100'000, true);  // all of it is free again
}

TEST(TcpReceive, T30_T32_one_byte_reads_open_the_window_in_steps) {
  ScriptOptions options;
  options.connection.receive_buffer = 8000;
  Script script(options);
  script.accept();
  for (uint32_t i = 0; i < 8; ++i) script.in(kA, 1 + i * 1000, 1, {.payload = 1000});
  script.advance(100 * kMilli);
  Out last = script.out();
  while (!script.quiet()) last = script.out();
  EXPECT_EQ(last.header.window, 0);
  size_t updates = 0;
  for (int i = 0; i < 8000; ++i) {
    // Frags are handed out whole: consume their bytes one by one.
    static Frag frag;
    static uint32_t left = 0;
    if (left == 0) {
      if (!script.tcp->pop_received(*script.connection, frag)) break;
      left = frag.size;
    }
    script.tcp->consumed(*script.connection, 1);
    if (--left == 0) page_return(*frag.page);
    script.pump();
    while (!script.quiet()) {
      const Out update = script.out();
      EXPECT_GE(update.header.window, 2 * 1460);
      ++updates;
    }
  }
  EXPECT_GE(updates, 1U);
  EXPECT_LE(updates, 4U);
}

TEST(TcpReceive, T18_zero_window_still_takes_ack_and_rst) {
  ScriptOptions options;
  options.connection.receive_buffer = 4000;
  Script script(options);
  script.accept();
  script.write(100);
  (void)script.out();
  for (uint32_t i = 0; i < 4; ++i) script.in(kA, 1 + i * 1000, 1, {.payload = 1000});
  script.drop_output();
  EXPECT_EQ(script.info().receive_window, 0U);
  script.in(kA, 4001, 101, {.payload = 500});
  EXPECT_EQ(script.recorder().acked, 100U);
  EXPECT_EQ(script.ack(script.out()), 4001U);
  EXPECT_EQ(script.read(), 4000U);
  script.in(kTcpRst, 4001, 0);
  EXPECT_EQ(script.state(), "CLOSED");
}

TEST(TcpReceive, data_beyond_the_window_is_cut) {
  ScriptOptions options;
  options.connection.receive_buffer = 3000;
  Script script(options);
  script.accept();
  script.in(kA, 1, 1, {.payload = 1400});
  script.in(kA, 1401, 1, {.payload = 1400});
  script.in(kA, 2801, 1, {.payload = 1400});
  script.drop_output();
  EXPECT_EQ(script.read(), 3000U);
}

TEST(TcpReceive, in_order_crumbs_share_packets) {
  Script script;
  script.accept();
  for (uint32_t i = 0; i < 1800; ++i) script.in(kA, 1 + i, 1, {.payload = 1});
  EXPECT_LE(script.end.packets.in_use(), 110U);
  EXPECT_EQ(script.read(), 1800U);
  script.drop_output();
}

// ---- timestamps -------------------------------------------------------------------------------

struct Timestamped {
  explicit Timestamped(uint32_t start = 1000, uint64_t clock_ns = 10 * kNsPerSecond)
      : script([&] {
          ScriptOptions options;
          options.peer_syn.timestamps = {start, 0};
          options.start_ns = clock_ns;
          return options;
        }()) {
    value = start;
    script.listen();
    script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.options = script.options.peer_syn});
    const Out syn_ack = script.out();
    EXPECT_EQ(syn_ack.header.options.timestamps->echo, start);
    ours = syn_ack.header.options.timestamps->value;
    script.our_isn = syn_ack.header.sequence;
    in(1, 1, {}, start);
    script.connection = script.acceptor.connection;
    EXPECT_EQ(script.state(), "ESTABLISHED");
  }
  void in(uint32_t seq, uint32_t ack, In segment, uint32_t timestamp, uint8_t flags = kA) {
    segment.options.timestamps = {timestamp, ours};
    script.in(flags, seq, ack, segment);
  }
  Script script;
  uint32_t value = 0;
  uint32_t ours = 0;
};

TEST(TcpReceive, T50_every_segment_carries_a_timestamp_and_lacks_are_dropped) {
  Timestamped t;
  t.in(1, 1, {.payload = 10}, 1001);
  t.script.write(10);
  const Out data = t.script.out();
  ASSERT_TRUE(data.header.options.timestamps.has_value());
  EXPECT_EQ(data.header.options.timestamps->echo, 1001U);
  t.script.in(kA, 11, 11, {.payload = 10});
  EXPECT_EQ(t.script.read(), 10U);
  EXPECT_EQ(t.script.count("tcp.drop.no_timestamp"), 1U);
  t.script.in(kTcpRst, 11, 0);  // a RST needs none
  EXPECT_EQ(t.script.state(), "CLOSED");
}

TEST(TcpReceive, T50_recent_follows_only_what_was_acknowledged_in_order) {
  Timestamped t;
  t.in(1001, 1, {.payload = 10}, 1005);  // out of order: not taken over
  EXPECT_EQ(t.script.out().header.options.timestamps->echo, 1000U);
  t.in(1, 1, {.payload = 1000}, 1003);
  EXPECT_EQ(t.script.out().header.options.timestamps->echo, 1003U);
}

TEST(TcpReceive, T51_C085_paws_drops_old_and_survives_the_wrap) {
  Timestamped t(0xffffffff - 5);
  t.in(1, 1, {.payload = 10}, 0xffffffff);
  t.in(11, 1, {.payload = 10}, 3);  // wrapped: newer
  EXPECT_EQ(t.script.read(), 20U);
  t.script.drop_output();
  t.in(21, 1, {.payload = 10}, 0xfffffff0);  // older: dropped, answered
  EXPECT_EQ(t.script.read(), 0U);
  EXPECT_EQ(t.script.ack(t.script.out()), 21U);
  EXPECT_EQ(t.script.count("tcp.drop.paws"), 1U);
  t.script.advance(25ULL * 86400 * kNsPerSecond);  // 24 days idle: nothing to compare with
  t.in(21, 1, {.payload = 10}, 0xfffffff0);
  EXPECT_EQ(t.script.read(), 10U);
}

// C085: our own millisecond clock wraps 32 bits in mid-connection.
TEST(TcpReceive, C085_our_clock_wraps) {
  constexpr uint64_t kWrapNs = (uint64_t{1} << 32) * kNsPerMs;
  Timestamped t(1000, kWrapNs - 10 * kNsPerSecond);
  for (uint32_t i = 0; i < 40; ++i) {
    t.script.write(100);
    const Out data = t.script.out();
    t.ours = data.header.options.timestamps->value;
    t.script.advance(500 * kMilli - 300 * kMilli);
    t.script.drop_output();
    t.in(1 + i, 1 + 100 * (i + 1), {.payload = 1}, 1000 + i);
    t.script.advance(300 * kMilli);
    t.script.drop_output();
  }
  EXPECT_EQ(t.script.recorder().acked, 4000U);
  EXPECT_LT(t.script.info().smoothed_rtt_ns, kNsPerSecond);
  EXPECT_EQ(t.script.read(), 40U);
}

}  // namespace
}  // namespace nobounce::test
