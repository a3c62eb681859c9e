// Receive buffers below their floor: what holds them must not keep out the small frames that would
// free them (TM-66, TM-69). The driver alone first, then with the floors above it.
#include <gtest/gtest.h>

#include "support/frames.hpp"
#include "support/virtio_rig.hpp"
#include "tcp/tcp_layer.hpp"
#include "udp/udp_layer.hpp"

namespace nobounce::test {
namespace {

constexpr uint16_t kQueueSize = 64;

class ReceiveFloor : public testing::Test {
 protected:
  ReceiveFloor()
      : rig({.net = {.queue_size = kQueueSize},
             .region_bytes = 4 << 20,
             .arena_bytes = 2 << 20,
             .packets = 4096,
             .quotas = {.tx_percent = 45, .rx_percent = 0}}) {
    rig.open();
  }
  ~ReceiveFloor() override {
    unread.clear();
    give_private_pages_back();
  }

  // A reader that never reads holds every page receiving can have.
  void run_low() {
    while (rig.counter("q0.rx_drop.low_buffers") == 0) {
      ASSERT_TRUE(rig.device.deliver(pattern(1000)));
      for (PacketPtr& packet : rig.receive()) unread.push_back(std::move(packet));
      ASSERT_LT(unread.size(), 3000U) << "pages without end";
    }
    ASSERT_EQ(rig.counter("q0.rx_copied_out"), 0U);
  }
  void take_private_pages() {
    while (Page* page = rig.arena->alloc(0)) private_pages_.push_back(page);
  }
  void give_private_pages_back() {
    for (Page* page : std::exchange(private_pages_, {})) page_put(*page);
  }

  VirtioRig rig;
  std::vector<PacketPtr> unread;

 private:
  std::vector<Page*> private_pages_;
};

TEST_F(ReceiveFloor, TM66_small_frames_get_in_and_leave_their_buffers) {
  run_low();
  const uint16_t posted = rig.device.available(0);
  std::vector<PacketPtr> kept;
  uint64_t count = 0;
  for (const size_t size : {size_t{14}, size_t{42}, size_t{60}, kHeaderWindow - 1, kHeaderWindow}) {
    for (uint64_t i = 0; i < 2 * kQueueSize; ++i) {  // more than there are buffers; all are kept
      ASSERT_TRUE(rig.device.deliver(pattern(size, ++count)));
      auto received = rig.receive();
      ASSERT_EQ(received.size(), 1U) << size << " bytes, " << i;
      EXPECT_EQ(VirtioRig::bytes_of(*received[0]), pattern(size, count));
      kept.push_back(std::move(received[0]));
    }
  }
  EXPECT_EQ(rig.counter("q0.rx_copied_out"), count);
  EXPECT_EQ(rig.counter("q0.rx_drop.low_buffers"), 1U);
  EXPECT_EQ(rig.device.available(0), posted);
}

TEST_F(ReceiveFloor, TM69_what_does_not_fit_the_window_is_dropped_and_leaves_its_buffers) {
  run_low();
  const uint16_t posted = rig.device.available(0);
  ASSERT_TRUE(rig.device.deliver(pattern(kHeaderWindow + 1)));
  ASSERT_TRUE(rig.device.deliver(pattern(60), {}, 0, 40));  // in two buffers
  EXPECT_TRUE(rig.receive().empty());
  EXPECT_EQ(rig.counter("q0.rx_drop.low_buffers"), 3U);
  EXPECT_EQ(rig.counter("q0.rx_copied_out"), 0U);
  EXPECT_EQ(rig.device.available(0), posted);
  // With pages to be had again nothing is copied out, and size does not matter.
  unread.clear();
  ASSERT_TRUE(rig.device.deliver(pattern(60)));
  ASSERT_TRUE(rig.device.deliver(pattern(kHeaderWindow + 1)));
  EXPECT_EQ(rig.receive().size(), 2U);
  EXPECT_EQ(rig.counter("q0.rx_copied_out"), 0U);
}

TEST_F(ReceiveFloor, TM66_small_frames_need_no_private_page) {
  run_low();
  take_private_pages();
  ASSERT_TRUE(rig.device.deliver(pattern(100, 5)));
  auto received = rig.receive();
  ASSERT_EQ(received.size(), 1U);
  Packet& packet = *received[0];
  packet.pull(14);
  // Headers can be read; who wants the payload kept needs a page after all.
  EXPECT_FALSE(payload_to_frags(packet, 20, *rig.arena));
  EXPECT_EQ(packet.head().size(), 86U);
  EXPECT_TRUE(payload_to_frags(packet, 86, *rig.arena));
  EXPECT_EQ(packet.payload_size(), 0U);
  give_private_pages_back();
  EXPECT_TRUE(payload_to_frags(packet, 20, *rig.arena));
  EXPECT_EQ(packet.head().size(), 20U);
  EXPECT_EQ(packet.payload_size(), 66U);
  const ByteVector sent = pattern(100, 5);
  EXPECT_EQ(VirtioRig::bytes_of(packet), ByteVector(sent.begin() + 14, sent.end()));
}

TEST_F(ReceiveFloor, TM41_what_the_device_says_of_a_small_frame_is_kept) {
  run_low();
  ASSERT_TRUE(rig.device.deliver(pattern(60), {.flags = wire::kNetDataValid}));
  ASSERT_TRUE(rig.device.deliver(pattern(60), {}));
  const auto received = rig.receive();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0]->checksum, Checksum::verified);
  EXPECT_EQ(received[1]->checksum, Checksum::none);
  for (const PacketPtr& packet : received) EXPECT_EQ(packet->time_ns, rig.context->now_ns);
}

// ---- with the floors above ---------------------------------------------------------------------

const IpAddress kOurs = IpAddress::v4(10, 0, 0, 1);
const IpAddress kPeer = IpAddress::v4(10, 0, 0, 2);
constexpr MacAddress kPeerMac{{0x02, 0, 0, 0, 0, 2}};

struct Reader final : tcp::Owner, tcp::ListenerOwner, udp::Owner {
  tcp::Owner* on_accept(tcp::Connection& accepted) noexcept override {
    connection = &accepted;
    return this;
  }
  void on_connected() noexcept override {}
  void on_readable() noexcept override { ++readable; }
  void on_acked(size_t) noexcept override {}
  void on_closed(std::errc) noexcept override { ++closed; }
  void on_datagram(PacketPtr packet, const Endpoint&) noexcept override {
    EXPECT_TRUE(packet->head().empty());
    datagrams.push_back(flatten(*packet));
  }
  void on_error(std::errc) noexcept override {}
  tcp::Connection* connection = nullptr;
  int readable = 0, closed = 0;
  std::vector<ByteVector> datagrams;
};

class StackAtFloor : public ReceiveFloor {
 protected:
  StackAtFloor()
      : ip(*rig.context, *rig.net, {.address = {kOurs, 24}, .neighbours_max = 4}),
        tcp(*rig.context, ip, two_connections()),
        udp(*rig.context, ip, 4) {
    run_low();
    take_private_pages();
  }

  static tcp::LayerOptions two_connections() {
    tcp::LayerOptions options;
    options.connections_max = 2;
    return options;
  }
  void round() {
    rig.context->now_ns = rig.clock.now_ns();
    rig.timers.poll(rig.context->now_ns);
    rig.net->reclaim(0);
    PacketBurst burst;
    (void)rig.net->receive(0, burst);
    ip.receive(burst);
    tcp.end_of_burst();
    ip.flush();
  }
  void inject(const ByteVector& frame) {
    ASSERT_LE(frame.size(), kHeaderWindow);
    ASSERT_TRUE(rig.device.deliver(frame));
    round();
  }
  void inject_ip(uint8_t protocol, Bytes body) {
    inject(ethernet(
        {.destination = rig.net->mac(), .source = kPeerMac, .ether_type = wire::kEtherTypeIpv4},
        ipv4({.protocol = protocol, .source = kPeer, .destination = kOurs}, body)));
  }
  void inject_tcp(uint8_t flags, uint32_t seq, uint32_t ack, Bytes payload = {}) {
    inject_ip(ip::kProtocolTcp, test::tcp(kPeer, kOurs,
                                          {.source_port = 4000,
                                           .destination_port = 80,
                                           .sequence = seq,
                                           .acknowledgement = ack,
                                           .flags = flags,
                                           .window = 0xffff},
                                          payload));
  }
  // The next frame of that type; our own questions about the neighbour lie between.
  ByteVector sent(uint16_t ether_type = wire::kEtherTypeIpv4) {
    while (const auto frame = rig.device.take_sent()) {
      if (load_be<uint16_t>(frame->bytes, 12) == ether_type) return frame->bytes;
    }
    ADD_FAILURE() << "nothing was sent";
    return ByteVector(64);
  }
  wire::TcpHeader sent_tcp() {
    const ByteVector frame = sent();
    const auto view = wire::TcpView::parse(Bytes(frame).subspan(34));
    EXPECT_TRUE(view.has_value());
    return view ? view->header() : wire::TcpHeader{};
  }
  // ARP is the first thing that must get in and out.
  void resolve() {
    inject(arp_frame(MacAddress::broadcast(), {.operation = wire::ArpOperation::request,
                                               .sender_mac = kPeerMac,
                                               .sender_ip = kPeer,
                                               .target_mac = {},
                                               .target_ip = kOurs}));
    const ByteVector frame = sent(wire::kEtherTypeArp);
    const auto reply = wire::ArpView::parse(Bytes(frame).subspan(wire::kEthernetHeaderSize));
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->operation(), wire::ArpOperation::reply);
    EXPECT_EQ(reply->target_ip(), kPeer);
  }

  Reader reader;
  ip::Layer ip;
  tcp::Layer tcp;
  udp::Layer udp;
};

TEST_F(StackAtFloor, TM66_arp_and_ping_are_answered) {
  resolve();
  for (const size_t size : {0U, 1U, 56U, 150U}) {
    const ByteVector payload = pattern(size, size);
    inject_ip(ip::kProtocolIcmp,
              icmp({.type = wire::kIcmpEchoRequest, .identifier = 7, .sequence = 9}, payload));
    const ByteVector frame = sent();
    EXPECT_TRUE(has_right_checksums(frame)) << size;
    const auto reply = wire::IcmpView::parse(Bytes(frame).subspan(34));
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->type(), wire::kIcmpEchoReply);
    EXPECT_EQ(ByteVector(frame.begin() + 42, frame.end()), payload);
  }
}

TEST_F(StackAtFloor, TM66_handshake_acknowledgement_and_close_get_in_data_waits_for_pages) {
  resolve();
  tcp::Listener* listener = tcp.listen({kOurs, 80}, 1, reader, {}).value();
  inject_tcp(wire::kTcpSyn, 100, 0);
  const wire::TcpHeader syn_ack = sent_tcp();
  EXPECT_EQ(syn_ack.flags, wire::kTcpSyn | wire::kTcpAck);
  const uint32_t ours = syn_ack.sequence + 1;
  inject_tcp(wire::kTcpAck, 101, ours);
  ASSERT_NE(reader.connection, nullptr);

  // Payload has no page to lie in: not taken, not acknowledged.
  const ByteVector payload = pattern(20, 3);
  inject_tcp(wire::kTcpAck, 101, ours, payload);
  Frag frag;
  EXPECT_FALSE(tcp.pop_received(*reader.connection, frag));
  EXPECT_EQ(rig.counters.value("tcp.no_packet"), 1U);
  give_private_pages_back();
  inject_tcp(wire::kTcpAck, 101, ours, payload);
  ASSERT_TRUE(tcp.pop_received(*reader.connection, frag));
  ByteVector got(frag.size);
  page_read(*frag.page, frag.offset, got);
  page_return(*frag.page);
  EXPECT_EQ(got, payload);
  tcp.consumed(*reader.connection, got.size());
  take_private_pages();

  inject_tcp(wire::kTcpFin | wire::kTcpAck, 121, ours);
  EXPECT_EQ(sent_tcp().acknowledgement, 122U);
  tcp.shutdown_send(*reader.connection);
  round();
  EXPECT_EQ(sent_tcp().flags, wire::kTcpFin | wire::kTcpAck);
  inject_tcp(wire::kTcpAck, 122, ours + 1);
  EXPECT_EQ(reader.closed, 1);
  tcp.release(*reader.connection);
  tcp.close(listener);
}

TEST_F(StackAtFloor, TM66_a_datagram_without_a_page_is_dropped_and_counted) {
  resolve();
  udp::Port* port = udp.bind({kOurs, 53}, reader).value();
  const ByteVector payload = pattern(20, 3);
  const ByteVector datagram = test::udp({kPeer, 4000}, {kOurs, 53}, payload);
  inject_ip(ip::kProtocolUdp, datagram);
  EXPECT_TRUE(reader.datagrams.empty());
  EXPECT_EQ(rig.counters.value("udp.drop.no_memory"), 1U);
  inject_ip(ip::kProtocolUdp, test::udp({kPeer, 4000}, {kOurs, 53}, {}));  // empty: needs none
  EXPECT_EQ(reader.datagrams.size(), 1U);
  give_private_pages_back();
  inject_ip(ip::kProtocolUdp, datagram);
  ASSERT_EQ(reader.datagrams.size(), 2U);
  EXPECT_EQ(reader.datagrams[1], payload);
  udp.unbind(port);
}

}  // namespace
}  // namespace nobounce::test
