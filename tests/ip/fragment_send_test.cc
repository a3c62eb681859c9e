// IPv4 send above the MTU: fragments as RFC 791 wants them, payload by reference (N-2, C050).
#include <set>

#include "ip/ip_fixture.hpp"
#include "netdev/fragmenter.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kIp = wire::kEtherTypeIpv4;

class FragmentSend : public IpTest {
 protected:
  explicit FragmentSend(uint16_t mtu = 1500) : IpTest({.mtu = mtu, .features = {}}) {}

  // A UDP datagram of one page block; `sent_body` is what its transport bytes must be on the wire.
  SendResult send_datagram(size_t payload, const IpAddress& to = kPeer) {
    const ByteVector bytes = test::pattern(payload, payload + 1);
    sent_body = test::udp({kOurs, 53}, {to, 1000}, bytes);
    PacketPtr packet = end.packets.make();
    wire::UdpHeader{
        .source_port = 53, .destination_port = 1000, .length = static_cast<uint16_t>(8 + payload)}
        .emit(packet->append(8));
    const Frag frag = end.make_frag(bytes, 3);
    EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    const Egress egress{.source = kOurs,
                        .destination = to,
                        .protocol = kProtocolUdp,
                        .tos = 0x28,
                        .dont_fragment = false};
    set_partial_checksum(*packet, egress, wire::kUdpChecksumOffset);
    return layer.send(std::move(packet), egress);
  }
  // All IPv4 frames, checked one by one, as the datagram they make.
  ByteVector take_datagram(size_t mtu) {
    ByteVector body;
    std::optional<uint16_t> id;
    bool is_last = false;
    while (const auto frame = next(kIp)) {
      EXPECT_FALSE(is_last);
      const Bytes packet = Bytes(*frame).subspan(14);
      const auto header = wire::Ipv4View::parse(packet, packet.size());
      EXPECT_TRUE(header);
      EXPECT_EQ(header->header_size(), 20U);
      EXPECT_EQ(header->total_length(), packet.size());
      EXPECT_LE(packet.size(), mtu);
      EXPECT_EQ(header->fragment_offset(), body.size());
      EXPECT_FALSE(header->dont_fragment());
      EXPECT_EQ(header->tos(), 0x28);
      EXPECT_EQ(header->ttl(), 64);
      EXPECT_EQ(id.value_or(header->identification()), header->identification());
      id = header->identification();
      is_last = !header->more_fragments();
      if (!is_last) {  // as large as it can be
        EXPECT_EQ((packet.size() - 20) % 8, 0U);
        EXPECT_GT(packet.size() + 8, mtu);
      }
      body.insert(body.end(), packet.begin() + 20, packet.end());
    }
    EXPECT_TRUE(is_last);
    ids.push_back(id.value_or(0));
    return body;
  }

  ByteVector sent_body;
  std::vector<uint16_t> ids;
};

TEST_F(FragmentSend, C050_every_size_is_cut_and_sums_up) {
  resolve_peer();
  for (const size_t payload : {1473U, 1474U, 1480U, 2952U, 2953U, 4000U, 30'000U, 65'507U}) {
    EXPECT_EQ(send_datagram(payload), SendResult::sent);
    EXPECT_TRUE(take_datagram(1500) == sent_body) << payload;
  }
  EXPECT_EQ(end.count("ip.tx.fragmented"), 8U);
  EXPECT_EQ(send_datagram(1472), SendResult::sent);
  EXPECT_TRUE(take_datagram(1500) == sent_body);
  EXPECT_EQ(end.count("ip.tx.fragmented"), 8U);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(FragmentSend, N2_ids_cannot_be_guessed) {
  resolve_peer();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(send_datagram(2000), SendResult::sent);
    static_cast<void>(take_datagram(1500));
  }
  size_t followers = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (static_cast<uint16_t>(ids[i] - ids[i - 1]) < 16) ++followers;
  }
  EXPECT_LE(followers, 3U);
  EXPECT_GT(std::set(ids.begin(), ids.end()).size(), 95U);
}

// Cut behind the neighbour's queue: what waits is the datagram, not a part of it (C045).
TEST_F(FragmentSend, C045_a_large_datagram_waits_whole_for_its_neighbour) {
  std::vector<ByteVector> bodies;
  for (const size_t payload : {65'507U, 40'000U, 3000U}) {
    EXPECT_EQ(send_datagram(payload), SendResult::sent);
    bodies.push_back(sent_body);
  }
  EXPECT_FALSE(next(kIp));
  inject(reply_from(kPeer, kPeerMac));
  std::vector<ByteVector> got(1);
  while (const auto frame = next(kIp)) {
    const auto header = wire::Ipv4View::parse(Bytes(*frame).subspan(14), frame->size() - 14);
    ASSERT_TRUE(header);
    got.back().insert(got.back().end(), frame->begin() + 34, frame->end());
    if (!header->more_fragments()) got.emplace_back();
  }
  got.pop_back();
  EXPECT_TRUE(got == bodies);
}

TEST_F(FragmentSend, N4_the_transport_is_told_when_the_neighbour_does_not_answer) {
  EXPECT_EQ(send_datagram(5000), SendResult::sent);
  for (int i = 0; i < 3; ++i) advance(kNsPerSecond);
  ASSERT_EQ(udp.errors.size(), 1U);
  EXPECT_EQ(udp.errors[0].destination, kPeer);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(FragmentSend, N2_broadcasts_are_cut_too) {
  EXPECT_EQ(send_datagram(5000, IpAddress::v4(10, 0, 0, 255)), SendResult::sent);
  EXPECT_TRUE(take_datagram(1500) == sent_body);
}

TEST_F(FragmentSend, an_empty_packet_pool_holds_the_rest_back) {
  resolve_peer();
  EXPECT_EQ(send_datagram(1000), SendResult::sent);
  std::vector<PacketPtr> hoard;
  while (end.packets.in_use() + 4 < end.packets.capacity()) hoard.push_back(end.packets.make());
  EXPECT_EQ(send_datagram(60'000), SendResult::sent);
  EXPECT_GT(end.count("ip.tx.gso_pool_waits"), 0U);
  hoard.clear();
  ByteVector body;
  for (int i = 0; i < 30 && layer.output_pending(); ++i) layer.flush();
  static_cast<void>(device.pop());  // the small one
  while (const auto frame = device.pop()) {
    body.insert(body.end(), frame->bytes.begin() + 34, frame->bytes.end());
  }
  EXPECT_TRUE(body == sent_body);
}

TEST_F(FragmentSend, a_broken_device_swallows_what_is_being_cut) {
  resolve_peer();
  device.set_room(3);
  EXPECT_EQ(send_datagram(65'507), SendResult::sent);
  device.set_broken(true);
  layer.flush();
  EXPECT_FALSE(layer.output_pending());
  EXPECT_EQ(end.packets.in_use(), 0U);
}

TEST_F(FragmentSend, N2_what_must_not_be_cut_or_cannot_be_is_refused) {
  resolve_peer();
  EXPECT_EQ(send(kPeer, 1473, true), SendResult::too_big);
  EXPECT_EQ(send_datagram(65'508), SendResult::too_big);
  EXPECT_EQ(drops("too_big"), 2U);
  EXPECT_EQ(end.packets.in_use(), 0U);
}

class FragmentSendSmall : public FragmentSend {
 protected:
  FragmentSendSmall() : FragmentSend(579) {}  // 559 transport bytes: 552 a fragment
};

TEST_F(FragmentSendSmall, N2_pieces_are_multiples_of_eight_whatever_the_mtu) {
  resolve_peer();
  EXPECT_EQ(Fragmenter::piece_bytes(579), 552U);
  EXPECT_EQ(Fragmenter::piece_bytes(576), 552U);
  EXPECT_EQ(Fragmenter::piece_bytes(19), 0U);
  for (const size_t payload : {552U, 553U, 1096U, 1097U, 20'000U}) {
    EXPECT_EQ(send_datagram(payload), SendResult::sent);
    ByteVector body;
    while (const auto frame = next(kIp)) {
      EXPECT_LE(frame->size(), 14U + 579);
      body.insert(body.end(), frame->begin() + 34, frame->end());
    }
    EXPECT_TRUE(body == sent_body) << payload;
  }
}

TEST_F(FragmentSendSmall, a_full_device_holds_the_rest_back) {
  resolve_peer();
  device.set_room(7);
  EXPECT_EQ(send_datagram(65'507), SendResult::sent);
  ByteVector body;
  EXPECT_EQ(send(kPeer), SendResult::would_block);
  for (int i = 0; i < 20; ++i) {
    layer.flush();
    while (const auto frame = device.pop()) {
      body.insert(body.end(), frame->bytes.begin() + 34, frame->bytes.end());
    }
  }
  EXPECT_TRUE(body == sent_body);
  EXPECT_FALSE(layer.output_pending());
  EXPECT_EQ(udp.ready, 1);
}

}  // namespace
}  // namespace nobounce::ip
