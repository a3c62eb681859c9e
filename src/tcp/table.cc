#include "tcp/table.hpp"

#include <bit>

namespace nobounce::tcp {

uint64_t tuple_hash(const SipKey& key, const Endpoint& local, const Endpoint& remote) noexcept {
  std::array<std::byte, 36> tuple;
  std::memcpy(tuple.data(), local.address.bytes().data(), 16);
  std::memcpy(tuple.data() + 16, remote.address.bytes().data(), 16);
  store_be<uint16_t>(tuple, 32, local.port);
  store_be<uint16_t>(tuple, 34, remote.port);
  return siphash(key, tuple);
}

ConnectionTable::ConnectionTable(size_t connections_max, SipKey key)
    : key_(key), buckets_(std::bit_ceil(std::max<size_t>(connections_max, 1)), nullptr) {}

size_t ConnectionTable::bucket(const Endpoint& local, const Endpoint& remote) const noexcept {
  return tuple_hash(key_, local, remote) & (buckets_.size() - 1);
}

Connection* ConnectionTable::find(const Endpoint& local, const Endpoint& remote) const noexcept {
  Connection* connection = buckets_[bucket(local, remote)];
  while (connection != nullptr && !(connection->local == local && connection->remote == remote)) {
    connection = connection->hash_next;
  }
  return connection;
}

void ConnectionTable::insert(Connection& connection) noexcept {
  NB_ASSERT(!connection.in_table);
  Connection*& head = buckets_[bucket(connection.local, connection.remote)];
  connection.hash_next = head;
  head = &connection;
  connection.in_table = true;
  ++size_;
}

void ConnectionTable::remove(Connection& connection) noexcept {
  NB_ASSERT(connection.in_table);
  Connection** link = &buckets_[bucket(connection.local, connection.remote)];
  while (*link != &connection) {
    NB_ASSERT(*link != nullptr);
    link = &(*link)->hash_next;
  }
  *link = connection.hash_next;
  connection.hash_next = nullptr;
  connection.in_table = false;
  --size_;
}

Listener* ListenerTable::find_exact(const Endpoint& local) noexcept {
  List<Listener>& list = bucket(local.port);
  for (Listener* l = list.front(); l != nullptr; l = list.next(*l)) {
    if (l->local == local) return l;
  }
  return nullptr;
}

Listener* ListenerTable::find(const Endpoint& local) noexcept {
  if (Listener* exact = find_exact(local)) return exact;
  return find_exact({IpAddress(), local.port});
}

bool ListenerTable::has_port(uint16_t port) noexcept {
  List<Listener>& list = bucket(port);
  for (Listener* l = list.front(); l != nullptr; l = list.next(*l)) {
    if (l->local.port == port) return true;
  }
  return false;
}

Listener* ListenerTable::any() noexcept {
  for (List<Listener>& list : buckets_) {
    if (!list.empty()) return list.front();
  }
  return nullptr;
}

}  // namespace nobounce::tcp
