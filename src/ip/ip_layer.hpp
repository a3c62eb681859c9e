// The network layer of one shard on one device: Ethernet, ARP, IPv4, ICMP.
//
//   transports --send()--> [route, ARP] -> IP header -> Ethernet header -> output burst --flush()--> device
//                       +-> to an address of our own: local queue --receive_local()--> transport
//   device --receive()--> Ethernet -> ARP | IPv4 [-> reassembly] -> ICMP | transport.receive()
//
// Addresses are IpAddress throughout, ready for IPv6; this first form sends and accepts IPv4.
//
// Ownership: send() and receive() take the packets. Threads: the shard's thread alone.
// Cost: O(1) a packet, a neighbour look-up by keyed hash; tables are bounded and sized at
// construction. Nothing allocates afterwards.
// Errors: drops are counted by reason ("ip.drop.<reason>", "arp.<reason>", "icmp.<reason>").
// Spec: tcp.md N-1 to N-5, N-9, N-12, T-11, T-22 (who may be answered), T-54.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "nobounce/address.hpp"

namespace nobounce::ip {

inline constexpr uint8_t kProtocolIcmp = 1;
inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;

// A received packet as the transport sees it. The packet's head starts at the transport header and
// holds all of the window that belongs to this datagram; padding beyond the IP length is cut.
struct Ingress {
  IpAddress source;
  IpAddress destination;
  uint8_t protocol = 0;
  uint8_t ttl = 0;
  uint8_t tos = 0;
  bool to_unicast = true;  // destination is one of our own addresses (T-11, T-22)
  // The IP header as received, for quoting it in an ICMP error; private, valid during receive().
  Bytes network_header;
};

// Whether the transport may believe the packet: vouched for by the device, or its checksum over
// pseudo header, head and frags is right. A partial one (nothing to compare) must start at our own
// transport offset with the protocol's own field (TM-41). `packet` as receive() got it: before
// give_back_head() or after. UDP over IPv4 looks for a zero field first (N-10).
[[nodiscard]] bool verify_transport_checksum(const Packet& packet, const Ingress& ingress) noexcept;

// An ICMP error about a packet we sent, quoting it (N-4). The transport checks the quote (T-53).
struct IcmpError {
  enum class Kind : uint8_t {
    net_unreachable,
    host_unreachable,
    protocol_unreachable,
    port_unreachable,
    fragmentation_needed,
    source_route_failed,
    administratively_prohibited,
    time_exceeded,
    parameter_problem,
  };
  Kind kind{};
  uint16_t next_hop_mtu = 0;  // fragmentation_needed; 0 when the router did not say
  IpAddress source;           // of the quoted packet: us
  IpAddress destination;
  Bytes quote;  // transport header bytes quoted, at least 8; valid during the call
};

class Transport {
 public:
  virtual void receive(PacketPtr packet, const Ingress& ingress) noexcept = 0;
  virtual void icmp_error(const IcmpError& error) noexcept = 0;
  // Room in the device has come back after send() said would_block.
  virtual void transmit_ready() noexcept {}

 protected:
  ~Transport() = default;
};

struct Egress {
  IpAddress source;  // one of ours; see source_for()
  IpAddress destination;
  uint8_t protocol = 0;
  uint8_t ttl = 64;
  uint8_t tos = 0;
  bool dont_fragment = true;  // false: what is above the path's MTU goes in fragments
};

// Makes the checksum of an outgoing packet partial: writes the pseudo header's sum into the field at
// `csum_offset` of the transport header that begins the head. Call when head and frags are complete.
void set_partial_checksum(Packet& packet, const Egress& egress, uint16_t csum_offset) noexcept;

// Packets to addresses of our own that wait for receive_local(); each has pages of its own.
inline constexpr size_t kLocalMax = 256;

enum class SendResult : uint8_t {
  sent,         // queued for the device, or waiting for the neighbour to be resolved
  would_block,  // output is full: the packet was dropped, transmit_ready() will follow
  no_route,     // dropped
  too_big,      // above the MTU and not to be fragmented, or above 65535: dropped
};

struct Options {
  IpPrefix address;
  std::optional<IpAddress> gateway{};
  std::span<const IpPrefix> more_addresses{};  // these two are copied
  std::span<const Route> routes{};
  bool answer_ping = true;
  size_t neighbours_max = 256;
  size_t path_mtus_max = 256;
  size_t reassembly_pages_max = 1024;  // that fragments of incomplete datagrams may hold
};

class Layer {
 public:
  Layer(ShardContext& context, NetDevice& device, const Options& options);
  ~Layer();

  void register_transport(uint8_t protocol, Transport& transport) noexcept;

  // `packet`'s head starts with the transport header; the checksum is partial (csum_start relative
  // to the head as given) or complete.
  SendResult send(PacketPtr packet, const Egress& egress) noexcept;
  // Takes the whole burst.
  void receive(PacketBurst& burst) noexcept;
  // Takes what was sent to addresses of our own since the last call; how many that were.
  size_t receive_local() noexcept;
  [[nodiscard]] bool local_pending() const noexcept;
  // Hands the output to the device: one transmit() a call. End of each round, and when full.
  void flush() noexcept;
  // Whether send() would take a packet for `destination` now, or say would_block; transmit_ready()
  // follows here too.
  [[nodiscard]] bool has_room(const IpAddress& destination) noexcept;
  // Frames waiting in the output burst or for the device.
  [[nodiscard]] bool output_pending() const noexcept;

  // Our address for that destination, by its route; nothing when there is no route.
  [[nodiscard]] std::optional<IpAddress> source_for(const IpAddress& destination) const noexcept;
  // Largest IP packet to that destination that goes in one piece.
  [[nodiscard]] uint16_t mtu_to(const IpAddress& destination) const noexcept;
  // The path takes no more than `mtu`: believed, so whoever calls has checked that the message is about
  // data of its own (T-53). Only down, not below 576, for ten minutes.
  void lower_path_mtu(const IpAddress& destination, uint16_t mtu) noexcept;
  [[nodiscard]] bool is_ours(const IpAddress& address) const noexcept;
  // Broadcast or multicast: never connected to, never answered (T-11, N-4).
  [[nodiscard]] bool is_group(const IpAddress& address) const noexcept;
  [[nodiscard]] NetDevice& device() noexcept;

  // ICMP "port unreachable" about a datagram just received (rate limited; `packet` as received by
  // the transport).
  void send_port_unreachable(const Packet& packet, const Ingress& ingress) noexcept;
  // Announces our addresses (gratuitous ARP): at start and on link up.
  void announce() noexcept;

  // Sends one echo request; the answer comes to `sink` (null: none any more). Used by `ping`.
  class EchoSink {
   public:
    virtual void echo_reply(const IpAddress& from, uint16_t id, uint16_t sequence, uint8_t ttl,
                            size_t bytes) noexcept = 0;
    virtual void echo_error(const IcmpError& error) noexcept = 0;

   protected:
    ~EchoSink() = default;
  };
  void set_echo_sink(EchoSink* sink) noexcept;
  SendResult send_echo(const IpAddress& to, uint16_t id, uint16_t sequence,
                       size_t payload_bytes) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nobounce::ip
