#include "udp/port_table.hpp"

#include <bit>

namespace nobounce::udp {

PortTable::PortTable(size_t ports_max) : ports_(ports_max), buckets_(std::bit_ceil(ports_max)) {}

PortTable::~PortTable() {
  for (Port*& head : buckets_) {
    while (head != nullptr) remove(*head);
  }
}

bool PortTable::is_taken(const Endpoint& local) const noexcept {
  for (const Port* port = buckets_[bucket(local.port)]; port != nullptr; port = port->chain) {
    const bool is_same_address = port->local.address == local.address ||
                                 port->local.address.is_any() || local.address.is_any();
    if (port->local.port == local.port && is_same_address) return true;
  }
  return false;
}

uint16_t PortTable::choose(const IpAddress& address, Random& random) const noexcept {
  constexpr uint32_t kCount = kEphemeralLast - kEphemeralFirst + 1;
  const uint32_t start = random.below(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    const auto port = static_cast<uint16_t>(kEphemeralFirst + (start + i) % kCount);
    if (!is_taken({address, port})) return port;
  }
  return 0;
}

Port* PortTable::add(const Endpoint& local, Owner& owner) noexcept {
  Port* port = ports_.acquire(local, owner);
  if (port == nullptr) return nullptr;
  Port*& head = buckets_[bucket(local.port)];
  port->chain = head;
  head = port;
  return port;
}

void PortTable::remove(Port& port) noexcept {
  Port** link = &buckets_[bucket(port.local.port)];
  while (*link != &port) link = &(*link)->chain;
  *link = port.chain;
  ports_.release(&port);
}

Port* PortTable::find(const Endpoint& local) const noexcept {
  for (Port* port = buckets_[bucket(local.port)]; port != nullptr; port = port->chain) {
    const bool is_address = port->local.address.is_any() || port->local.address == local.address;
    if (port->local.port == local.port && is_address) return port;
  }
  return nullptr;
}

}  // namespace nobounce::udp
