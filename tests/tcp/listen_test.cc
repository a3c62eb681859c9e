// Both queues of a listener, full and not: T-15, T-16, T-22, T-58.
#include "tcp/pair.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

constexpr uint32_t kBacklog = 2;
constexpr uint64_t kCookieLifeMaxNs = 128 * kNsPerSecond;

TcpOptions all_options(uint32_t timestamp = 1000, uint32_t echo = 0) {
  TcpOptions options;
  options.mss = 1460;
  options.window_scale = 7;
  options.sack_permitted = true;
  options.timestamps = {timestamp, echo};
  return options;
}
TcpOptions only_timestamps(uint32_t timestamp, uint32_t echo) {
  TcpOptions options;
  options.timestamps = {timestamp, echo};
  return options;
}

// ---- the accept queue is full -------------------------------------------------------------------

TEST(TcpListen, T15_full_accept_queue_drops_syns_in_silence) {
  Script script;
  script.listen();
  script.acceptor.full = true;
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.tcp->connections(), 0U);
  EXPECT_EQ(script.count("tcp.drop.accept_queue_full.syn"), 1U);
  EXPECT_EQ(script.count("tcp.cookie.sent"), 0U);
  script.acceptor.full = false;
  script.accept();  // the peer's SYN comes again
}

TEST(TcpListen, T15_full_accept_queue_drops_the_final_ack_and_keeps_half_open) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  script.our_isn = script.out().header.sequence;
  script.acceptor.full = true;
  script.in(kA, 1, 1);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.acceptor.asked, 1);
  EXPECT_EQ(script.count("tcp.drop.accept_queue_full.ack"), 1U);
  EXPECT_EQ(script.tcp->connections(), 1U);
  script.acceptor.full = false;
  script.in(kA, 1, 1, {.payload = 5});  // the peer believes in it and sends
  script.connection = script.acceptor.connection;
  ASSERT_NE(script.connection, nullptr);
  EXPECT_EQ(script.read(), 5U);
}

TEST(TcpListen, T15_T16_our_syn_ack_again_brings_the_ack_of_a_silent_peer) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  script.our_isn = script.out().header.sequence;
  script.acceptor.full = true;
  script.in(kA, 1, 1);
  EXPECT_TRUE(script.quiet());
  script.acceptor.full = false;
  script.advance(kNsPerSecond);
  const Out again = script.out();
  EXPECT_EQ(again.header.flags, kTcpSyn | kA);
  EXPECT_EQ(script.seq(again), 0U);
  script.in(kA, 1, 1);
  script.connection = script.acceptor.connection;
  EXPECT_EQ(script.state(), "ESTABLISHED");
}

// ---- the queue of half-open connections is full -------------------------------------------------

class TcpCookie : public testing::Test {
 protected:
  explicit TcpCookie(const ScriptOptions& options = {}) : script(options) {
    script.listen(kBacklog);
  }
  // Half-open connections up to the backlog.
  void fill() {
    for (uint32_t i = 0; i < kBacklog; ++i) {
      script.send_raw(kTcpSyn, 1, 0, {.port = static_cast<uint16_t>(9000 + i)});
      first_isns.push_back(script.out().header.sequence);
    }
    ASSERT_EQ(script.tcp->connections(), kBacklog);
    ASSERT_EQ(script.count("tcp.cookie.sent"), 0U) << "never used while there is room";
  }
  // The peer's SYN is answered with a cookie.
  Out ask(const TcpOptions& options = only_mss(1460)) {
    const size_t connections = script.tcp->connections();
    const uint64_t sent = script.count("tcp.cookie.sent");
    script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.options = options});
    EXPECT_EQ(script.pending(), 1U);
    Out answer = script.out();
    EXPECT_EQ(answer.header.flags, kTcpSyn | kA);
    EXPECT_EQ(script.ack(answer), 1U);
    EXPECT_EQ(script.tcp->connections(), connections);
    EXPECT_EQ(script.count("tcp.cookie.sent"), sent + 1);
    script.our_isn = answer.header.sequence;
    return answer;
  }
  void expect_reset(uint32_t seq) {
    ASSERT_EQ(script.pending(), 1U);
    const Out reset = script.out();
    EXPECT_EQ(reset.header.flags, kTcpRst);
    EXPECT_EQ(script.seq(reset), seq);
    expect_nothing_taken();
  }
  void expect_nothing_taken() {
    EXPECT_TRUE(script.quiet());
    EXPECT_EQ(script.acceptor.connection, nullptr);
    EXPECT_EQ(script.count("tcp.established"), 0U);
    EXPECT_EQ(script.count("tcp.cookie.accepted"), 0U);
  }
  void expect_established() {
    script.connection = script.acceptor.connection;
    ASSERT_NE(script.connection, nullptr);
    EXPECT_EQ(script.state(), "ESTABLISHED");
    EXPECT_EQ(script.count("tcp.cookie.accepted"), 1U);
    EXPECT_EQ(script.count("tcp.passive_opens"), 1U);
  }

  Script script;
  std::vector<uint32_t> first_isns;
};

TEST_F(TcpCookie, T15_completes_without_options) {
  fill();
  const Out answer = ask();
  EXPECT_EQ(answer.header.options.mss, 1460);
  EXPECT_EQ(answer.header.window, 65535);
  script.in(kA, 1, 1, {.window = 1000});
  EXPECT_TRUE(script.quiet());
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.info().mss, 1460U);
  EXPECT_EQ(script.info().send_window, 1000U);
  EXPECT_EQ(script.info().receive_window, 65535U);
  EXPECT_EQ(script.info().congestion_window, 14600U);
  EXPECT_EQ(script.info().rto_ns, kNsPerSecond);  // nothing was measured
  script.write(10);
  const Out data = script.out();
  EXPECT_EQ(script.seq(data), 1U);
  EXPECT_EQ(script.ack(data), 1U);
  script.in(kA, 1, 11);
  EXPECT_EQ(script.recorder().acked, 10U);
}

TEST_F(TcpCookie, T15_T49_T50_timestamps_carry_scale_and_sack) {
  fill();
  const Out answer = ask(all_options(500));
  EXPECT_TRUE(answer.header.options.sack_permitted);
  EXPECT_EQ(answer.header.options.window_scale, 7);
  ASSERT_TRUE(answer.header.options.timestamps.has_value());
  EXPECT_EQ(answer.header.options.timestamps->echo, 500U);
  const uint32_t stamp = answer.header.options.timestamps->value;
  script.in(kA, 1, 1, {.window = 1000, .options = only_timestamps(501, stamp)});
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.info().send_window, 1000U << 7);
  EXPECT_EQ(script.info().mss, 1448U);
  script.write(10);
  const Out data = script.out();
  ASSERT_TRUE(data.header.options.timestamps.has_value());
  EXPECT_EQ(data.header.options.timestamps->echo, 501U);
  EXPECT_LE(data.header.options.timestamps->value - stamp, 31U);  // it goes on from there
  // SACK: a hole is told.
  script.in(kA, 101, 11, {.payload = 50, .options = only_timestamps(502, stamp)});
  const Out gap = script.out();
  ASSERT_EQ(gap.header.options.sack_count, 1U);
  EXPECT_EQ(gap.header.options.sack[0].left - script.options.peer_isn, 101U);
}

TEST_F(TcpCookie, T15_T50_without_timestamps_scale_and_sack_are_not_offered) {
  fill();
  TcpOptions offered = all_options();
  offered.timestamps.reset();
  const Out answer = ask(offered);
  EXPECT_FALSE(answer.header.options.sack_permitted);
  EXPECT_FALSE(answer.header.options.window_scale.has_value());
  EXPECT_FALSE(answer.header.options.timestamps.has_value());
  script.in(kA, 1, 1, {.window = 1000});
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.info().send_window, 1000U);
}

TEST_F(TcpCookie, T15_no_option_that_was_not_offered) {
  fill();
  const Out answer = ask(only_timestamps(500, 0));
  EXPECT_FALSE(answer.header.options.sack_permitted);
  EXPECT_FALSE(answer.header.options.window_scale.has_value());
  const uint32_t stamp = answer.header.options.timestamps.value().value;
  script.in(kA, 1, 1, {.window = 1000, .options = only_timestamps(501, stamp)});
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.info().send_window, 1000U);
  EXPECT_EQ(script.info().mss, 536U - 12U);  // MUST-15
}

TEST_F(TcpCookie, T13_T15_data_and_fin_with_the_ack_are_taken) {
  fill();
  (void)ask();
  script.in(kA | kTcpFin, 1, 1, {.payload = 20});
  script.connection = script.acceptor.connection;
  ASSERT_NE(script.connection, nullptr);
  EXPECT_EQ(script.state(), "CLOSE-WAIT");
  EXPECT_EQ(script.ack(script.out()), 22U);
  EXPECT_EQ(script.read(), 20U);
}

TEST_F(TcpCookie, T15_no_half_open_connection_is_let_go) {
  fill();
  for (uint16_t port = 5000; port < 5100; ++port) script.send_raw(kTcpSyn, 1, 0, {.port = port});
  EXPECT_EQ(script.count("tcp.cookie.sent"), 100U);
  EXPECT_EQ(script.count("tcp.limit.half_open"), 100U);
  script.drop_output();
  for (uint32_t i = 0; i < kBacklog; ++i) {
    script.send_raw(kA, 2, first_isns[i] + 1, {.port = static_cast<uint16_t>(9000 + i)});
  }
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.count("tcp.passive_opens"), kBacklog);
  EXPECT_EQ(script.count("tcp.cookie.accepted"), 0U);
  script.accept();  // there is room again: no cookie
  EXPECT_EQ(script.count("tcp.cookie.sent"), 100U);
}

// Below bit 19 it differs from a cookie of ours only in the SYN it answers: see syn_cookie.hpp.
TEST_F(TcpCookie, T15_T22_forgery_of_every_bit_is_refused) {
  fill();
  (void)ask();
  for (unsigned bit = 0; bit < 32; ++bit) {
    script.send_raw(kA, script.options.peer_isn + 1, (script.our_isn ^ (1U << bit)) + 1,
                    {.payload = 5});
    if (bit >= 19) {
      expect_reset((script.our_isn ^ (1U << bit)) + 1 - script.our_isn);
    } else {
      expect_nothing_taken();
    }
  }
  EXPECT_EQ(script.count("tcp.cookie.refused.forged"), 13U);
  EXPECT_EQ(script.count("tcp.cookie.refused.misplaced"), 19U);
  EXPECT_EQ(script.tcp->connections(), kBacklog);
  script.in(kA, 1, 1);
  ASSERT_NO_FATAL_FAILURE(expect_established());
}

TEST_F(TcpCookie, T15_expired_is_reset) {
  fill();
  (void)ask();
  script.clock.advance(kCookieLifeMaxNs - kNsPerSecond);
  for (uint16_t port = 7000; port < 7010; ++port) {  // the listener goes on sending them
    script.send_raw(kTcpSyn, 1, 0, {.port = port});
  }
  script.drop_output();
  script.clock.advance(kNsPerSecond);
  script.pump();
  script.drop_output();
  script.in(kA, 1, 1);
  expect_reset(1);
  EXPECT_EQ(script.count("tcp.cookie.refused.expired"), 1U);
}

TEST_F(TcpCookie, T15_long_after_the_last_cookie_none_is_looked_at) {
  fill();
  (void)ask();
  script.clock.advance(kCookieLifeMaxNs);
  script.pump();
  script.drop_output();
  script.in(kA, 1, 1);
  expect_reset(1);
  EXPECT_EQ(script.count("tcp.cookie.refused.unasked"), 1U);
}

TEST_F(TcpCookie, T15_another_tuples_cookie_is_reset) {
  fill();
  (void)ask();
  script.send_raw(kA, script.options.peer_isn + 1, script.our_isn + 1, {.port = 4001});
  expect_reset(1);
  script.send_raw(kA, script.options.peer_isn + 1, script.our_isn + 1,
                  {.source = IpAddress::v4(192, 0, 2, 3)});
  expect_reset(1);
  EXPECT_EQ(script.count("tcp.cookie.refused.forged"), 2U);
}

TEST_F(TcpCookie, T15_another_listeners_cookie_is_reset) {
  fill();
  (void)ask();
  script.tcp->close(std::exchange(script.listener, nullptr));
  script.listen(kBacklog);
  script.pump();
  script.drop_output();
  script.in(kA, 1, 1);
  expect_reset(1);
}

TEST_F(TcpCookie, T15_changed_echo_is_reset) {
  fill();
  const uint32_t stamp = ask(all_options()).header.options.timestamps.value().value;
  script.in(kA, 1, 1, {.options = only_timestamps(1001, stamp ^ 1)});
  expect_reset(1);
  script.in(kA, 1, 1);
  expect_reset(1);
}

TEST_F(TcpCookie, T5_T15_a_cookie_in_a_syn_or_rst_is_none) {
  fill();
  (void)ask();
  script.in(kTcpSyn | kA, 1, 1);
  expect_reset(1);
  script.in(kTcpRst | kA, 1, 1);
  expect_nothing_taken();
}

TEST_F(TcpCookie, T22_resets_of_forgeries_are_limited) {
  fill();
  (void)ask();
  for (uint32_t i = 0; i < 1500; ++i) {
    script.in(kA, 1, 0x08000000 + i * 0x00080000, {.port = static_cast<uint16_t>(10'000 + i)});
  }
  EXPECT_LE(script.pending(), 1000U);
  EXPECT_GE(script.pending(), 900U);
  EXPECT_GE(script.count("tcp.limit.resets"), 400U);
  EXPECT_EQ(script.tcp->connections(), kBacklog);
  script.drop_output();
  expect_nothing_taken();
}

TEST_F(TcpCookie, T15_full_accept_queue_drops_the_cookie_and_it_is_good_later) {
  fill();
  (void)ask();
  script.acceptor.full = true;
  script.in(kA, 1, 1);
  script.in(kA, 1, 1, {.payload = 5});
  expect_nothing_taken();
  EXPECT_EQ(script.count("tcp.drop.accept_queue_full.cookie"), 2U);
  EXPECT_EQ(script.tcp->connections(), kBacklog);
  EXPECT_EQ(script.acceptor.asked, 0);
  script.acceptor.full = false;
  script.in(kA, 1, 1, {.payload = 5});
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.read(), 5U);
}

// has_room() may be wrong by the time of on_accept().
class NoRoomAfterAll final : public tcp::ListenerOwner {
 public:
  tcp::Owner* on_accept(tcp::Connection&) noexcept override {
    ++asked;
    return nullptr;
  }
  int asked = 0;
};

TEST(TcpListen, T15_a_cookie_that_is_not_accepted_leaves_nothing) {
  Script script;
  NoRoomAfterAll acceptor;
  tcp::Listener* listener = script.tcp->listen({kOurAddress, 80}, 1, acceptor, {}).value();
  script.send_raw(kTcpSyn, 1, 0, {.port = 9000});
  script.drop_output();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  script.our_isn = script.out().header.sequence;
  script.in(kA, 1, 1);
  EXPECT_EQ(acceptor.asked, 1);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.tcp->connections(), 1U);
  script.tcp->close(listener);
  script.pump();
}

// The ACK and the first data were lost: what comes behind them is neither taken nor reset.
TEST_F(TcpCookie, T15_later_segment_first_is_dropped_in_silence) {
  fill();
  (void)ask();
  script.in(kA, 101, 1, {.payload = 100});
  script.in(kA, 201, 1);
  expect_nothing_taken();
  EXPECT_EQ(script.count("tcp.cookie.refused.misplaced"), 2U);
  script.in(kA, 1, 1, {.payload = 100});
  ASSERT_NO_FATAL_FAILURE(expect_established());
  EXPECT_EQ(script.read(), 100U);
}

// The network doubled the SYN, and the queue got room in between: the peer holds on to the cookie.
TEST_F(TcpCookie, T15_T16_half_open_connection_gives_way_to_its_earlier_cookie) {
  fill();
  const uint32_t stamp = ask(all_options()).header.options.timestamps.value().value;
  const uint32_t cookie = script.our_isn;
  script.send_raw(kA, 2, first_isns[0] + 1, {.port = 9000});
  ASSERT_NE(script.acceptor.connection, nullptr);
  script.acceptor.connection = nullptr;
  script.drop_output();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.options = only_mss(1460)});
  const Out second = script.out();
  ASSERT_NE(second.header.sequence, cookie);
  EXPECT_EQ(script.count("tcp.cookie.sent"), 1U);
  EXPECT_EQ(script.tcp->connections(), kBacklog + 1);
  // Neither of both is reset.
  script.in(kA, 201, 1, {.options = only_timestamps(1001, stamp)});
  EXPECT_TRUE(script.quiet());
  script.in(kA, 1, 1, {.payload = 5, .window = 1000, .options = only_timestamps(1001, stamp)});
  script.connection = script.acceptor.connection;
  ASSERT_NE(script.connection, nullptr);
  EXPECT_EQ(script.tcp->connections(), kBacklog + 1);
  EXPECT_EQ(script.info().send_window, 1000U << 7);
  EXPECT_EQ(script.read(), 5U);
  script.drop_output();
  script.write(10);
  EXPECT_EQ(script.seq(script.out()), 1U);
  EXPECT_EQ(script.count("tcp.cookie.accepted"), 1U);
}

TEST_F(TcpCookie, T15_half_open_connection_still_refuses_a_wrong_ack) {
  fill();
  (void)ask();
  script.send_raw(kA, 2, first_isns[0] + 5, {.port = 9000});
  expect_reset(first_isns[0] + 5 - script.our_isn);
  script.send_raw(kA, 2, first_isns[0] + 1, {.port = 9000});
  EXPECT_EQ(script.count("tcp.passive_opens"), 1U);
}

// ---- pools --------------------------------------------------------------------------------------

TEST(TcpListen, T15_full_pool_drops_syns_and_cookies_in_silence) {
  ScriptOptions options;
  options.layer.connections_max = 3;
  Script script(options);
  script.listen(1);
  script.send_raw(kTcpSyn, 1, 0, {.port = 9000});
  script.drop_output();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);  // a cookie
  script.our_isn = script.out().header.sequence;
  Recorder recorder;
  std::vector<tcp::Connection*> made;
  for (int i = 0; i < 2; ++i) {
    made.push_back(script.tcp->connect({}, {kPeerAddress, 80}, recorder, {}).value());
  }
  script.pump();
  script.drop_output();
  script.in(kA, 1, 1);
  script.send_raw(kTcpSyn, 1, 0, {.port = 9001});
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.count("tcp.limit.connections"), 2U);
  EXPECT_EQ(script.count("tcp.cookie.sent"), 1U);
  script.tcp->abort(*made[0]);
  script.in(kA, 1, 1);
  script.connection = script.acceptor.connection;
  EXPECT_EQ(script.state(), "ESTABLISHED");
  script.tcp->abort(*made[1]);
  script.drop_output();
}

TEST(TcpListen, T15_half_open_connections_of_all_listeners_leave_room_for_others) {
  ScriptOptions options;
  options.layer.connections_max = 8;
  Script script(options);
  script.listen(4);
  RecordingAcceptor other;
  tcp::Listener* second = script.tcp->listen({kOurAddress, 81}, 4, other, {}).value();
  for (const uint16_t port : {uint16_t{80}, uint16_t{81}}) {
    script.our_port = port;
    for (uint16_t i = 0; i < 4; ++i) {
      script.send_raw(kTcpSyn, 1, 0, {.port = static_cast<uint16_t>(9000 + i)});
    }
  }
  EXPECT_EQ(script.tcp->connections(), 4U);
  EXPECT_EQ(script.count("tcp.cookie.sent"), 4U);
  script.tcp->close(second);
  script.pump();
  script.drop_output();
}

// A cookie's number cannot be put above what the older life has sent.
TEST_F(TcpCookie, T15_T58_time_wait_rests_on_while_there_is_no_room) {
  script.accept();
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.pump();
  script.drop_output();
  script.in(kA | kTcpFin, 1, 2);
  script.drop_output();
  ASSERT_EQ(script.tcp->connections(), 1U);
  for (uint16_t port = 9000; port < 9000 + kBacklog; ++port) {
    script.send_raw(kTcpSyn, 1, 0, {.port = port});
  }
  script.drop_output();
  script.in(kTcpSyn, 100'000, 0);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.tcp->connections(), kBacklog + 1);
  EXPECT_EQ(script.count("tcp.cookie.sent"), 0U);
  script.send_raw(kTcpRst, 2, 0, {.port = 9000});
  script.in(kTcpSyn, 100'000, 0);
  EXPECT_EQ(script.out().header.flags, kTcpSyn | kA);
}

// ---- a crowd before a small door ----------------------------------------------------------------

// 16 clients connect at once to a listener with backlog 4 that accepts one every 50 ms. Each says
// something, is answered, and goes.
class Crowd {
 public:
  static constexpr size_t kClients = 16;
  static constexpr size_t kDoor = 4;
  static constexpr uint64_t kRequest = 6000, kAnswer = 3000;
  static constexpr uint64_t kAcceptGapNs = 50 * kMilli;

  explicit Crowd(const WireOptions& wire, uint64_t seed) : pair(seeded(seed)) {
    acceptor.room = [this] { return ready.size() < kDoor; };
    acceptor.accept = [this](tcp::Connection& connection) -> tcp::Owner* {
      if (ready.size() >= kDoor) return nullptr;
      servers.push_back(std::make_unique<Stream>(pair.right.end, *pair.right.tcp, 22, 11, kAnswer));
      servers.back()->connection = &connection;
      servers.back()->reading = false;
      ready.push_back(servers.back().get());
      return servers.back().get();
    };
    listener = pair.right.tcp->listen({kRightAddress, 80}, kDoor, acceptor, {}).value();
    meet();
    pair.link.options = wire;
  }
  ~Crowd() { pair.right.tcp->close(listener); }

  void connect_all() {
    pair.left.end.begin_round();
    for (size_t i = 0; i < kClients; ++i) {
      clients.push_back(std::make_unique<Stream>(pair.left.end, *pair.left.tcp, 11, 22, kRequest));
      clients.back()->connection =
          pair.left.tcp->connect({}, {kRightAddress, 80}, *clients.back(), {}).value();
    }
  }
  void accept_one() {
    if (ready.empty()) return;
    Stream& server = *ready.front();
    ready.pop_front();
    server.reading = true;
    server.read();
    server.write();
  }
  [[nodiscard]] bool done() const {
    const auto is_done = [](const auto& stream) { return stream->done(); };
    return servers.size() == kClients && std::ranges::all_of(clients, is_done) &&
           std::ranges::all_of(servers, is_done);
  }
  bool run(uint64_t ns) {
    for (const uint64_t until = pair.clock.now_ns() + ns; pair.clock.now_ns() < until;) {
      if (done()) return true;
      pair.run(kAcceptGapNs);
      accept_one();
    }
    return done();
  }
  void expect_all_served() {
    for (const auto& client : clients) {
      EXPECT_EQ(client->connected, 1);
      EXPECT_EQ(client->reason, std::errc{});
      EXPECT_EQ(client->received, kAnswer);
      EXPECT_EQ(client->wrong, 0U);
      EXPECT_EQ(client->acked, kRequest);
    }
    for (const auto& server : servers) {
      EXPECT_EQ(server->reason, std::errc{});
      EXPECT_EQ(server->received, kRequest);
      EXPECT_EQ(server->wrong, 0U);
    }
  }
  [[nodiscard]] uint64_t count(const std::string& name) const { return pair.right.end.count(name); }

  Pair pair;
  Acceptor acceptor;
  tcp::Listener* listener = nullptr;
  std::vector<std::unique_ptr<Stream>> clients, servers;
  std::deque<Stream*> ready;

 private:
  static PairOptions seeded(uint64_t seed) {
    PairOptions options;
    options.seed = seed;
    return options;
  }
  // Both know each other's MAC address: the SYNs come at once.
  void meet() {
    Stream nobody(pair.left.end, *pair.left.tcp, 1, 2, 0);
    pair.left.end.begin_round();
    nobody.connection = pair.left.tcp->connect({}, {kRightAddress, 79}, nobody, {}).value();
    EXPECT_TRUE(pair.run_until([&nobody] { return nobody.done(); }, 5 * kNsPerSecond));
    EXPECT_EQ(nobody.reason, std::errc::connection_refused);
  }
};

TEST(TcpCrowd, T15_all_16_get_through_a_door_of_4) {
  Crowd crowd({.delay_ns = kMilli}, 1);
  const uint64_t resets = crowd.count("tcp.resets_out");
  crowd.connect_all();
  ASSERT_TRUE(crowd.run(100 * kNsPerSecond));
  crowd.expect_all_served();
  EXPECT_EQ(crowd.count("tcp.resets_out"), resets);
  EXPECT_EQ(crowd.pair.left.end.count("tcp.resets_out"), 0U);
  EXPECT_EQ(crowd.count("tcp.passive_opens"), Crowd::kClients);
  EXPECT_EQ(crowd.count("tcp.cookie.sent"), Crowd::kClients - Crowd::kDoor);
  EXPECT_EQ(crowd.count("tcp.cookie.accepted"), Crowd::kClients - Crowd::kDoor);
  EXPECT_GT(crowd.count("tcp.drop.accept_queue_full.cookie"), 0U);
}

TEST(TcpCrowd, T15_all_16_get_through_whatever_the_wire_does_50_seeds) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd({.loss = 100,
                 .reorder = 100,
                 .duplicate = 100,
                 .delay_ns = kMilli,
                 .reorder_delay_ns = 30 * kMilli},
                seed);
    crowd.connect_all();
    ASSERT_TRUE(crowd.run(100 * kNsPerSecond));
    crowd.expect_all_served();
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

}  // namespace
}  // namespace nobounce::test
