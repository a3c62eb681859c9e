// ICMPv4 of one shard: answers echo requests, hands errors to the transport they are about, reports
// unreachable ports and protocols and datagrams of which fragments are missing.
//
// An error is believed no further than its form: it quotes an unfragmented packet of ours with at
// least 8 bytes of its transport header. Whether we really sent that packet is the transport's to
// check (T-53, T-54). Redirects and source quench are ignored.
// What we send: nothing about an ICMP message but echo, a fragment that is not the first, a group
// destination or a group source (N-4);
// echo replies and errors are each limited by a token bucket.
// Counters: "icmp.<reason>". Spec: tcp.md N-4, T-54.
#pragma once

#include <array>

#include "ip/ip_layer.hpp"
#include "ip/token_bucket.hpp"
#include "wire/icmp.hpp"
#include "wire/ipv4.hpp"

namespace nobounce::ip {

using TransportTable = std::array<Transport*, 256>;

class Icmp {
 public:
  static constexpr size_t kQuoteMax = 64;  // transport bytes quoted in an error
  static constexpr size_t kEchoMax =
      16 << 10;  // bytes of a request we answer, in fragments if need be
  static constexpr uint64_t kEchoRepliesPerSecond = 1000;
  static constexpr uint64_t kEchoReplyBurst = 200;
  static constexpr uint64_t kErrorsPerSecond = 100;
  static constexpr uint64_t kErrorBurst = 20;

  Icmp(ShardContext& context, Layer& layer, const TransportTable& transports, bool answer_ping);

  void receive(PacketPtr packet, const Ingress& ingress) noexcept;
  // About a packet whose head starts at its transport header; `ingress` names its IP header.
  void send_unreachable(const Packet& packet, const Ingress& ingress,
                        wire::IcmpUnreachableCode code) noexcept;
  // The datagram that begins with `packet` was not whole in time.
  void send_reassembly_timeout(const Packet& packet, const Ingress& ingress) noexcept;
  // An error of our own about a packet we could not send; its head starts at the IP header.
  void report_unresolved(const Packet& packet) noexcept;

  void set_echo_sink(Layer::EchoSink* sink) noexcept { sink_ = sink; }
  SendResult send_echo(const IpAddress& to, uint16_t id, uint16_t sequence,
                       size_t payload_bytes) noexcept;

 private:
  void answer_echo(PacketPtr packet, const Ingress& ingress, const wire::IcmpView& icmp) noexcept;
  void receive_error(const Packet& packet, const Ingress& ingress,
                     const wire::IcmpView& icmp) noexcept;
  void send_error(const Packet& packet, const Ingress& ingress, uint8_t type,
                  uint8_t code) noexcept;
  void deliver(IcmpError::Kind kind, uint16_t next_hop_mtu, const wire::Ipv4View& inner,
               Bytes quote) noexcept;

  ShardContext& context_;
  Layer& layer_;
  const TransportTable& transports_;
  bool answer_ping_;
  Layer::EchoSink* sink_ = nullptr;
  TokenBucket echo_limit_{kEchoRepliesPerSecond, kEchoReplyBurst};
  TokenBucket error_limit_{kErrorsPerSecond, kErrorBurst};

  Counter received_, malformed_, bad_checksum_, not_unicast_, ignored_, echo_replies_sent_,
      echo_limited_, echo_too_big_, echo_replies_received_, errors_received_, bad_quote_,
      errors_sent_, errors_limited_;
};

}  // namespace nobounce::ip
