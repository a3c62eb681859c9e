// Random segments against live connections: nothing crashes, nothing leaks, bounds hold, and what
// was delivered in order stays intact (fuzzer 5 of tcp.md 12.4 in its deterministic form).
#include "support/frames.hpp"
#include "tcp/pair.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

class SegmentFuzzer {
 public:
  SegmentFuzzer(Script& script, uint64_t seed) : script_(script), random_(seed) {}

  void one() {
    In segment;
    const auto info = script_.info();
    // Numbers near the edges that matter, or anywhere.
    const uint32_t seq = near(next_ + (pick(3) == 0 ? info.receive_window : 0));
    const uint32_t ack = near(1 + static_cast<uint32_t>(written_));
    uint8_t flags = static_cast<uint8_t>(random_.below(256));
    if (pick(4) != 0) flags = kA | (pick(8) == 0 ? kTcpPsh : 0);
    if (pick(200) != 0) flags = static_cast<uint8_t>(flags & ~(kTcpRst | kTcpFin));
    segment.window = static_cast<uint16_t>(random_.next_u32());
    if (pick(5) == 0) segment.window = 0;
    segment.payload = pick(3) == 0 ? random_.below(1400) : random_.below(4);
    if (pick(3) == 0) return raw(flags, seq, ack, segment);
    segment.options = options();
    segment.bad_checksum = pick(50) == 0;
    script_.queue(flags, seq, ack, segment);
  }

  // Option bytes at random (T-3).
  void raw(uint8_t flags, uint32_t seq, uint32_t ack, const In& segment) {
    const uint32_t words = random_.below(11);
    ByteVector bytes(20 + words * 4 + segment.payload);
    TcpHeader header;
    header.source_port = script_.peer_port;
    header.destination_port = script_.our_port;
    header.sequence = script_.options.peer_isn + seq;
    header.acknowledgement = script_.our_isn + ack;
    header.flags = flags;
    header.window = segment.window;
    header.emit(bytes);
    for (uint32_t i = 0; i < words * 4; ++i) {
      bytes[20 + i] = static_cast<std::byte>(pick(2) == 0 ? random_.below(40) : random_.below(6));
    }
    store_be<uint8_t>(bytes, 12, static_cast<uint8_t>((5 + words) << 4));
    script_.queue_tcp(std::move(bytes), segment);
  }

  void written(size_t bytes) { written_ += bytes; }
  uint32_t pick(uint32_t n) { return random_.below(n); }
  void received(size_t bytes) { next_ += static_cast<uint32_t>(bytes); }

 private:
  uint32_t near(uint32_t value) {
    switch (pick(6)) {
      case 0:
        return random_.next_u32();
      case 1:
        return value + random_.below(20'000);
      case 2:
        return value - random_.below(20'000);
      default:
        return value + random_.below(5) - 2;
    }
  }
  TcpOptions options() {
    TcpOptions o;
    if (pick(2) == 0) o.timestamps = {random_.next_u32(), random_.next_u32()};
    if (pick(2) == 0) {
      o.sack_count = static_cast<uint8_t>(1 + random_.below(3));
      for (auto& block : o.sack) block = {random_.next_u32(), random_.next_u32()};
    }
    if (pick(20) == 0) o.mss = static_cast<uint16_t>(random_.next_u32());
    if (pick(20) == 0) o.window_scale = static_cast<uint8_t>(random_.below(256));
    return o;
  }

  Script& script_;
  SeededRandom random_;
  uint64_t written_ = 0;
  uint32_t next_ = 1;
};

// 10^6 segments in all; a connection that ends is replaced.
TEST(TcpFuzz, T3_T5_a_million_segments_against_live_connections) {
  constexpr int kSegments = 1'000'000;
  int done = 0;
  uint64_t seed = 1;
  uint64_t lives = 0;
  while (done < kSegments) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ScriptOptions options;
    options.seed = seed;
    options.connection.receive_buffer = 1u << (12 + seed % 10);
    options.layer.out_of_order_max = 64;
    if (seed % 2 == 0) options.peer_syn.timestamps = {1, 0};
    if (seed % 3 == 0) options.peer_syn.window_scale = static_cast<uint8_t>(seed % 15);
    options.peer_syn.sack_permitted = seed % 4 == 0;
    if (seed % 5 == 0) options.layer.fixed_isn = 0xffffff00;
    Script script(options);
    script.listen();
    script.send_raw(kTcpSyn, options.peer_isn, 0, {.options = options.peer_syn});
    script.our_isn = script.out().header.sequence;
    TcpOptions stamp;
    if (options.peer_syn.timestamps) stamp.timestamps = {1, 0};
    script.in(kA, 1, 1, {.options = stamp});
    script.connection = script.acceptor.connection;
    ASSERT_NE(script.connection, nullptr);
    SegmentFuzzer fuzzer(script, seed);
    ++lives;
    for (int i = 0; i < 5000 && done < kSegments && script.recorder().closed == 0; ++i, ++done) {
      fuzzer.one();
      switch (fuzzer.pick(12)) {
        case 0: {
          const size_t bytes = 1 + fuzzer.pick(5000);
          if (script.info().bytes_unacked < 100'000 && script.end.packets.in_use() < 1000) {
            script.write(bytes);
            fuzzer.written(bytes);
          }
          break;
        }
        case 1:
          fuzzer.received(script.read());
          break;
        case 2:
          script.advance(fuzzer.pick(1000) * kMilli);
          break;
        case 3:
        case 4:
          script.pump();
          break;
        default:
          break;
      }
      script.drop_output();
      ASSERT_LE(script.end.packets.in_use(), 2000U);
    }
    script.pump();
    script.drop_output();
    ++seed;
    if (HasFailure()) return;
  }
  EXPECT_GE(lives, 20U);
}

// One who knows addresses and ports, and nothing else, sends 10^6 segments into a transfer that runs
// both ways: the streams arrive whole, nobody is reset, no timer is left behind (T-18, T-20, T-21).
TEST(TcpFuzz, T20_T21_a_million_blind_segments_into_a_transfer) {
  constexpr uint64_t kSegments = 1'000'000;
  PairOptions options;
  options.seed = 7;
  options.wire.delay_ns = 100'000;
  Pair pair(options);
  Transfer transfer(pair, 48 << 20, 48 << 20);
  SeededRandom random(7);
  uint64_t done = 0;
  const Endpoint left = pair.left.tcp->info(*transfer.client.connection).local;
  const auto forge = [&](Side& to, const Endpoint& from, const Endpoint& at) {
    PacketBurst burst;
    while (!burst.full() && done < kSegments) {
      TcpHeader header;
      header.source_port = from.port;
      header.destination_port = at.port;
      header.sequence = random.next_u32();
      header.acknowledgement = random.next_u32();
      header.flags = static_cast<uint8_t>(random.below(256));
      header.window = static_cast<uint16_t>(random.next_u32());
      const ByteVector payload(random.below(3) == 0 ? random.below(200) : 0, std::byte{0xee});
      const ByteVector segment = tcp(from.address, at.address, header, payload);
      const ByteVector packet = ipv4({.dont_fragment = true,
                                      .protocol = ip::kProtocolTcp,
                                      .source = from.address,
                                      .destination = at.address},
                                     segment);
      const ByteVector frame = ethernet({.destination = to.device->mac(),
                                         .source = MacAddress{{2, 0, 0, 0, 0, 0x77}},
                                         .ether_type = kEtherTypeIpv4},
                                        packet);
      PacketPtr received = make_received(to.end.context, {.bytes = frame});
      ASSERT_NE(received, nullptr);
      burst.push(std::move(received));
      ++done;
    }
    to.ip->receive(burst);
    to.tcp->end_of_burst();
    to.ip->flush();
  };
  ASSERT_TRUE(pair.run_until(
      [&] {
        if (transfer.server.sent == 0 && transfer.server.connection != nullptr) {
          transfer.server.write();
        }
        if (transfer.client.connected > 0 && !transfer.client.done()) {
          for (int i = 0; i < 10; ++i) {
            forge(pair.left, {kRightAddress, 80}, left);
            forge(pair.right, left, {kRightAddress, 80});
          }
        }
        return transfer.client.done() && transfer.server.done();
      },
      600 * kNsPerSecond));
  EXPECT_EQ(done, kSegments);
  transfer.expect_complete();
  pair.run(300 * kNsPerSecond);
  EXPECT_EQ(pair.left.tcp->connections() + pair.right.tcp->connections(), 0U);
}

// The same against LISTEN, SYN-RECEIVED, SYN-SENT and TIME-WAIT.
TEST(TcpFuzz, T3_T5_segments_against_opening_and_closed_connections) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ScriptOptions options;
    options.seed = seed;
    options.layer.connections_max = 32;
    Script script(options);
    script.listen(8);
    std::vector<tcp::Connection*> ours;
    SeededRandom random(seed);
    Recorder recorder;
    for (int i = 0; i < 2000; ++i) {
      if (i % 50 == 0) {
        for (tcp::Connection* c : ours) script.tcp->abort(*c);
        ours.clear();
        for (uint16_t k = 0; k < 4; ++k) {
          auto c = script.tcp->connect({}, {kPeerAddress, 4000}, recorder, {});
          if (c) ours.push_back(*c);
        }
      }
      if (script.acceptor.connection != nullptr) {
        tcp::Connection* c = std::exchange(script.acceptor.connection, nullptr);
        random.below(2) == 0 ? script.tcp->abort(*c) : script.tcp->release(*c);
      }
      In segment;
      segment.payload = random.below(20);
      if (random.below(2) == 0) segment.options = options.peer_syn;
      script.our_port = 80;
      script.peer_port = static_cast<uint16_t>(4000 + random.below(4));
      if (!ours.empty() && random.below(2) == 0) {
        script.our_port = script.tcp->info(*ours[random.below(4) % ours.size()]).local.port;
      }
      auto flags = static_cast<uint8_t>(random.below(64));
      if (random.below(3) == 0) flags = kTcpSyn;
      if (random.below(3) == 0) flags = kTcpSyn | kA;
      // Believable numbers now and then: answers to what we sent last.
      uint32_t ack = random.next_u32();
      if (!script.quiet()) ack = script.out().header.sequence + random.below(3);
      script.send_raw(flags, 1000 + random.below(3), ack, segment);
      if (random.below(20) == 0) script.advance(random.below(3000) * kMilli);
      if (script.pending() > 20) script.drop_output();
      ASSERT_LE(script.tcp->connections(), 32U);
    }
    for (tcp::Connection* c : ours) script.tcp->abort(*c);
    if (script.acceptor.connection != nullptr) script.tcp->abort(*script.acceptor.connection);
    script.advance(400 * kNsPerSecond);
    EXPECT_EQ(script.tcp->connections(), 0U);
    script.drop_output();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace nobounce::test
