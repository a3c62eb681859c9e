// One ip::Layer with two addresses, 10.0.0.1/24 and 10.9.0.1/24, a gateway and a static route.
#pragma once

#include "ip/ip_fixture.hpp"

namespace nobounce::ip {

inline const IpAddress kSecond = IpAddress::v4(10, 9, 0, 1);
inline const IpAddress kSecondPeer = IpAddress::v4(10, 9, 0, 7);
inline const IpPrefix kMore[] = {{kSecond, 24}};
inline const Route kStatic[] = {{{IpAddress::v4(10, 88, 0, 0), 16}, kSecondPeer}};

class TwoAddresses : public testing::Test {
 protected:
  TwoAddresses() { layer.register_transport(kProtocolUdp, udp); }
  void inject(ByteVector frame) {
    device.inject(std::move(frame));
    round();
  }
  void round() {
    end.begin_round();
    PacketBurst burst;
    while (device.receive(0, burst) > 0) layer.receive(burst);
    layer.receive_local();
    layer.flush();
  }
  static ByteVector arp_request(const IpAddress& from, const IpAddress& target) {
    return test::arp_frame(MacAddress::broadcast(), {.operation = wire::ArpOperation::request,
                                                     .sender_mac = kPeerMac,
                                                     .sender_ip = from,
                                                     .target_mac = {},
                                                     .target_ip = target});
  }
  std::optional<wire::ArpView> next_arp() {
    layer.flush();
    while (auto frame = device.pop()) {
      if (load_be<uint16_t>(frame->bytes, 12) != wire::kEtherTypeArp) continue;
      last = frame->bytes;
      return wire::ArpView::parse(Bytes(last).subspan(14)).value();
    }
    return std::nullopt;
  }
  SendResult send(const IpAddress& from, const IpAddress& to) {
    PacketPtr packet = end.packets.make();
    const ByteVector bytes = test::udp({from, 1}, {to, 2}, test::pattern(20));
    std::ranges::copy(Bytes(bytes).first(8), packet->append(8).begin());
    const Frag frag = end.make_frag(Bytes(bytes).subspan(8));
    EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    return layer.send(std::move(packet),
                      {.source = from, .destination = to, .protocol = kProtocolUdp});
  }

  ManualClock clock;
  test::StackEnd end{clock};
  test::ScriptDevice device{end.context, {}};
  Layer layer{
      end.context,
      device,
      {.address = {kOurs, 24}, .gateway = kGateway, .more_addresses = kMore, .routes = kStatic}};
  Recorder udp;
  ByteVector last;
};

}  // namespace nobounce::ip
