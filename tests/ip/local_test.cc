// What is sent to addresses of our own: inside, in order, in private copies (N-9, NC-57, ZN-7).
#include <deque>

#include "ip/two_addresses.hpp"

namespace nobounce::ip {
namespace {

TEST_F(TwoAddresses, N9_what_is_sent_to_us_stays_inside) {
  for (const auto& [from, to] : {std::pair{kOurs, kOurs}, std::pair{kOurs, kSecond}}) {
    udp.packets.clear();
    EXPECT_EQ(send(from, to), SendResult::sent);
    EXPECT_TRUE(udp.packets.empty());  // never inside the sender's call
    EXPECT_TRUE(layer.local_pending());
    EXPECT_EQ(layer.receive_local(), 1U);
    ASSERT_EQ(udp.packets.size(), 1U);
    EXPECT_EQ(udp.packets[0], test::udp({from, 1}, {to, 2}, test::pattern(20)));
    EXPECT_EQ(udp.last.source, from);
    EXPECT_EQ(udp.last.destination, to);
    EXPECT_TRUE(udp.last.to_unicast);
    EXPECT_TRUE(udp.checksum_ok);
    EXPECT_FALSE(layer.local_pending());
  }
  layer.flush();
  EXPECT_EQ(device.sent(), 0U);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(TwoAddresses, N9_the_queue_to_ourselves_is_bounded_and_tells_when_there_is_room) {
  size_t sent = 0;
  while (send(kOurs, kSecond) == SendResult::sent) ++sent;
  EXPECT_EQ(sent, 256U);
  EXPECT_EQ(end.count("ip.drop.local_full"), 1U);
  EXPECT_EQ(layer.receive_local(), sent);
  layer.flush();
  EXPECT_EQ(udp.ready, 1);
  EXPECT_EQ(send(kOurs, kSecond), SendResult::sent);  // left behind: the layer gives it back
}

TEST_F(TwoAddresses, N4_ping_to_ourselves) {
  struct Sink final : Layer::EchoSink {
    void echo_reply(const IpAddress& from, uint16_t, uint16_t, uint8_t,
                    size_t bytes) noexcept override {
      EXPECT_EQ(from, kSecond);
      sizes.push_back(bytes);
    }
    void echo_error(const IcmpError&) noexcept override {}
    std::vector<size_t> sizes;
  } sink;
  layer.set_echo_sink(&sink);
  for (const size_t size : {0U, 56U, 1400U, 8000U}) {
    EXPECT_EQ(layer.send_echo(kSecond, 1, 1, size), SendResult::sent);
  }
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(sink.sizes, (std::vector<size_t>{0, 56, 1400, 8000}));
  layer.set_echo_sink(nullptr);
}

// ---- copies -------------------------------------------------------------------------------------

TEST_F(TwoAddresses, NC57_the_receiver_has_pages_of_its_own) {
  const ByteVector bytes = test::pattern(3000);
  const Frag frag = end.make_frag(bytes);
  page_get(*frag.page);  // the sender's own, as for a retransmission
  PacketPtr packet = end.packets.make();
  std::ranges::fill(packet->append(8), std::byte{7});
  ASSERT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
  EXPECT_EQ(layer.send(std::move(packet),
                       {.source = kOurs, .destination = kSecond, .protocol = kProtocolUdp}),
            SendResult::sent);
  EXPECT_EQ(frag.page->refcount.load(), 1U);  // given back at once
  page_write(*frag.page, frag.offset, ByteVector(3000, std::byte{0xee}));
  EXPECT_EQ(layer.receive_local(), 1U);
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_TRUE(std::ranges::equal(Bytes(udp.packets[0]).subspan(8), bytes));
  EXPECT_EQ(end.copies.bytes(ThreadKind::application, CopyKind::local), 3000U);
  page_put(*frag.page);
  EXPECT_EQ(end.packets.in_use(), 0U);
  EXPECT_EQ(end.arena->pages_free(), end.arena->bytes() / kPageSize);
}

TEST_F(TwoAddresses, N9_memory_in_pieces_is_enough_and_none_is_a_loss) {
  std::vector<Page*> hoard;
  const auto fill = [&] {
    while (Page* page = end.arena->alloc(0)) hoard.push_back(page);
  };
  PacketPtr packet = end.packets.make();
  std::ranges::fill(packet->append(8), std::byte{7});
  const ByteVector bytes = test::pattern(20'000);
  for (size_t at = 0; at < bytes.size(); at += 4000) {
    const Frag frag = end.make_frag(Bytes(bytes).subspan(at, 4000));
    ASSERT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
  }
  PacketPtr again = end.packets.clone(*packet);
  std::ranges::fill(again->push(8), std::byte{8});
  fill();
  const Egress egress{.source = kOurs, .destination = kSecond, .protocol = kProtocolUdp};
  EXPECT_EQ(layer.send(std::move(packet), egress), SendResult::sent);  // lost, as on a wire
  EXPECT_EQ(end.count("ip.drop.local_no_memory"), 1U);
  EXPECT_EQ(layer.receive_local(), 0U);
  for (size_t i = 0; i < hoard.size(); i += 2) page_put(*std::exchange(hoard[i], nullptr));
  ASSERT_EQ(end.arena->alloc(1), nullptr);
  EXPECT_EQ(layer.send(std::move(again), egress), SendResult::sent);
  EXPECT_EQ(layer.receive_local(), 1U);
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_TRUE(std::ranges::equal(Bytes(udp.packets[0]).subspan(8), bytes));
  for (Page* page : hoard) {
    if (page != nullptr) page_put(*page);
  }
  EXPECT_EQ(end.packets.in_use(), 0U);
  EXPECT_EQ(end.arena->pages_free(), end.arena->bytes() / kPageSize);
}

// ---- order and bounds ---------------------------------------------------------------------------

// Answers each datagram with two, as deep as it is let.
class Multiplier final : public Transport {
 public:
  explicit Multiplier(test::StackEnd& stack_end, Layer& ip_layer)
      : end_(stack_end), layer_(ip_layer) {}
  bool send(uint32_t number) {
    PacketPtr packet = end_.packets.make();
    store_be<uint32_t>(packet->append(4), 0, number);
    const bool is_sent =
        layer_.send(std::move(packet),
                    {.source = kOurs, .destination = kSecond, .protocol = kProtocolTcp}) ==
        SendResult::sent;
    if (is_sent) expected.push_back(number);
    return is_sent;
  }
  void receive(PacketPtr packet, const Ingress&) noexcept override {
    EXPECT_EQ(++depth_, 1);
    EXPECT_EQ(load_be<uint32_t>(packet->head(), 0), expected.front());
    expected.pop_front();
    for (int i = 0; i < 2; ++i) (void)send(next++);
    --depth_;
  }
  void icmp_error(const IcmpError&) noexcept override {}

  std::deque<uint32_t> expected;
  uint32_t next = 1;

 private:
  test::StackEnd& end_;
  Layer& layer_;
  int depth_ = 0;
};

TEST_F(TwoAddresses, N9_answers_wait_for_the_next_look_and_nothing_overtakes) {
  Multiplier multiplier(end, layer);
  layer.register_transport(kProtocolTcp, multiplier);
  EXPECT_TRUE(multiplier.send(0));
  size_t waiting = 1;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(layer.receive_local(), waiting);
    waiting = std::min<size_t>(2 * waiting, kLocalMax);
    EXPECT_EQ(multiplier.expected.size(), waiting);
  }
  EXPECT_GT(end.count("ip.drop.local_full"), 0U);
}

TEST_F(TwoAddresses, N9_a_device_that_takes_nothing_does_not_stop_what_stays_inside) {
  inject(arp_request(kPeer, kOurs));
  device.set_room(0);
  while (send(kOurs, kPeer) == SendResult::sent) {
  }
  EXPECT_EQ(end.count("ip.drop.output_full"), 1U);
  while (send(kOurs, kSecond) == SendResult::sent) {
  }
  layer.flush();
  EXPECT_EQ(udp.ready, 0);  // no room in either
  EXPECT_EQ(layer.receive_local(), kLocalMax);
  layer.flush();
  EXPECT_EQ(udp.ready, 1);
  // And the other way round.
  while (send(kOurs, kSecond) == SendResult::sent) {
  }
  EXPECT_EQ(send(kOurs, kPeer), SendResult::would_block);
  device.set_room(1024);
  layer.flush();
  EXPECT_EQ(udp.ready, 2);
}

// ---- errors -------------------------------------------------------------------------------------

TEST_F(TwoAddresses, N9_errors_about_what_stays_inside_come_from_inside_only) {
  const ByteVector quoted =
      test::ipv4({.protocol = kProtocolUdp, .source = kOurs, .destination = kSecond},
                 test::udp({kOurs, 1}, {kSecond, 2}, test::pattern(20)));
  ByteVector icmp(wire::kIcmpHeaderSize);
  wire::IcmpHeader header{.type = wire::kIcmpUnreachable, .code = wire::kIcmpPortUnreachable};
  header.emit(icmp);
  icmp.insert(icmp.end(), quoted.begin(), quoted.end());
  header.checksum = checksum_finish(checksum_add(0, icmp));
  header.emit(icmp);
  inject(test::ethernet(
      {.destination = kOurMac, .source = kPeerMac, .ether_type = wire::kEtherTypeIpv4},
      test::ipv4({.protocol = kProtocolIcmp, .source = kPeer, .destination = kOurs}, icmp)));
  EXPECT_EQ(end.count("icmp.received"), 1U);
  EXPECT_EQ(end.count("icmp.bad_quote"), 1U);
  EXPECT_TRUE(udp.errors.empty());
  // From inside: nobody has protocol 6 here.
  PacketPtr packet = end.packets.make();
  std::ranges::fill(packet->append(20), std::byte{7});
  EXPECT_EQ(layer.send(std::move(packet),
                       {.source = kOurs, .destination = kSecond, .protocol = kProtocolTcp}),
            SendResult::sent);
  EXPECT_EQ(layer.receive_local(), 1U);
  EXPECT_EQ(end.count("icmp.errors_sent"), 1U);
  Recorder tcp;
  layer.register_transport(kProtocolTcp, tcp);
  EXPECT_EQ(layer.receive_local(), 1U);
  ASSERT_EQ(tcp.errors.size(), 1U);
  EXPECT_EQ(tcp.errors[0].kind, IcmpError::Kind::protocol_unreachable);
  EXPECT_EQ(tcp.errors[0].source, kOurs);
  EXPECT_EQ(tcp.errors[0].destination, kSecond);
  EXPECT_EQ(end.count("icmp.bad_quote"), 1U);
}

}  // namespace
}  // namespace nobounce::ip
