// The packets of a shard are shared by its connections: what one of them can take (machine.hpp,
// k...Reserve), and what becomes of a connection that gets none (TM-66, TM-67, TM-68, T-36, T-64).
#include <vector>

#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

constexpr size_t kPackets = 128;

// One of several connections of a Script: the part of the peer's state that is its own.
struct Peer {
  uint16_t port = 0;
  uint32_t our_isn = 0;
  tcp::Connection* connection = nullptr;
};

class TcpReserve : public testing::Test {
 protected:
  explicit TcpReserve(const ScriptOptions& options = {.packets = kPackets}) : script(options) {
    script.listen();
  }

  // From here on script.in(), write(), read() and info() mean that connection.
  void turn_to(const Peer& peer) {
    script.peer_port = peer.port;
    script.our_isn = peer.our_isn;
    script.connection = peer.connection;
  }
  Peer open() {
    script.peer_port = next_port_++;
    script.drop_output();
    script.accept();
    return {script.peer_port, script.our_isn, script.connection};
  }
  // The oldest segment we sent on that connection; a test failure when there is none.
  Out out_of(const Peer& peer) {
    while (!script.quiet()) {
      Out segment = script.out();
      if (segment.header.destination_port == peer.port) return segment;
    }
    ADD_FAILURE() << "nothing was sent on port " << peer.port;
    return {};
  }
  [[nodiscard]] size_t in_use() const { return script.end.packets.in_use(); }

  // One byte behind a gap each, so that none can join another.
  void send_holes(const Peer& peer) {
    turn_to(peer);
    for (uint32_t i = 0; i < 2 * kPackets; ++i) script.in(kA, 3 + 2 * i, 1, {.payload = 1});
  }
  // One byte a segment, in order; nobody reads. Returns the first byte that was not taken.
  uint32_t send_crumbs(const Peer& peer) {
    turn_to(peer);
    const uint64_t refused = script.count("tcp.limit.receive_queue");
    uint32_t next = 1;
    while (script.count("tcp.limit.receive_queue") == refused) {
      script.in(kA, next, 1, {.payload = 1});
      if (++next > 20 * kPackets) break;
    }
    EXPECT_GT(script.count("tcp.limit.receive_queue"), refused) << "crumbs are without bound";
    return next - 1;
  }
  // One byte a packet, none acknowledged, until no more is taken. Returns how many were.
  uint32_t write_crumbs(const Peer& peer) {
    turn_to(peer);
    script.tcp->set_options(*peer.connection, {.nodelay = true});
    const ByteVector byte(1);
    for (uint32_t taken = 0; taken < 20 * kPackets; ++taken) {
      const Frag frag = script.end.make_frag(byte);
      if (!script.tcp->send(*peer.connection, frag, false)) {
        page_return(*frag.page);
        return taken;
      }
      script.tcp->push(*peer.connection);
      script.pump();
    }
    ADD_FAILURE() << "tiny sends are without bound";
    return 0;
  }

  // `peer` has 100 bytes outstanding since it was opened: they are sent again when their time has
  // come, the acknowledgement gets in, and what the peer says is answered.
  void expect_alive(const Peer& peer) {
    turn_to(peer);
    ASSERT_EQ(script.info().bytes_unacked, 100U);
    script.drop_output();
    script.advance(2 * kNsPerSecond);
    const Out again = out_of(peer);
    EXPECT_EQ(script.seq(again), 1U);
    EXPECT_EQ(again.size, 100U);
    script.in(kA, 1, 101);
    EXPECT_EQ(script.info().bytes_unacked, 0U);
    script.drop_output();
    script.in(kA, 0, 101, {.payload = 1});  // old: an acknowledgement is due at once
    EXPECT_EQ(script.ack(out_of(peer)), 1U);
    script.in(kTcpFin | kA, 1, 101);
    EXPECT_EQ(script.ack(out_of(peer)), 2U);
    EXPECT_EQ(script.state(), "CLOSE-WAIT");
  }
  Peer open_waiting() {
    const Peer peer = open();
    script.write(100);
    EXPECT_EQ(out_of(peer).size, 100U);
    return peer;
  }

  // Leaves the shard without a single packet.
  void take_all_packets() {
    while (PacketPtr packet = script.end.packets.make()) held_.push_back(std::move(packet));
    ASSERT_EQ(in_use(), script.end.packets.capacity());
  }
  void give_packets_back() { held_.clear(); }

  Script script;

 private:
  std::vector<PacketPtr> held_;
  uint16_t next_port_ = 4000;
};

TEST_F(TcpReserve, TM66_TM68_data_behind_gaps_leaves_packets_for_other_connections) {
  const Peer greedy = open();
  const Peer other = open_waiting();
  send_holes(greedy);
  EXPECT_GE(in_use(), kPackets / 2);  // much is kept, but
  EXPECT_LE(in_use(), kPackets - kPackets / 4);
  EXPECT_GE(script.count("tcp.limit.out_of_order"), kPackets);
  EXPECT_EQ(script.ack(out_of(greedy)), 1U);
  expect_alive(other);
  // What fills the gap still gets in, and frees what waited behind it.
  turn_to(greedy);
  script.drop_output();
  script.in(kA, 1, 1, {.payload = 2});
  EXPECT_EQ(script.ack(out_of(greedy)), 4U);
  EXPECT_EQ(script.read(), 3U);
}

TEST_F(TcpReserve, TM66_data_in_order_gets_in_when_gaps_hold_all_they_may) {
  const Peer greedy = open();
  const Peer other = open();
  send_holes(greedy);
  turn_to(other);
  script.drop_output();
  script.in(kA, 1, 1, {.payload = 100});
  script.in(kA, 101, 1, {.payload = 100});
  EXPECT_EQ(script.ack(out_of(other)), 201U);
  EXPECT_EQ(script.read(), 200U);
}

TEST_F(TcpReserve, TM66_TM67_unread_crumbs_leave_packets_for_other_connections) {
  const Peer greedy = open();
  const Peer other = open_waiting();
  const uint32_t refused = send_crumbs(greedy);
  EXPECT_GE(in_use(), kPackets / 2);
  EXPECT_LE(in_use(), kPackets - kPackets / 8);
  EXPECT_GT(refused, 10 * kPackets) << "crumbs share packets";
  script.drop_output();
  script.in(kA, refused, 1, {.payload = 1});
  EXPECT_EQ(script.ack(out_of(greedy)), refused) << "what was not taken is not acknowledged";
  expect_alive(other);
  const Peer late = open();  // a handshake needs packets too
  // It comes again when the application has read.
  turn_to(greedy);
  EXPECT_EQ(script.read(), refused - 1);
  script.drop_output();
  script.in(kA, refused, 1, {.payload = 1});
  script.in(kA, refused + 1, 1, {.payload = 1});
  EXPECT_EQ(script.ack(out_of(greedy)), refused + 2);
  EXPECT_EQ(script.read(), 2U);
  turn_to(late);
  script.in(kA, 1, 1, {.payload = 10});
  EXPECT_EQ(script.read(), 10U);
}

TEST_F(TcpReserve, TM66_tiny_unacknowledged_sends_leave_packets_for_other_connections) {
  const Peer greedy = open();
  const Peer other = open_waiting();
  const uint32_t taken = write_crumbs(greedy);
  EXPECT_GE(taken, kPackets / 2);
  EXPECT_LE(in_use(), kPackets - kPackets / 4);
  expect_alive(other);
  // Its own are sent again as well; acknowledged, they make room for more.
  turn_to(greedy);
  script.drop_output();
  script.advance(3 * kNsPerSecond);
  EXPECT_EQ(script.seq(out_of(greedy)), 1U);
  script.in(kA, 1, 1 + taken);
  EXPECT_EQ(script.info().bytes_unacked, 0U);
  EXPECT_EQ(write_crumbs(greedy), taken + 1);  // `other` holds one less than before
}

// Each greedy in its own way, in every order: the last eighth is nobody's.
TEST_F(TcpReserve, TM66_all_at_once_still_leave_the_last_eighth) {
  const Peer other = open_waiting();
  const Peer sender = open(), holes = open(), crumbs = open();
  (void)write_crumbs(sender);
  send_holes(holes);
  (void)send_crumbs(crumbs);
  send_holes(holes);
  (void)write_crumbs(sender);
  EXPECT_LE(in_use(), kPackets - kPackets / 8);
  expect_alive(other);
}

// ---- a peer that takes little at a time --------------------------------------------------------

class TcpReserveSmallMss : public TcpReserve {
 protected:
  TcpReserveSmallMss() : TcpReserve({.peer_syn = only_mss(88), .packets = kPackets}) {}
};

// Each acknowledgement of one tiny segment lets two more out, cut off a large packet: the pieces
// are packets of their own until they are acknowledged.
TEST_F(TcpReserveSmallMss, TM66_T52_pieces_cut_for_a_small_window_leave_packets_for_others) {
  const Peer greedy = open();
  const Peer other = open();
  script.write(88);
  turn_to(greedy);
  script.write(2 * 65000);
  size_t most = 0;
  uint32_t acked = 1;
  for (size_t i = 0; i < 6 * kPackets; ++i) {
    script.in(kA, 1, acked += 88);
    most = std::max(most, in_use());
  }
  EXPECT_GE(most, kPackets / 2);
  EXPECT_LE(most, kPackets - kPackets / 4);
  turn_to(other);
  script.in(kA, 1, 89);
  EXPECT_EQ(script.info().bytes_unacked, 0U);
  // The rest goes out as the peer acknowledges: no piece is forgotten, no time-out is needed.
  turn_to(greedy);
  for (size_t i = 0; i < 4000 && acked <= 2 * 65000; ++i) {
    const auto unacked = static_cast<uint32_t>(script.info().bytes_unacked);
    ASSERT_GT(unacked, 0U);
    acked += std::min(unacked, 88U);
    script.in(kA, 1, acked);
  }
  EXPECT_EQ(acked, 1 + 2 * 65000U);
  EXPECT_EQ(script.count("tcp.timeouts"), 0U);
}

// ---- no packet at all --------------------------------------------------------------------------

TEST_F(TcpReserve, T36_T64_a_time_out_at_which_nothing_could_be_sent_is_a_retry) {
  (void)open_waiting();
  take_all_packets();
  script.drop_output();
  script.advance(90 * kNsPerSecond);
  EXPECT_EQ(script.recorder().closed, 0) << "R2 is 100 s at least";
  script.advance(3600 * kNsPerSecond);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().closed, 1);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_EQ(script.tcp->connections(), 0U);
  EXPECT_EQ(script.count("tcp.timeouts"), 15U);
  give_packets_back();
}

TEST_F(TcpReserve, T56_T60_a_fin_that_could_not_be_sent_again_ends_too) {
  const Peer peer = open();
  script.tcp->shutdown_send(*peer.connection);
  script.pump();
  EXPECT_TRUE(out_of(peer).has(kTcpFin));
  take_all_packets();
  script.tcp->release(*peer.connection);
  script.connection = nullptr;
  script.advance(3600 * kNsPerSecond);
  EXPECT_EQ(script.tcp->connections(), 0U);
  give_packets_back();
}

TEST_F(TcpReserve, T31_T36_probes_that_could_not_be_sent_end_the_wait) {
  (void)open();
  script.in(kA, 1, 1, {.window = 0});
  script.write(100);
  take_all_packets();
  script.drop_output();
  script.advance(3600 * kNsPerSecond);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_EQ(script.tcp->connections(), 0U);
  give_packets_back();
}

TEST_F(TcpReserve, T12_T16_handshakes_that_could_not_be_sent_end) {
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);  // half open, its SYN-ACK is out
  EXPECT_EQ(script.tcp->connections(), 1U);
  take_all_packets();
  Recorder recorder;
  tcp::Connection* active = script.tcp->connect({}, {kPeerAddress, 81}, recorder, {}).value();
  script.drop_output();
  script.advance(170 * kNsPerSecond);
  EXPECT_EQ(recorder.closed, 0) << "R2 of a SYN is three minutes";
  script.advance(300 * kNsPerSecond);
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(recorder.reason, std::errc::timed_out);
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.tcp->release(*active);
  give_packets_back();
}

TEST_F(TcpReserve, T64_packets_that_come_back_in_time_save_the_connection) {
  const Peer peer = open_waiting();
  take_all_packets();
  script.advance(60 * kNsPerSecond);
  give_packets_back();
  script.drop_output();
  script.advance(60 * kNsPerSecond);
  const Out again = out_of(peer);
  EXPECT_EQ(script.seq(again), 1U);
  EXPECT_EQ(again.size, 100U);
  script.in(kA, 1, 101, {.payload = 10});
  EXPECT_EQ(script.read(), 10U);
  EXPECT_EQ(script.info().bytes_unacked, 0U);
  EXPECT_EQ(script.recorder().closed, 0);
}

}  // namespace
}  // namespace nobounce::test
