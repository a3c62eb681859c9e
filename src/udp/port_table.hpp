// Private to udp/: the bound ports of one shard. Fixed capacity, O(1) look-up by local port.
#pragma once

#include <optional>
#include <vector>

#include "base/object_pool.hpp"
#include "udp/udp_layer.hpp"

namespace nobounce::udp {

class Port {
 public:
  Port(const Endpoint& bound, Owner& port_owner) : local(bound), owner(&port_owner) {}

  Endpoint local;
  Owner* owner;
  std::optional<Endpoint> remote;  // connected
  Port* chain = nullptr;
};

class PortTable {
 public:
  // RFC 6056: where random ports are drawn from.
  static constexpr uint16_t kEphemeralFirst = 32768;
  static constexpr uint16_t kEphemeralLast = 60999;

  explicit PortTable(size_t ports_max);
  ~PortTable();

  // Taken when the same port is bound to that address, or either of the two is "any".
  [[nodiscard]] bool is_taken(const Endpoint& local) const noexcept;
  // A random free port of that address; 0 when there is none.
  [[nodiscard]] uint16_t choose(const IpAddress& address, Random& random) const noexcept;
  // Null when the table is full.
  [[nodiscard]] Port* add(const Endpoint& local, Owner& owner) noexcept;
  void remove(Port& port) noexcept;
  // The port that a datagram to `local` belongs to, or null.
  [[nodiscard]] Port* find(const Endpoint& local) const noexcept;
  [[nodiscard]] size_t size() const noexcept { return ports_.in_use(); }

 private:
  [[nodiscard]] size_t bucket(uint16_t port) const noexcept { return port & (buckets_.size() - 1); }

  ObjectPool<Port> ports_;
  std::vector<Port*> buckets_;  // a power of two
};

}  // namespace nobounce::udp
