// Who a segment is for: connections by 4-tuple (keyed hash, T-62), listeners by port.
//
// Buckets are chains through the objects; their number is fixed at construction. The key is random,
// so a peer cannot aim at one bucket.
#pragma once

#include <vector>

#include "base/siphash.hpp"
#include "tcp/connection.hpp"

namespace nobounce::tcp {

// The PRF over a 4-tuple: for the table, for initial sequence numbers and for timestamp offsets,
// each with a key of its own.
[[nodiscard]] uint64_t tuple_hash(const SipKey& key, const Endpoint& local,
                                  const Endpoint& remote) noexcept;

class ConnectionTable {
 public:
  ConnectionTable(size_t connections_max, SipKey key);

  [[nodiscard]] Connection* find(const Endpoint& local, const Endpoint& remote) const noexcept;
  void insert(Connection& connection) noexcept;
  void remove(Connection& connection) noexcept;
  [[nodiscard]] size_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] size_t bucket(const Endpoint& local, const Endpoint& remote) const noexcept;

  SipKey key_;
  std::vector<Connection*> buckets_;
  size_t size_ = 0;
};

class ListenerTable {
 public:
  // The listener of the exact address wins over the one of any address (T-11).
  [[nodiscard]] Listener* find(const Endpoint& local) noexcept;
  [[nodiscard]] Listener* find_exact(const Endpoint& local) noexcept;
  [[nodiscard]] bool has_port(uint16_t port) noexcept;
  void insert(Listener& listener) noexcept { bucket(listener.local.port).push_back(listener); }
  void remove(Listener& listener) noexcept { bucket(listener.local.port).remove(listener); }
  [[nodiscard]] Listener* any() noexcept;

 private:
  [[nodiscard]] List<Listener>& bucket(uint16_t port) noexcept { return buckets_[port & 63]; }
  std::array<List<Listener>, 64> buckets_;
};

}  // namespace nobounce::tcp
