// A link that goes down and comes back: nothing counts but time, and then all speak at once.
// virtio.md 13, C058; T-36, T-60.
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

constexpr uint64_t kMinute = 60 * kNsPerSecond;

// What is sent is lost for as long as the link is down.
void down(Script& script) {
  script.device.set_link_up(false);
  script.tcp->link_down();
}
void up(Script& script) {
  script.device.set_link_up(true);
  script.drop_output();
  script.tcp->link_up();
  script.pump();
}

TEST(TcpLink, C058_nothing_is_sent_again_while_it_is_down_and_all_of_it_when_it_is_back) {
  Script script;
  script.accept();
  script.write(5 * 1460);
  script.drop_output();
  down(script);
  script.advance(10 * kMinute);  // C113
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().closed, 0);
  up(script);
  ASSERT_EQ(script.pending(), 5U);  // at once, within the restart window
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(script.seq(script.out()), 1 + i * 1460);
  script.in(kA, 1, 1 + 5 * 1460);
  EXPECT_EQ(script.recorder().acked, 5 * 1460U);
  EXPECT_TRUE(script.quiet());
}

TEST(TcpLink, C058_time_outs_start_afresh_when_it_is_back) {
  Script script;
  script.accept();
  script.write(100);
  down(script);
  script.advance(5 * kMinute);
  up(script);
  script.drop_output();
  script.advance(200 * kMilli);  // RTT 0: the minimum, without back-off
  EXPECT_EQ(script.pending(), 1U);
  script.drop_output();
}

// Loss by a link that was down says nothing about congestion.
TEST(TcpLink, the_congestion_window_restarts_and_the_threshold_stays) {
  Script script;
  script.accept();
  for (uint32_t sent = 0; sent < 40; sent += 10) {
    script.write(10 * 1460);
    script.in(kA, 1, 1 + (sent + 10) * 1460);
  }
  const auto before = script.info();
  script.write(20 * 1460);
  down(script);
  script.advance(kMinute);
  up(script);
  EXPECT_EQ(script.info().slow_start_threshold, before.slow_start_threshold);
  EXPECT_EQ(script.info().congestion_window, 10 * 1460U);
  script.drop_output();
}

TEST(TcpLink, T36_retries_before_and_after_count_but_not_those_between) {
  Script script;
  script.accept();
  script.write(100);
  script.advance(3 * kNsPerSecond);
  down(script);
  script.advance(60 * kMinute);
  up(script);
  EXPECT_EQ(script.recorder().closed, 0);
  const uint64_t start = script.clock.now_ns();
  while (script.recorder().closed == 0) script.advance(kNsPerSecond);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_GE(script.clock.now_ns() - start, 100 * kNsPerSecond);  // R2
  script.drop_output();
}

TEST(TcpLink, T36_a_user_time_out_is_time) {
  ScriptOptions options;
  options.connection.user_timeout_ns = 5 * kNsPerSecond;
  Script script(options);
  script.accept();
  down(script);
  const uint64_t start = script.clock.now_ns();
  script.write(100);
  while (script.recorder().closed == 0) script.advance(10 * kMilli);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_NEAR(static_cast<double>(script.clock.now_ns() - start), 5e9, 2e7);
  script.drop_output();
}

TEST(TcpLink, an_opening_waits_three_minutes_and_goes_on_when_the_link_is_back) {
  for (const bool comes_back : {true, false}) {
    Script script;
    script.start_connect();
    down(script);
    script.advance(2 * kMinute);
    EXPECT_TRUE(script.quiet());
    EXPECT_EQ(script.recorder().closed, 0);
    if (comes_back) {
      up(script);
      EXPECT_EQ(script.out().header.flags, kTcpSyn);
      script.in(kTcpSyn | kA, 0, 1, {.options = only_mss(1460)});
      EXPECT_EQ(script.state(), "ESTABLISHED");
    } else {
      script.advance(3 * kMinute);
      EXPECT_EQ(script.recorder().closed, 1);
      EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
    }
    script.drop_output();
  }
}

// Who has nothing to send acknowledges: a window update may have been lost.
TEST(TcpLink, an_idle_connection_tells_its_window) {
  Script script;
  script.accept();
  script.in(kA, 1, 1, {.payload = 1000});
  script.advance(kNsPerSecond);
  script.drop_output();
  down(script);
  (void)script.read();
  up(script);
  ASSERT_EQ(script.pending(), 1U);
  const Out ack = script.out();
  EXPECT_EQ(ack.size, 0U);
  EXPECT_EQ(script.ack(ack), 1001U);
}

TEST(TcpLink, T61_keepalive_probes_that_nobody_could_hear_are_not_counted) {
  ScriptOptions options;
  options.connection.keepalive = true;
  options.connection.keepalive_idle_ns = 10 * kNsPerSecond;
  options.connection.keepalive_interval_ns = kNsPerSecond;
  options.connection.keepalive_probes = 3;
  Script script(options);
  script.accept();
  down(script);
  script.advance(10 * kMinute);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().closed, 0);
  up(script);
  script.drop_output();
  script.advance(2 * kNsPerSecond);
  EXPECT_GE(script.pending(), 1U);
  script.in(kA, 1, 1);
  EXPECT_EQ(script.recorder().closed, 0);
  script.drop_output();
}

TEST(TcpLink, T60_nobodys_connection_does_not_wait_for_ever) {
  Script script;
  script.accept();
  script.write(100);
  down(script);
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.advance(5 * kMinute);
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.drop_output();
}

TEST(TcpLink, a_zero_window_is_probed_afresh) {
  Script script;
  script.accept();
  script.in(kA, 1, 1, {.window = 0});
  script.write(100);
  down(script);
  script.advance(10 * kMinute);
  EXPECT_TRUE(script.quiet());
  up(script);
  script.drop_output();
  script.advance(300 * kMilli);
  EXPECT_EQ(script.pending(), 1U);  // not a minute later
  script.in(kA, 1, 1, {.window = 1000});
  script.drop_output();
}

}  // namespace
}  // namespace nobounce::test
