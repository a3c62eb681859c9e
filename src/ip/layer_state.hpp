// Private to ip/: what a Layer is made of.
#pragma once

#include "ip/drop.hpp"
#include "ip/icmp.hpp"
#include "ip/ip_layer.hpp"
#include "ip/neighbours.hpp"
#include "ip/path_mtus.hpp"
#include "ip/reassembly.hpp"
#include "netdev/output.hpp"
#include "wire/ethernet.hpp"

namespace nobounce::ip {

struct Layer::State final : Neighbours::Observer, Reassembly::Observer {
  State(Layer& layer, ShardContext& shard, NetDevice& net_device, const Options& layer_options);

  // ---- sending (ip_layer.cc) ----
  SendResult send(PacketPtr packet, const Egress& egress) noexcept;
  enum class Cut : uint8_t { no, yes, too_big };
  [[nodiscard]] Cut cut_for(const Packet& packet, const Egress& egress,
                            uint16_t path_mtu) const noexcept;
  [[nodiscard]] uint16_t mtu_to(const IpAddress& destination) const noexcept;
  [[nodiscard]] std::optional<IpAddress> next_hop(const IpAddress& destination) const noexcept;
  void send_to_group(PacketPtr packet, const IpAddress& destination) noexcept;
  SendResult refuse(Drop why, SendResult result) noexcept;
  [[nodiscard]] bool has_room() noexcept;
  void flush() noexcept;
  void unresolved(const Packet& packet) noexcept override;

  // ---- receiving (receive.cc) ----
  void receive(PacketPtr packet) noexcept;
  void receive_ipv4(PacketPtr packet, bool is_link_unicast) noexcept;
  [[nodiscard]] std::optional<Drop> check_addresses(const wire::Ipv4View& header,
                                                    bool is_link_unicast) const noexcept;
  [[nodiscard]] bool pull(Packet& packet, size_t bytes) noexcept;
  void receive_fragment(PacketPtr packet, const wire::Ipv4View& header) noexcept;
  [[nodiscard]] Ingress ingress_of(const wire::Ipv4View& header) const noexcept;
  void timed_out(const Packet& first, const wire::Ipv4View& header) noexcept override;
  void dispatch(PacketPtr packet, const Ingress& ingress) noexcept;

  [[nodiscard]] bool is_ours(const IpAddress& address) const noexcept {
    return address == options.address.address;
  }
  [[nodiscard]] bool is_group(const IpAddress& address) const noexcept {
    return address.is_multicast() || address.is_limited_broadcast() ||
           (options.address.length <= 30 && address == options.address.broadcast());
  }

  ShardContext& context;
  NetDevice& device;
  Options options;
  MacAddress mac;  // read once (N-12)
  TransportTable transports{};
  DropCounters drops;
  Output output;
  Neighbours neighbours;
  Icmp icmp;
  Reassembly reassembly;
  PathMtus path_mtus;
  bool is_blocked = false;  // someone was told would_block
  Counter sent, received;
};

}  // namespace nobounce::ip
