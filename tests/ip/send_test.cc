// IPv4 send: header, refusals, output burst, offload fall-backs (N-2, G-4, C047).
#include "ip/ip_fixture.hpp"
#include "netdev/checksum.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kIp = wire::kEtherTypeIpv4;

class Send : public IpTest {
 protected:
  explicit Send(test::ScriptDevice::Options options = {}) : IpTest(options) {}

  // A TCP super-packet (or plain segment when gso_size is 0) with a partial checksum.
  SendResult send_tcp(Bytes payload, uint16_t gso_size, uint8_t flags = wire::kTcpAck) {
    PacketPtr packet = end.packets.make();
    const wire::TcpHeader header{.source_port = 1,
                                 .destination_port = 2,
                                 .sequence = 1000,
                                 .flags = flags,
                                 .options = {.timestamps = wire::TcpTimestamps{1, 2}}};
    header.emit(packet->append(header.size()));
    for (size_t done = 0; done < payload.size(); done += 4096) {
      const Frag frag =
          end.make_frag(payload.subspan(done, std::min<size_t>(4096, payload.size() - done)));
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    const Egress egress{.source = kOurs, .destination = kPeer, .protocol = kProtocolTcp};
    set_partial_checksum(*packet, egress, wire::kTcpChecksumOffset);
    if (gso_size > 0) {
      packet->gso = Gso::tcp4;
      packet->gso_size = gso_size;
    }
    return layer.send(std::move(packet), egress);
  }
};

TEST_F(Send, N2_header_fields) {
  resolve_peer();
  EXPECT_EQ(send(kPeer, 33), SendResult::sent);
  const auto frame = next(kIp);
  ASSERT_TRUE(frame);
  const auto link = wire::EthernetView::parse(*frame);
  EXPECT_EQ(link->source(), kOurMac);
  const auto header = wire::Ipv4View::parse(Bytes(*frame).subspan(14), frame->size() - 14);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->header_size(), 20U);
  EXPECT_EQ(header->total_length(), 20 + 8 + 33);
  EXPECT_EQ(header->ttl(), 64);
  EXPECT_TRUE(header->dont_fragment());
  EXPECT_FALSE(header->is_fragment());
  EXPECT_EQ(header->source(), kOurs);
  EXPECT_EQ(header->destination(), kPeer);
}

TEST_F(Send, N2_ids_of_datagrams_that_may_be_fragmented_are_not_a_sequence) {
  resolve_peer();
  size_t neighbours = 0;
  uint16_t last = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(send(kPeer, 1, false), SendResult::sent);
    const auto frame = next(kIp);
    const auto header = wire::Ipv4View::parse(Bytes(*frame).subspan(14), frame->size() - 14);
    EXPECT_FALSE(header->dont_fragment());
    if (static_cast<uint16_t>(header->identification() - last) < 16) ++neighbours;
    last = header->identification();
  }
  EXPECT_LT(neighbours, 5U);
}

TEST_F(Send, refusals_are_counted) {
  EXPECT_EQ(send(*IpAddress::parse("2001:db8::1")), SendResult::no_route);
  EXPECT_EQ(drops("ipv6_not_supported"), 1U);
  EXPECT_EQ(send(IpAddress()), SendResult::no_route);
  EXPECT_EQ(send(IpAddress::v4(127, 0, 0, 1)), SendResult::no_route);
  EXPECT_EQ(drops("no_route"), 2U);
  PacketPtr packet = end.packets.make();
  EXPECT_EQ(layer.send(std::move(packet), {.source = kPeer, .destination = kPeer}),
            SendResult::no_route);
  EXPECT_EQ(drops("bad_source"), 1U);
  EXPECT_EQ(send(kPeer, 1472), SendResult::sent);
  EXPECT_EQ(send(kPeer, 1473), SendResult::too_big);
  EXPECT_EQ(send(kPeer, 65508, false), SendResult::too_big);
  EXPECT_EQ(drops("too_big"), 2U);
}

TEST(SendNoGateway, far_destinations_have_no_route) {
  ManualClock clock;
  test::StackEnd end(clock);
  test::ScriptDevice device(end.context, {});
  Layer layer(end.context, device, {.address = {kOurs, 24}});
  EXPECT_EQ(layer.source_for(kFar), std::nullopt);
  EXPECT_EQ(layer.source_for(kPeer), kOurs);
  EXPECT_EQ(layer.send(end.packets.make(), {.source = kOurs, .destination = kFar}),
            SendResult::no_route);
}

TEST_F(Send, facts) {
  EXPECT_EQ(layer.source_for(kFar), kOurs);
  EXPECT_EQ(layer.source_for(*IpAddress::parse("::1")), std::nullopt);
  EXPECT_EQ(layer.mtu_to(kPeer), 1500);
  EXPECT_TRUE(layer.is_ours(kOurs));
  EXPECT_FALSE(layer.is_ours(kPeer));
  EXPECT_TRUE(layer.is_group(IpAddress::v4(10, 0, 0, 255)));
  EXPECT_TRUE(layer.is_group(IpAddress::v4(255, 255, 255, 255)));
  EXPECT_TRUE(layer.is_group(IpAddress::v4(224, 0, 0, 1)));
  EXPECT_FALSE(layer.is_group(kPeer));
}

TEST_F(Send, groups_need_no_neighbour) {
  EXPECT_EQ(send(IpAddress::v4(10, 0, 0, 255)), SendResult::sent);
  EXPECT_EQ(wire::EthernetView::parse(*next(kIp))->destination(), MacAddress::broadcast());
  EXPECT_EQ(send(IpAddress::v4(255, 255, 255, 255)), SendResult::sent);
  EXPECT_EQ(wire::EthernetView::parse(*next(kIp))->destination(), MacAddress::broadcast());
  EXPECT_EQ(send(IpAddress::v4(239, 129, 2, 3)), SendResult::sent);
  const MacAddress group{{0x01, 0, 0x5e, 1, 2, 3}};
  EXPECT_EQ(wire::EthernetView::parse(*next(kIp))->destination(), group);
}

TEST_F(Send, one_transmit_a_burst) {
  resolve_peer();
  const uint64_t before = device.transmit_calls;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(send(kPeer), SendResult::sent);
  EXPECT_TRUE(layer.output_pending());
  EXPECT_EQ(device.transmit_calls, before);
  layer.flush();
  EXPECT_FALSE(layer.output_pending());
  EXPECT_EQ(device.transmit_calls, before + 1);
  EXPECT_EQ(device.sent(), 10U);
}

TEST_F(Send, a_full_device_blocks_and_is_told_when_there_is_room) {
  resolve_peer();
  device.set_room(5);
  size_t sent = 0;
  SendResult result = SendResult::sent;
  while ((result = send(kPeer)) == SendResult::sent) ++sent;
  EXPECT_EQ(result, SendResult::would_block);
  EXPECT_EQ(sent, 5 + kBurstMax);
  EXPECT_EQ(drops("output_full"), 1U);
  layer.flush();
  EXPECT_EQ(udp.ready, 0);
  EXPECT_EQ(device.sent(), 5U);
  unsigned next_number = 2;  // 1 resolved the peer
  device.set_room(1000);
  layer.flush();
  EXPECT_EQ(udp.ready, 1);
  while (const auto frame = device.pop()) {  // in order, none missing
    EXPECT_EQ(frame->bytes[34], static_cast<std::byte>(next_number++));
  }
  EXPECT_EQ(next_number, 2 + sent);
  EXPECT_EQ(send(kPeer), SendResult::sent);
  layer.flush();
  EXPECT_EQ(udp.ready, 1);
}

TEST_F(Send, a_broken_device_swallows_and_nothing_leaks) {
  resolve_peer();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(send(kPeer), SendResult::sent);
  device.set_broken(true);
  layer.flush();
  EXPECT_FALSE(layer.output_pending());
  EXPECT_EQ(drops("device_broken"), 10U);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

// ---- offload fall-backs -------------------------------------------------------------------------

TEST_F(Send, T1_checksum_is_completed_without_the_offload) {
  resolve_peer();
  for (const size_t size : {0U, 1U, 2U, 999U, 1400U}) {
    EXPECT_EQ(send_tcp(test::pattern(size), 0), SendResult::sent);
    const auto frame = next(kIp);
    ASSERT_TRUE(frame);
    EXPECT_TRUE(test::has_right_checksums(*frame)) << size;
  }
  EXPECT_EQ(end.count("ip.tx.software_checksum"), 5U);
}

class SendOffload : public Send {
 protected:
  SendOffload() : Send({.features = {.tx_checksum = true, .tso4 = true}}) {}
};

TEST_F(SendOffload, partial_goes_down_with_its_offset_from_the_frame) {
  resolve_peer();
  EXPECT_EQ(send_tcp(test::pattern(500), 0), SendResult::sent);
  layer.flush();
  const auto frame = device.pop();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->checksum, Checksum::partial);
  EXPECT_EQ(frame->csum_start, 34);
  EXPECT_EQ(frame->csum_offset, 16);
}

TEST_F(SendOffload, partial_survives_waiting_for_the_neighbour) {
  EXPECT_EQ(send_tcp(test::pattern(500), 0), SendResult::sent);
  inject(reply_from(kPeer, kPeerMac));
  std::optional<WireFrame> frame;
  while (auto popped = device.pop()) frame = std::move(popped);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->checksum, Checksum::partial);
  EXPECT_EQ(frame->csum_start, 34);
}

// G-4: the wire bytes are the same whether the device cuts or we do.
TEST(SendGso, G4_software_and_device_give_identical_wire_bytes) {
  const ByteVector payload = test::pattern(50'000);
  std::vector<std::vector<ByteVector>> runs;
  for (const bool offload : {false, true}) {
    ManualClock clock;
    test::StackEnd left(clock, 1), right(clock, 2);
    const DeviceFeatures features{.tx_checksum = offload, .tso4 = offload};
    test::WireLink link(clock, 1, left.context, right.context, {.features = features});
    Layer layer(left.context, link.left(), {.address = {kOurs, 24}});
    Layer peer(right.context, link.right(), {.address = {kPeer, 24}});
    auto& frames = runs.emplace_back();
    link.tap = [&](int from, const WireFrame& frame) {
      WireFrame copy = frame;
      if (from != 0 || load_be<uint16_t>(copy.bytes, 12) != kIp) return;
      if (copy.checksum == Checksum::partial) {
        const PacketPtr packet = test::make_received(left.context, copy);
        EXPECT_TRUE(complete_checksum(*packet));
        copy.bytes = test::flatten(*packet);
      }
      EXPECT_TRUE(test::has_right_checksums(copy.bytes));
      frames.push_back(copy.bytes);
    };
    PacketPtr packet = left.packets.make();
    const wire::TcpHeader header{.flags = wire::kTcpAck | wire::kTcpPsh};
    header.emit(packet->append(header.size()));
    for (size_t done = 0; done < payload.size(); done += 4096) {
      const Frag frag = left.make_frag(
          Bytes(payload).subspan(done, std::min<size_t>(4096, payload.size() - done)));
      ASSERT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    const Egress egress{.source = kOurs, .destination = kPeer, .protocol = kProtocolTcp};
    set_partial_checksum(*packet, egress, wire::kTcpChecksumOffset);
    packet->gso = Gso::tcp4;
    packet->gso_size = 1460;
    EXPECT_EQ(layer.send(std::move(packet), egress), SendResult::sent);
    for (int i = 0; i < 4; ++i) {
      PacketBurst burst;
      layer.flush();
      link.right().receive(0, burst);
      peer.receive(burst);
      peer.flush();
      link.left().receive(0, burst);
      layer.receive(burst);
    }
  }
  EXPECT_EQ(runs[0].size(), 35U);
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_F(Send, G2_a_super_packet_longer_than_a_burst_drains_through_a_full_device) {
  resolve_peer();
  device.set_room(10);
  const ByteVector payload = test::pattern(60'000);
  EXPECT_EQ(send_tcp(payload, 500), SendResult::sent);  // 120 segments
  EXPECT_EQ(send(kPeer), SendResult::would_block);
  EXPECT_TRUE(layer.output_pending());
  ByteVector stream;
  for (int i = 0; i < 40; ++i) {
    layer.flush();
    while (const auto frame = device.pop()) {
      EXPECT_TRUE(test::has_right_checksums(frame->bytes));
      stream.insert(stream.end(), frame->bytes.begin() + 66, frame->bytes.end());
    }
  }
  EXPECT_EQ(stream, payload);
  EXPECT_FALSE(layer.output_pending());
  EXPECT_EQ(tcp.ready, 1);
  EXPECT_EQ(end.count("ip.tx.software_gso"), 1U);
}

TEST_F(Send, C047_super_packets_are_not_too_big_their_segments_may_be) {
  resolve_peer();
  const ByteVector payload = test::pattern(20'000);
  EXPECT_EQ(send_tcp(payload, 1448), SendResult::sent);  // 20 + 32 + 1448 = 1500
  EXPECT_EQ(send_tcp(payload, 1449), SendResult::too_big);
  EXPECT_EQ(drops("too_big"), 1U);
}

TEST_F(Send, G2_more_than_an_ip_packet_holds_is_refused) {
  resolve_peer();
  const ByteVector payload = test::pattern(65535 - 20 - 32 + 1);
  EXPECT_EQ(send_tcp(Bytes(payload).first(payload.size() - 1), 1448), SendResult::sent);
  layer.flush();
  EXPECT_EQ(send_tcp(payload, 1448), SendResult::too_big);
}

}  // namespace
}  // namespace nobounce::ip
