// UDP of one shard (RFC 768): ports, datagrams, ICMP errors.
//
// Ownership: send() takes its frag's page reference in every case. A received datagram is handed to
// the port's owner with its payload in frags (the head is empty).
// Threads: the shard's thread alone. Cost: O(1) a datagram; tables sized at construction.
// Spec: tcp.md N-10, T-9 (ports).
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <system_error>

#include "ip/ip_layer.hpp"

namespace nobounce::udp {

class Owner {
 public:
  // `from` sent it. The owner keeps or drops the packet; its queue bound is its own to enforce.
  virtual void on_datagram(PacketPtr packet, const Endpoint& from) noexcept = 0;
  virtual void on_error(std::errc error) noexcept = 0;  // connected ports: ICMP errors

 protected:
  ~Owner() = default;
};

class Port;  // a bound local port

class Layer final : public ip::Transport {
 public:
  Layer(ShardContext& context, ip::Layer& ip, size_t ports_max = 1024);
  ~Layer();

  // Port 0 picks a random free one (RFC 6056). address_in_use when taken.
  [[nodiscard]] std::expected<Port*, std::errc> bind(const Endpoint& local, Owner& owner) noexcept;
  void unbind(Port* port) noexcept;
  [[nodiscard]] Endpoint local(const Port& port) const noexcept;
  // Only datagrams from `remote` are received from now on, and its ICMP errors are reported.
  [[nodiscard]] std::expected<void, std::errc> connect(Port& port, const Endpoint& remote) noexcept;

  // One datagram of one or more frags; above the path's MTU it goes in fragments. message_size when it
  // does not fit an IP packet. `payload_sum`: the folded sum of the payload when whoever copied it has
  // summed it (a sum of 0 is given as 0xffff); 0: not known, fragments are then summed here.
  [[nodiscard]] std::expected<void, std::errc> send(Port& port, const Endpoint& to,
                                                    const Frag* frags, size_t count,
                                                    uint16_t payload_sum = 0) noexcept;

  void receive(PacketPtr packet, const ip::Ingress& ingress) noexcept override;
  void icmp_error(const ip::IcmpError& error) noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nobounce::udp
