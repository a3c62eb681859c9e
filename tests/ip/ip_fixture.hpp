// One ip::Layer at 10.0.0.1/24 on a ScriptDevice: the test plays everyone else.
#pragma once

#include <gtest/gtest.h>

#include "ip/ip_layer.hpp"
#include "support/frames.hpp"

namespace nobounce::ip {

using test::ByteVector;
using test::WireFrame;

inline const IpAddress kOurs = IpAddress::v4(10, 0, 0, 1);
inline const IpAddress kPeer = IpAddress::v4(10, 0, 0, 2);
inline const IpAddress kGateway = IpAddress::v4(10, 0, 0, 254);
inline const IpAddress kFar = IpAddress::v4(192, 0, 2, 9);
inline const MacAddress kOurMac{{0x02, 0, 0, 0, 0, 1}};
inline const MacAddress kPeerMac{{0x02, 0, 0, 0, 0, 2}};

// A transport that keeps what it is given.
class Recorder final : public Transport {
 public:
  void receive(PacketPtr packet, const Ingress& ingress) noexcept override {
    last = ingress;
    header.assign(ingress.network_header.begin(), ingress.network_header.end());
    checksum_ok = verify_transport_checksum(*packet, ingress);
    packets.push_back(test::flatten(*packet));
    if (keep_head <= packet->head().size()) {
      packet->give_back_head(keep_head);
      after_give_back.push_back(test::flatten(*packet));
      payload_size = packet->payload_size();
    }
  }
  void icmp_error(const IcmpError& error) noexcept override {
    errors.push_back(error);
    quotes.emplace_back(error.quote.begin(), error.quote.end());
  }
  void transmit_ready() noexcept override { ++ready; }

  size_t keep_head = 8;
  Ingress last;
  ByteVector header;
  bool checksum_ok = false;
  size_t payload_size = 0;
  std::vector<ByteVector> packets, after_give_back;
  std::vector<IcmpError> errors;
  std::vector<ByteVector> quotes;
  int ready = 0;
};

class IpTest : public testing::Test {
 protected:
  explicit IpTest(test::ScriptDevice::Options device_options = {}, size_t neighbours = 256)
      : device(end.context, device_options),
        layer(end.context, device,
              {.address = {kOurs, 24}, .gateway = kGateway, .neighbours_max = neighbours}) {
    layer.register_transport(kProtocolUdp, udp);
    layer.register_transport(kProtocolTcp, tcp);
  }

  // One round of the shard: timers, receive, flush.
  void round() {
    end.begin_round();
    PacketBurst burst;
    while (device.receive(0, burst) > 0) layer.receive(burst);
    layer.receive_local();
    layer.flush();
  }
  void advance(uint64_t ns) {
    clock.advance(ns);
    round();
  }
  void inject(ByteVector frame) {
    device.inject(std::move(frame));
    round();
  }

  // ---- what the peer sends ----
  static ByteVector from_peer(Bytes packet) {
    return test::ethernet(
        {.destination = kOurMac, .source = kPeerMac, .ether_type = wire::kEtherTypeIpv4}, packet);
  }
  static wire::Ipv4Header ip_header(uint8_t protocol = kProtocolUdp) {
    return {.protocol = protocol, .source = kPeer, .destination = kOurs};
  }
  static ByteVector udp_bytes(size_t payload) {
    return test::udp({kPeer, 1000}, {kOurs, 53}, test::pattern(payload));
  }
  static ByteVector udp_frame(size_t payload = 20) {
    return from_peer(test::ipv4(ip_header(), udp_bytes(payload)));
  }
  static ByteVector request_from(const IpAddress& ip, const MacAddress& mac,
                                 const IpAddress& target = kOurs) {
    return test::arp_frame(MacAddress::broadcast(), {.operation = wire::ArpOperation::request,
                                                     .sender_mac = mac,
                                                     .sender_ip = ip,
                                                     .target_mac = {},
                                                     .target_ip = target});
  }
  static ByteVector reply_from(const IpAddress& ip, const MacAddress& mac) {
    return test::arp_frame(kOurMac, {.operation = wire::ArpOperation::reply,
                                     .sender_mac = mac,
                                     .sender_ip = ip,
                                     .target_mac = kOurMac,
                                     .target_ip = kOurs});
  }

  // ---- what we send ----
  SendResult send(const IpAddress& to, size_t payload = 10, bool dont_fragment = true) {
    PacketPtr packet = end.packets.make();
    const test::ByteVector bytes = test::pattern(payload, ++sends);
    std::ranges::fill(packet->append(8), static_cast<std::byte>(sends));
    if (payload > 0) {
      const Frag frag = end.make_frag(bytes);
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    return layer.send(std::move(packet), {.source = kOurs,
                                          .destination = to,
                                          .protocol = kProtocolUdp,
                                          .dont_fragment = dont_fragment});
  }
  // The next transmitted frame of that type; others before it are dropped.
  std::optional<ByteVector> next(uint16_t ether_type) {
    layer.flush();
    while (auto frame = device.pop()) {
      if (load_be<uint16_t>(frame->bytes, 12) == ether_type) return frame->bytes;
    }
    return std::nullopt;
  }
  size_t count_frames(uint16_t ether_type) {
    size_t count = 0;
    while (next(ether_type)) ++count;
    return count;
  }
  void resolve_peer() {
    EXPECT_EQ(send(kPeer), SendResult::sent);
    round();
    inject(reply_from(kPeer, kPeerMac));
    while (device.pop()) {
    }
  }
  uint64_t drops(const char* name) { return end.count(std::string("ip.drop.") + name); }

  ManualClock clock;
  test::StackEnd end{clock};
  test::ScriptDevice device;
  Layer layer;
  Recorder udp, tcp;
  unsigned sends = 0;
};

}  // namespace nobounce::ip
