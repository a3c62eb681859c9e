// Segment arrival by state: T-2, T-5, T-18..T-23, T-27, C015, C055.
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

constexpr uint32_t kWindow = 65535;  // what is open at the start: buffer 65535, no scaling

ScriptOptions small_buffer() {
  ScriptOptions options;
  options.connection.receive_buffer = kWindow;
  return options;
}

const std::vector<std::string> kStates = {"ESTABLISHED", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT",
                                          "CLOSING",     "LAST-ACK",   "TIME-WAIT"};

// Brings a connection there; output dropped. Peer's next number is returned in `peer`, ours in `us`.
struct InState {
  explicit InState(const std::string& wanted) : script(small_buffer()) {
    script.accept();
    if (wanted == "FIN-WAIT-1" || wanted == "FIN-WAIT-2" || wanted == "CLOSING" ||
        wanted == "TIME-WAIT") {
      script.tcp->shutdown_send(*script.connection);
      script.pump();
      us = 2;
    }
    if (wanted == "FIN-WAIT-2" || wanted == "TIME-WAIT") script.in(kA, 1, 2);
    if (wanted == "CLOSE-WAIT" || wanted == "LAST-ACK" || wanted == "TIME-WAIT") {
      script.in(kTcpFin | kA, 1, us);
      peer = 2;
    }
    if (wanted == "CLOSING") {
      script.in(kTcpFin | kA, 1, 1);  // our FIN is not acknowledged
      peer = 2;
      acked = 1;
    }
    if (wanted == "LAST-ACK") {
      script.tcp->shutdown_send(*script.connection);
      script.pump();
      us = 2;
      acked = 1;
    }
    if (wanted == "FIN-WAIT-1") acked = 1;
    if (acked == 0) acked = us;
    script.drop_output();
    EXPECT_EQ(script.state(), wanted);
    script.advance(kNsPerSecond / 100);  // past nothing but the moment
    script.drop_output();
  }
  Script script;
  uint32_t us = 1;     // our SND.NXT
  uint32_t acked = 0;  // an ACK that changes nothing
  uint32_t peer = 1;   // our RCV.NXT
};

TEST(TcpState, T20_C015_reset_exact_in_window_outside_by_state) {
  for (const std::string& state : kStates) {
    SCOPED_TRACE(state);
    const bool time_wait = state == "TIME-WAIT";
    {
      InState s(state);  // exact: reset, silently (T-23: ignored in TIME-WAIT)
      s.script.in(kTcpRst, s.peer, 0);
      EXPECT_TRUE(s.script.quiet());
      EXPECT_EQ(s.script.state(), time_wait ? "TIME-WAIT" : "CLOSED");
      EXPECT_EQ(s.script.recorder().closed, 1);
      EXPECT_EQ(s.script.recorder().reason, time_wait ? std::errc{} : std::errc::connection_reset);
    }
    {
      InState s(state);  // in the window: one challenge ACK
      s.script.in(kTcpRst, s.peer + 1, 0);
      s.script.in(kTcpRst, s.peer + 100, 0);
      EXPECT_EQ(s.script.state(), state);
      if (time_wait) {
        EXPECT_TRUE(s.script.quiet());
      } else {
        EXPECT_EQ(s.script.pending(), 1U);
        const Out challenge = s.script.out();
        EXPECT_EQ(challenge.header.flags, kA);
        EXPECT_EQ(s.script.seq(challenge), s.us);
        EXPECT_EQ(s.script.ack(challenge), s.peer);
        s.script.advance(600 * kMilli);
        s.script.drop_output();
        s.script.in(kTcpRst, s.peer + 1, 0);
        EXPECT_EQ(s.script.pending(), 1U);
      }
    }
    for (const uint32_t outside : {0xffffffffu, kWindow, kWindow + 1, 0x80000000u}) {
      InState s(state);  // outside: silence
      s.script.in(kTcpRst, s.peer + outside, 0);
      EXPECT_TRUE(s.script.quiet());
      EXPECT_EQ(s.script.state(), state);
    }
    for (const uint32_t where : {0u, 1u, 100u, kWindow + 5, 0x80000000u}) {
      InState s(state);  // SYN anywhere: one challenge ACK
      s.script.in(kTcpSyn | kA, s.peer + where, s.acked);
      s.script.in(kTcpSyn | kA, s.peer + where, s.acked);
      EXPECT_EQ(s.script.pending(), 1U);
      EXPECT_EQ(s.script.out().header.flags, kA);
      EXPECT_EQ(s.script.state(), state);
    }
  }
}

TEST(TcpState, T5_all_flag_combinations_in_all_states_survive) {
  for (const std::string& state : kStates) {
    for (unsigned flags = 0; flags < 64; ++flags) {
      SCOPED_TRACE(testing::Message() << state << " flags " << flags);
      InState s(state);
      s.script.in(static_cast<uint8_t>(flags), s.peer, s.acked, {.payload = 3});
      const bool rst = (flags & kTcpRst) != 0;
      while (!s.script.quiet()) {
        const Out o = s.script.out();
        EXPECT_FALSE(rst) << "answered a RST";
        EXPECT_FALSE(o.has(kTcpRst));
      }
      if ((flags & (kTcpAck | kTcpRst | kTcpSyn)) == 0) {  // nothing of it counts
        EXPECT_EQ(s.script.state(), state);
        EXPECT_EQ(s.script.read(), 0U);
      }
    }
  }
}

TEST(TcpState, T18_acceptability_edges) {
  struct Case {
    uint32_t offset;  // from RCV.NXT
    size_t payload;
    bool taken;  // some of it gets in
  };
  for (const Case& c :
       {Case{0xffffffff, 0, false}, Case{0, 0, true}, Case{kWindow - 1, 0, true},
        Case{kWindow, 0, false}, Case{kWindow + 1, 0, false}, Case{0xffffffff, 1, false},
        Case{0xffffffff, 2, true}, Case{kWindow - 1, 2, true}, Case{kWindow, 2, false},
        Case{0x7fffffff, 1, false}, Case{0x80000000, 1, false}}) {
    SCOPED_TRACE(testing::Message() << c.offset << "+" << c.payload);
    InState s("ESTABLISHED");
    s.script.in(kA, s.peer + c.offset, 1, {.payload = c.payload});
    EXPECT_EQ(s.script.count("tcp.drop.unacceptable"), c.taken ? 0U : 1U);
    if (!c.taken) {
      ASSERT_EQ(s.script.pending(), 1U);
      const Out answer = s.script.out();
      EXPECT_EQ(answer.header.flags, kA);
      EXPECT_EQ(s.script.ack(answer), s.peer);
    }
  }
}

TEST(TcpState, T20_ack_outside_what_was_sent_is_challenged_and_its_data_dropped) {
  for (const uint32_t ack : {2u, 1000u, 0x7fffffffu, 1u - 65536u, 0x80000001u}) {
    SCOPED_TRACE(ack);
    InState s("ESTABLISHED");
    s.script.in(kA, 1, ack, {.payload = 10});
    EXPECT_EQ(s.script.read(), 0U);
    ASSERT_EQ(s.script.pending(), 1U);
    EXPECT_EQ(s.script.ack(s.script.out()), 1U);
  }
  InState s("ESTABLISHED");  // an old ACK within the window: data is taken
  s.script.in(kA, 1, 0, {.payload = 10});
  EXPECT_EQ(s.script.read(), 10U);
}

TEST(TcpState, T22_no_connection_resets_by_rule) {
  Script script;
  script.our_isn = 0;
  script.options.peer_isn = 0;
  script.send_raw(kA, 100, 777, {.payload = 5});
  Out reset = script.out();
  EXPECT_EQ(reset.header.flags, kTcpRst);
  EXPECT_EQ(reset.header.sequence, 777U);
  script.send_raw(kTcpSyn, 100, 0);
  reset = script.out();
  EXPECT_EQ(reset.header.flags, kTcpRst | kA);
  EXPECT_EQ(reset.header.sequence, 0U);
  EXPECT_EQ(reset.header.acknowledgement, 101U);  // C057: seq + 1
  script.send_raw(kTcpSyn | kTcpFin, 100, 0, {.payload = 7});
  EXPECT_EQ(script.out().header.acknowledgement, 109U);
  script.send_raw(kTcpRst, 100, 0);
  script.send_raw(kTcpRst | kA, 100, 5);
  EXPECT_TRUE(script.quiet());
  for (int i = 0; i < 3000; ++i) {
    script.queue_raw(kA, 1, 1, {});
    if (i % 60 == 0) script.pump();
  }
  script.pump();
  EXPECT_LE(script.pending(), 1000U);
  EXPECT_GT(script.count("tcp.limit.resets"), 1000U);
}

TEST(TcpState, T1_bad_checksum_and_T2_bad_offset_are_dropped_silently) {
  InState s("ESTABLISHED");
  s.script.in(kA, 1, 1, {.payload = 9, .bad_checksum = true});
  EXPECT_EQ(s.script.count("tcp.drop.bad_checksum"), 1U);
  for (const int offset : {0, 1, 4, 15}) {
    ByteVector bytes(20 + 8);
    TcpHeader header;
    header.source_port = s.script.peer_port;
    header.destination_port = s.script.our_port;
    header.sequence = s.script.options.peer_isn + 1;
    header.acknowledgement = s.script.our_isn + 1;
    header.flags = kA;
    header.emit(bytes);
    store_be<uint8_t>(bytes, 12, static_cast<uint8_t>(offset << 4));
    s.script.queue_tcp(bytes);
    s.script.pump();
  }
  EXPECT_EQ(s.script.count("tcp.drop.bad_header"), 4U);
  EXPECT_TRUE(s.script.quiet());
  EXPECT_EQ(s.script.read(), 0U);
}

TEST(TcpState, T27_urgent_data_stays_in_line) {
  InState s("ESTABLISHED");
  s.script.in(kA | kTcpUrg, 1, 1, {.payload = 9});
  EXPECT_EQ(s.script.read(), 9U);
}

// Two stacks that disagree about everything fall silent.
TEST(TcpState, C055_T21_ack_loops_die) {
  InState s("ESTABLISHED");
  size_t answers = 0;
  for (int i = 0; i < 1000; ++i) {
    s.script.in(kA, s.peer + 70'000, 5'000);  // a stale ACK, as often as we answer and more
    answers += s.script.pending();
    s.script.drop_output();
    s.script.advance(kMilli);
  }
  EXPECT_LE(answers, 3U);
  EXPECT_GT(s.script.count("tcp.challenge_suppressed"), 900U);
}

}  // namespace
}  // namespace nobounce::test
