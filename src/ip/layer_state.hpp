// Private to ip/: what a Layer is made of.
#pragma once

#include "ip/drop.hpp"
#include "ip/icmp.hpp"
#include "ip/ip_layer.hpp"
#include "ip/neighbours.hpp"
#include "ip/path_mtus.hpp"
#include "ip/reassembly.hpp"
#include "ip/routes.hpp"
#include "netdev/output.hpp"
#include "wire/ethernet.hpp"

namespace nobounce::ip {

struct Layer::State final : Neighbours::Observer, Reassembly::Observer {
  State(Layer& layer, ShardContext& shard, NetDevice& net_device, const Options& layer_options);
  ~State();

  // ---- sending (ip_layer.cc) ----
  SendResult send(PacketPtr packet, const Egress& egress) noexcept;
  enum class Cut : uint8_t { no, yes, too_big };
  [[nodiscard]] Cut cut_for(const Packet& packet, const Egress& egress,
                            uint16_t path_mtu) const noexcept;
  [[nodiscard]] uint16_t mtu_to(const IpAddress& destination) const noexcept;
  void send_to_group(PacketPtr packet, const IpAddress& destination) noexcept;
  SendResult refuse(Drop why, SendResult result) noexcept;
  [[nodiscard]] bool has_room(const IpAddress& destination) noexcept;
  void write_header(Packet& packet, const Egress& egress, uint16_t id) noexcept;
  void flush() noexcept;
  void unresolved(const Packet& packet) noexcept override;

  // ---- to ourselves (local.cc) ----
  SendResult send_local(PacketPtr packet, const Egress& egress) noexcept;
  [[nodiscard]] PacketPtr copy_for_us(const Packet& packet) noexcept;
  [[nodiscard]] bool local_full() const noexcept { return local.size() == kLocalMax; }
  size_t receive_local() noexcept;

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
    return routes.is_ours(address);
  }
  [[nodiscard]] bool is_group(const IpAddress& address) const noexcept {
    return routes.is_group(address);
  }

  ShardContext& context;
  NetDevice& device;
  const Routes routes;
  MacAddress mac;  // read once (N-12)
  TransportTable transports{};
  DropCounters drops;
  Output output;
  Neighbours neighbours;
  Icmp icmp;
  Reassembly reassembly;
  PathMtus path_mtus;
  List<Packet> local;             // sent to us by us, heads at the IP header
  bool is_blocked = false;        // someone was told would_block, for the device's sake
  bool is_local_blocked = false;  // the same, for the local queue's
  Counter sent, received;
};

}  // namespace nobounce::ip
