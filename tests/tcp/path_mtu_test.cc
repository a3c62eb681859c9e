// Paths that are narrower than the link, told of by ICMP or by silence (T-53, C048).
#include "ip/path_mtus.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

class TcpPathMtu : public testing::Test {
 protected:
  // A real message from the wire: "fragmentation needed" about our segment at `seq`.
  void too_big(uint32_t seq, uint16_t mtu, uint16_t port_offset = 0) {
    ByteVector quote(kIpv4HeaderSize + 8);
    Ipv4Header{.total_length = 1500,
               .dont_fragment = true,
               .protocol = ip::kProtocolTcp,
               .source = kOurAddress,
               .destination = kPeerAddress}
        .emit(quote);
    const auto tcp = MutableBytes(quote).subspan(kIpv4HeaderSize);
    store_be<uint16_t>(tcp, 0, static_cast<uint16_t>(script.our_port + port_offset));
    store_be<uint16_t>(tcp, 2, script.peer_port);
    store_be<uint32_t>(tcp, 4, script.our_isn + seq);
    ByteVector message(kIcmpHeaderSize + quote.size());
    IcmpHeader header{.type = kIcmpUnreachable, .code = kIcmpFragmentationNeeded, .sequence = mtu};
    header.emit(message);
    std::ranges::copy(quote, message.begin() + kIcmpHeaderSize);
    header.checksum = checksum_finish(checksum_add(0, message));
    header.emit(message);
    script.queue_ip(ip::kProtocolIcmp, message, IpAddress::v4(192, 0, 2, 77), kOurAddress);
    script.pump();
  }
  // Sizes of what was sent, oldest first.
  std::vector<size_t> sizes() {
    std::vector<size_t> sizes;
    while (!script.quiet()) sizes.push_back(script.out().size);
    return sizes;
  }
  Script script;
};

TEST_F(TcpPathMtu, C048_only_messages_about_outstanding_data_are_believed) {
  script.accept();
  script.write(3 * 1460);
  script.drop_output();
  too_big(1, 1000, 1);          // another port
  too_big(0, 1000);             // the SYN is acknowledged
  too_big(1 + 3 * 1460, 1000);  // not sent yet
  too_big(0x80000000, 1000);
  too_big(1, 1500);  // no less than what we know
  too_big(1, 65535);
  EXPECT_EQ(script.info().mss, 1460U);
  EXPECT_EQ(script.ip_layer->mtu_to(kPeerAddress), 1500);
  EXPECT_TRUE(script.quiet());
  too_big(1 + 2 * 1460, 1000);
  EXPECT_EQ(script.info().mss, 960U);
  EXPECT_EQ(script.ip_layer->mtu_to(kPeerAddress), 1000);
  script.drop_output();
}

TEST_F(TcpPathMtu, T53_what_is_queued_and_what_is_out_goes_in_the_new_size_without_a_cut) {
  script.accept();
  script.write(30 * 1460);
  script.drop_output();
  const uint32_t window = script.info().congestion_window;
  too_big(1, 1000);
  EXPECT_EQ(script.info().congestion_window, window);
  uint32_t acked = 1;
  for (int i = 0; i < 200 && acked < 1 + 30 * 1460; ++i) {
    while (!script.quiet()) {
      const Out out = script.out();
      EXPECT_LE(out.size, 960U);
      const uint32_t end = script.seq(out) + static_cast<uint32_t>(out.size);
      acked = std::max(acked, end);
    }
    script.in(kA, 1, acked);
  }
  EXPECT_EQ(acked, 1U + 30 * 1460);
  EXPECT_EQ(script.count("tcp.timeouts"), 0U);
  script.drop_output();
}

TEST_F(TcpPathMtu, T52_the_mss_we_announce_is_the_links_not_the_paths) {
  script.ip_layer->lower_path_mtu(kPeerAddress, 600);
  script.start_connect();
  EXPECT_EQ(script.first_syn.header.options.mss, 1460);
  script.in(kTcpSyn | kA, 0, 1, {.options = script.options.peer_syn});
  script.drop_output();
  EXPECT_EQ(script.info().mss, 560U);  // what we send keeps to the path
}

TEST_F(TcpPathMtu, C048_a_black_hole_is_found_after_three_time_outs) {
  script.accept();
  script.write(1460);
  EXPECT_EQ(sizes(), std::vector<size_t>{1460});
  script.advance(3 * kNsPerSecond);
  const std::vector<size_t> sent = sizes();
  ASSERT_GE(sent.size(), 3U);
  EXPECT_EQ(sent[0], 1460U);
  EXPECT_EQ(sent[1], 1460U);
  EXPECT_EQ(sent[2], 1240U);
  EXPECT_EQ(script.count("tcp.black_hole_guesses"), 1U);
  // It was one: the rest follows, and further data keeps to what passes.
  script.in(kA, 1, 1 + 1240);
  script.drop_output();
  script.in(kA, 1, 1 + 1460);
  script.write(1460);
  EXPECT_EQ(script.out().size, 1240U);
  script.drop_output();
  EXPECT_EQ(script.ip_layer->mtu_to(kPeerAddress), 1500);  // a guess, for this connection alone
  script.in(kA, 1, 1 + 2 * 1460);
  script.advance(601 * kNsPerSecond);
  script.write(1460);
  EXPECT_EQ(script.out().size, 1460U);
  script.drop_output();
}

TEST_F(TcpPathMtu, T53_the_second_guess_is_the_floor_and_the_last) {
  script.accept();
  script.write(1460);
  script.advance(90 * kNsPerSecond);
  std::vector<size_t> sent = sizes();
  ASSERT_GE(sent.size(), 8U);
  EXPECT_EQ(sent[5], 1240U);
  EXPECT_EQ(sent[6], 536U);  // the sixth time-out
  EXPECT_EQ(sent.back(), 536U);
  EXPECT_EQ(script.count("tcp.black_hole_guesses"), 2U);
}

TEST_F(TcpPathMtu, T53_small_segments_that_are_lost_prove_nothing) {
  script.accept();
  script.write(500);
  script.advance(60 * kNsPerSecond);
  EXPECT_EQ(script.count("tcp.black_hole_guesses"), 0U);
  EXPECT_EQ(script.info().mss, 1460U);
  script.drop_output();
}

TEST_F(TcpPathMtu, T53_an_unanswered_handshake_proves_nothing) {
  script.start_connect();
  script.advance(100 * kNsPerSecond);
  EXPECT_EQ(script.count("tcp.black_hole_guesses"), 0U);
  script.drop_output();
}

}  // namespace
}  // namespace nobounce::test
