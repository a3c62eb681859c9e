// Closing, lives after it, and what ends a connection from outside: C013, C015 (linger), T-23,
// T-53, T-54, T-56..T-61.
#include "tcp/pair.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

TEST(TcpClose, T56_half_close_both_ways) {
  Script script;
  script.accept();
  script.in(kTcpFin | kA, 1, 1);  // the peer is done sending
  EXPECT_EQ(script.state(), "CLOSE-WAIT");
  EXPECT_TRUE(script.tcp->at_end(*script.connection));
  script.drop_output();
  script.write(100);  // we are not
  EXPECT_EQ(script.out().size, 100U);
  script.in(kA, 2, 101);
  script.tcp->shutdown_send(*script.connection);
  script.pump();
  const Out fin = script.out();
  EXPECT_TRUE(fin.has(kTcpFin));
  EXPECT_EQ(script.seq(fin), 101U);
  EXPECT_EQ(script.state(), "LAST-ACK");
  script.in(kA, 2, 102);
  EXPECT_EQ(script.state(), "CLOSED");
  EXPECT_EQ(script.recorder().reason, std::errc{});
  EXPECT_EQ(script.recorder().closed, 1);
  EXPECT_EQ(script.recorder().acked, 100U);

  Script other;
  other.accept();
  other.tcp->shutdown_send(*other.connection);
  other.pump();
  other.drop_output();
  other.in(kA, 1, 2);
  EXPECT_EQ(other.state(), "FIN-WAIT-2");
  other.in(kA, 1, 2, {.payload = 70});  // still reading
  EXPECT_EQ(other.read(), 70U);
  other.in(kTcpFin | kA, 71, 2);
  EXPECT_EQ(other.state(), "TIME-WAIT");
  EXPECT_EQ(other.ack(other.out()), 72U);
  EXPECT_EQ(other.recorder().closed, 1);
}

TEST(TcpClose, T56_simultaneous_close) {
  Script script;
  script.accept();
  script.tcp->shutdown_send(*script.connection);
  script.pump();
  script.drop_output();
  script.in(kTcpFin | kA, 1, 1);
  EXPECT_EQ(script.state(), "CLOSING");
  EXPECT_EQ(script.ack(script.out()), 2U);
  script.in(kA, 2, 2);
  EXPECT_EQ(script.state(), "TIME-WAIT");
}

TEST(TcpClose, T56_fin_follows_all_data_and_is_sent_again) {
  Script script;
  script.accept();
  script.write(12 * 1460);
  script.tcp->shutdown_send(*script.connection);
  script.pump();
  EXPECT_EQ(script.pending(), 10U);
  script.drop_output();
  script.in(kA, 1, 1 + 10 * 1460);
  (void)script.out();
  (void)script.out();
  const Out fin = script.out();
  EXPECT_TRUE(fin.has(kTcpFin));
  EXPECT_EQ(script.seq(fin), 1 + 12 * 1460U);
  script.in(kA, 1, 1 + 12 * 1460);  // all but the FIN
  script.advance(250 * kMilli);
  const Out again = script.out();
  EXPECT_TRUE(again.has(kTcpFin));
  EXPECT_EQ(script.seq(again), script.seq(fin));
  script.in(kA, 1, 2 + 12 * 1460);
  EXPECT_EQ(script.state(), "FIN-WAIT-2");
  EXPECT_EQ(script.recorder().acked, 12 * 1460U);
}

TEST(TcpClose, shutdown_before_the_handshake_is_done) {
  Script script;
  script.start_connect();
  const ByteVector data(10, std::byte{1});
  ASSERT_TRUE(script.tcp->send(*script.connection, script.end.make_frag(data), false));
  script.tcp->shutdown_send(*script.connection);
  script.in(kTcpSyn | kA, 0, 1, {.options = script.options.peer_syn});
  EXPECT_EQ(script.state(), "FIN-WAIT-1");
  Out o = script.out();
  EXPECT_EQ(o.size, 10U);
  o = script.out();
  EXPECT_TRUE(o.has(kTcpFin));
  EXPECT_EQ(script.seq(o), 11U);
}

TEST(TcpClose, T57_release_with_unread_data_resets) {
  Script script;
  script.accept();
  script.in(kA, 1, 1, {.payload = 10});
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.pump();
  const Out reset = script.out();
  EXPECT_TRUE(reset.has(kTcpRst));
  EXPECT_EQ(script.seq(reset), 1U);
  EXPECT_EQ(script.tcp->connections(), 0U);
}

TEST(TcpClose, T57_data_after_release_resets) {
  Script script;
  script.accept();
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.pump();
  EXPECT_TRUE(script.out().has(kTcpFin));
  script.in(kA, 1, 2, {.payload = 10});
  EXPECT_TRUE(script.out().has(kTcpRst));
  EXPECT_EQ(script.tcp->connections(), 0U);
  EXPECT_EQ(script.recorder().closed, 0);  // nobody is told any more
}

TEST(TcpClose, C015_abort_sends_rst_at_snd_nxt) {
  Script script;
  script.accept();
  script.write(100);
  script.drop_output();
  script.tcp->abort(*std::exchange(script.connection, nullptr));
  script.pump();
  const Out reset = script.out();
  EXPECT_TRUE(reset.has(kTcpRst));
  EXPECT_EQ(script.seq(reset), 101U);
  EXPECT_EQ(script.tcp->connections(), 0U);
  EXPECT_EQ(script.recorder().closed, 0);
}

TEST(TcpClose, received_data_stays_readable_after_reset_and_close) {
  Script script;
  script.accept();
  script.in(kA, 1, 1, {.payload = 33});
  script.in(kTcpRst, 34, 0);
  EXPECT_EQ(script.recorder().reason, std::errc::connection_reset);
  EXPECT_EQ(script.read(), 33U);
  EXPECT_FALSE(script.tcp->at_end(*script.connection));
  script.write(10);  // swallowed: the page comes back
  script.drop_output();
}

TEST(TcpClose, T58_T23_time_wait_lasts_two_msl_and_reacks_fin) {
  Script script;
  script.accept();
  script.tcp->shutdown_send(*script.connection);
  script.pump();
  script.in(kTcpFin | kA, 1, 2);
  EXPECT_EQ(script.state(), "TIME-WAIT");
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.drop_output();
  script.advance(50 * kNsPerSecond);
  script.in(kTcpFin | kA, 1, 2);
  EXPECT_EQ(script.ack(script.out()), 2U);
  script.advance(59 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 1U);
  script.advance(2 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 0U);
}

// For a stack that goes: nobody will be there to answer the peer's FIN a second time.
TEST(TcpClose, T58_last_ack_is_repeated_while_it_is_fresh) {
  Script script;
  script.accept();
  EXPECT_FALSE(script.tcp->repeat_last_acks());
  script.tcp->shutdown_send(*script.connection);
  script.pump();
  script.in(kTcpFin | kA, 1, 2);
  EXPECT_EQ(script.state(), "TIME-WAIT");
  script.drop_output();
  for (int i = 0; i < 3; ++i) {
    script.advance(30 * kMilli);
    EXPECT_TRUE(script.tcp->repeat_last_acks());
    script.pump();
    const Out again = script.out();
    EXPECT_EQ(again.header.flags, kA);
    EXPECT_EQ(script.ack(again), 2U);
  }
  script.advance(kNsPerSecond);
  EXPECT_FALSE(script.tcp->repeat_last_acks());
}

TEST(TcpClose, C013_T58_new_syn_reopens_time_wait_by_sequence_or_timestamp) {
  for (const bool timestamps : {false, true}) {
    ScriptOptions options;
    if (timestamps) options.peer_syn.timestamps = {5000, 0};
    Script script(options);
    script.listen();
    uint32_t peer_isn = 1000;
    for (uint32_t life = 0; life < 1000; ++life) {
      SCOPED_TRACE(life);
      TcpOptions stamp;
      if (timestamps) stamp.timestamps = {5000 + life, 0};
      TcpOptions syn = options.peer_syn;
      if (timestamps) syn.timestamps = stamp.timestamps;
      script.options.peer_isn = peer_isn;
      script.send_raw(kTcpSyn, peer_isn, 0, {.options = syn});
      const Out answer = script.out();
      ASSERT_EQ(answer.header.flags, kTcpSyn | kA) << "dropped";
      script.our_isn = answer.header.sequence;
      script.in(kA, 1, 1, {.options = stamp});
      tcp::Connection* c = std::exchange(script.acceptor.connection, nullptr);
      ASSERT_NE(c, nullptr);
      script.tcp->shutdown_send(*c);  // the server closes first
      script.pump();
      script.in(kTcpFin | kA, 1, 2, {.options = stamp});
      ASSERT_STREQ(script.tcp->info(*c).state, "TIME-WAIT");
      script.tcp->release(*c);
      script.drop_output();
      // By sequence: a little above. By timestamp: far below, but newer.
      peer_isn = timestamps ? peer_isn - 100'000 : peer_isn + 3;
    }
    EXPECT_EQ(script.tcp->connections(), 1U);
    // Neither newer nor above: the old life is defended.
    TcpOptions old = options.peer_syn;
    if (timestamps) old.timestamps = {4000, 0};
    script.send_raw(kTcpSyn, script.options.peer_isn - 10, 0, {.options = old});
    EXPECT_EQ(script.out().header.flags, kA);
    script.acceptor.connection = nullptr;
  }
}

TEST(TcpClose, T58_time_wait_gives_way_when_the_pool_is_used_up) {
  PairOptions options;
  options.left.connections_max = options.right.connections_max = 8;
  Pair pair(options);
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    Transfer transfer(pair, 100, 100);
    ASSERT_TRUE(transfer.run(kNsPerSecond));
    transfer.expect_complete();
  }
  EXPECT_GT(
      pair.left.end.count("tcp.limit.time_wait") + pair.right.end.count("tcp.limit.time_wait"),
      90U);
  pair.run(120 * kNsPerSecond);
  EXPECT_EQ(pair.left.tcp->connections() + pair.right.tcp->connections(), 0U);
}

TEST(TcpClose, T59_fin_wait_2_without_owner_ends) {
  Script script;
  script.accept();
  script.tcp->release(*std::exchange(script.connection, nullptr));
  script.pump();
  script.in(kA, 1, 2);
  script.advance(59 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 1U);
  script.advance(2 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.drop_output();
}

TEST(TcpClose, T60_orphans_with_a_dead_peer_are_limited_and_end) {
  ScriptOptions options;
  options.layer.connections_max = 64;
  Script script(options);
  script.listen(64);
  for (uint16_t i = 0; i < 60; ++i) {
    script.peer_port = static_cast<uint16_t>(6000 + i);
    script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.options = options.peer_syn});
    script.our_isn = script.out().header.sequence;
    script.in(kA, 1, 1);
    tcp::Connection* c = std::exchange(script.acceptor.connection, nullptr);
    ASSERT_NE(c, nullptr);
    const ByteVector data(1000, std::byte{1});
    ASSERT_TRUE(script.tcp->send(*c, script.end.make_frag(data), false));
    script.tcp->push(*c);
    script.tcp->release(*c);
    script.pump();
    script.drop_output();
  }
  EXPECT_EQ(script.count("tcp.limit.orphans"), 28U);
  EXPECT_EQ(script.tcp->connections(), 32U);
  script.advance(200 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 0U);
  EXPECT_EQ(script.end.packets.in_use(), 0U);
  script.drop_output();
}

// Closed in order, they wait in TIME-WAIT as long as there is room, and nobody is reset for them.
TEST(TcpClose, T58_T60_time_wait_is_no_orphan) {
  ScriptOptions options;
  options.layer.connections_max = 64;
  Script script(options);
  script.listen(64);
  for (uint16_t i = 0; i < 60; ++i) {
    script.peer_port = static_cast<uint16_t>(6000 + i);
    script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.options = options.peer_syn});
    script.our_isn = script.out().header.sequence;
    script.in(kA, 1, 1);
    tcp::Connection* c = std::exchange(script.acceptor.connection, nullptr);
    ASSERT_NE(c, nullptr);
    script.tcp->release(*c);
    script.pump();
    const Out fin = script.out();
    ASSERT_TRUE(fin.has(kTcpFin)) << i;
    ASSERT_FALSE(fin.has(kTcpRst)) << i;
    script.in(kTcpFin | kA, 1, 2);
    script.drop_output();
  }
  EXPECT_EQ(script.count("tcp.limit.orphans"), 0U);
  EXPECT_EQ(script.tcp->connections(), 60U);
  script.advance(61 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 0U);
}

TEST(TcpClose, T61_keepalive) {
  ScriptOptions options;
  options.connection.keepalive = true;
  Script script(options);
  script.accept();
  const uint64_t start = script.clock.now_ns();
  script.advance(7199 * kNsPerSecond);
  EXPECT_TRUE(script.quiet());
  script.advance(2 * kNsPerSecond);
  Out probe = script.out();
  EXPECT_EQ(probe.at_ns - start, 7200 * kNsPerSecond);
  EXPECT_EQ(script.seq(probe), 0U);  // SND.UNA - 1
  EXPECT_EQ(probe.size, 0U);
  script.in(kA, 1, 1);  // answered: idle again
  script.advance(7000 * kNsPerSecond);
  EXPECT_TRUE(script.quiet());
  script.advance(3600 * kNsPerSecond);
  EXPECT_EQ(script.pending(), 10U);  // nine probes and the RST
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  script.drop_output();
  Script off;
  off.accept();
  off.advance(30 * 86400 * kNsPerSecond);
  EXPECT_TRUE(off.quiet());
  EXPECT_EQ(off.recorder().closed, 0);
}

TEST(TcpClose, T61_answers_the_peers_keepalive) {
  Script script;
  script.accept();
  script.in(kA, 0, 1);
  EXPECT_EQ(script.ack(script.out()), 1U);
}

TEST(TcpClose, fail_all_tells_everybody_once) {
  Script script;
  script.accept();
  script.write(100);
  script.tcp->fail_all(std::errc::network_down);
  EXPECT_EQ(script.recorder().closed, 1);
  EXPECT_EQ(script.recorder().reason, std::errc::network_down);
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.tcp->fail_all(std::errc::network_down);
  EXPECT_EQ(script.recorder().closed, 1);
  script.drop_output();
}

TEST(TcpClose, closing_a_listener_resets_its_half_open_connections) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, 1, 0);
  script.drop_output();
  script.tcp->close(std::exchange(script.listener, nullptr));
  script.pump();
  EXPECT_TRUE(script.out().has(kTcpRst));
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.send_raw(kTcpSyn, 1, 0);
  EXPECT_TRUE(script.out().has(kTcpRst));
}

// Inside a callback every call is allowed.
class Hasty final : public tcp::Owner {
 public:
  explicit Hasty(tcp::Layer& layer, bool abort) : layer_(layer), abort_(abort) {}
  void on_connected() noexcept override {}
  void on_readable() noexcept override { go(); }
  void on_acked(size_t) noexcept override { go(); }
  void on_closed(std::errc) noexcept override { go(); }
  void go() {
    tcp::Connection* c = std::exchange(connection, nullptr);
    if (c == nullptr) return;
    abort_ ? layer_.abort(*c) : layer_.release(*c);
  }
  tcp::Connection* connection = nullptr;

 private:
  tcp::Layer& layer_;
  bool abort_;
};

class HastyAcceptor final : public tcp::ListenerOwner {
 public:
  explicit HastyAcceptor(Hasty& owner) : owner_(owner) {}
  tcp::Owner* on_accept(tcp::Connection& c) noexcept override {
    owner_.connection = &c;
    if (at_once) {
      owner_.go();
      return nullptr;
    }
    return &owner_;
  }
  bool at_once = false;

 private:
  Hasty& owner_;
};

TEST(TcpClose, owners_may_let_go_inside_any_callback) {
  for (const bool abort : {false, true}) {
    for (const uint8_t last : {kA, uint8_t(kTcpFin | kA), uint8_t(kTcpRst)}) {
      for (const bool at_once : {false, true}) {
        Script script;
        Hasty owner(*script.tcp, abort);
        HastyAcceptor acceptor(owner);
        acceptor.at_once = at_once;
        tcp::Listener* listener = script.tcp->listen({kOurAddress, 80}, 4, acceptor, {}).value();
        script.send_raw(kTcpSyn, script.options.peer_isn, 0);
        script.our_isn = script.out().header.sequence;
        script.in(kA, 1, 1);
        script.in(last, 1, last == kTcpRst ? 0 : 1, {.payload = last == kTcpRst ? 0u : 5u});
        script.drop_output();
        script.tcp->close(listener);
        script.advance(400 * kNsPerSecond);
        EXPECT_EQ(script.tcp->connections(), 0U);
        script.drop_output();
      }
    }
  }
}

// ---- ICMP -------------------------------------------------------------------------------------

ip::IcmpError about(const Script& script, ip::IcmpError::Kind kind, uint32_t seq, ByteVector& quote,
                    uint16_t mtu = 0) {
  quote.resize(8);
  store_be<uint16_t>(quote, 0, script.our_port);
  store_be<uint16_t>(quote, 2, script.peer_port);
  store_be<uint32_t>(quote, 4, script.our_isn + seq);
  ip::IcmpError error;
  error.kind = kind;
  error.next_hop_mtu = mtu;
  error.source = kOurAddress;
  error.destination = kPeerAddress;
  error.quote = quote;
  return error;
}

TEST(TcpIcmp, T54_hard_errors_only_end_what_is_not_established) {
  using Kind = ip::IcmpError::Kind;
  ByteVector quote;
  Script opening;
  opening.start_connect();
  opening.tcp->icmp_error(about(opening, Kind::host_unreachable, 0, quote));
  EXPECT_EQ(opening.recorder().closed, 0);
  opening.tcp->icmp_error(about(opening, Kind::port_unreachable, 5, quote));  // not outstanding
  EXPECT_EQ(opening.recorder().closed, 0);
  opening.tcp->icmp_error(about(opening, Kind::port_unreachable, 0, quote));
  EXPECT_EQ(opening.recorder().reason, std::errc::connection_refused);

  Script open;
  open.accept();
  open.write(100);
  for (const Kind kind : {Kind::port_unreachable, Kind::protocol_unreachable,
                          Kind::host_unreachable, Kind::time_exceeded, Kind::parameter_problem}) {
    open.tcp->icmp_error(about(open, kind, 1, quote));
  }
  EXPECT_EQ(open.recorder().closed, 0);
  open.advance(3600 * kNsPerSecond);  // the soft error says why, in the end
  EXPECT_EQ(open.recorder().reason, std::errc::host_unreachable);
  open.drop_output();
}

TEST(TcpIcmp, T53_path_mtu_only_down_not_below_the_floor_and_only_when_quoted_right) {
  using Kind = ip::IcmpError::Kind;
  ByteVector quote;
  Script script;
  script.accept();
  script.write(10 * 1460);
  script.drop_output();
  const uint32_t window = script.info().congestion_window;
  script.tcp->icmp_error(about(script, Kind::fragmentation_needed, 90'000, quote, 1000));
  script.tcp->icmp_error(about(script, Kind::fragmentation_needed, 0, quote, 1000));
  script.tcp->icmp_error(about(script, Kind::fragmentation_needed, 1, quote, 9000));
  EXPECT_EQ(script.info().mss, 1460U);
  script.tcp->icmp_error(about(script, Kind::fragmentation_needed, 1, quote, 1000));
  EXPECT_EQ(script.info().mss, 960U);
  EXPECT_EQ(script.info().congestion_window, window);  // not cut
  script.pump();
  const Out again = script.out();  // what is out goes again in the new size
  EXPECT_EQ(script.seq(again), 1U);
  EXPECT_EQ(again.size, 960U);
  script.tcp->icmp_error(about(script, Kind::fragmentation_needed, 1, quote, 68));
  EXPECT_EQ(script.info().mss, 536U);
  script.in(kA, 1, 1 + 10 * 1460);
  script.drop_output();
  script.advance(601 * kNsPerSecond);  // it ages
  script.write(1460);
  EXPECT_EQ(script.info().mss, 1460U);
  script.drop_output();
}

TEST(TcpIcmp, T53_no_mtu_told_means_the_next_plateau) {
  ByteVector quote;
  Script script;
  script.accept();
  script.write(3000);
  script.tcp->icmp_error(about(script, ip::IcmpError::Kind::fragmentation_needed, 1, quote, 0));
  EXPECT_EQ(script.info().mss, 1492U - 40);
  script.drop_output();
}

}  // namespace
}  // namespace nobounce::test
