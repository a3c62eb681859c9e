#include "ip/path_mtus.hpp"

#include <algorithm>
#include <bit>

namespace nobounce::ip {

PathMtus::PathMtus(ShardContext& context, size_t entries_max)
    : context_(context),
      key_(SipKey::make(context.random)),
      lowered_(context.counters.counter("ip.path_mtu.lowered")),
      ignored_(context.counters.counter("ip.path_mtu.ignored")),
      evicted_(context.counters.counter("ip.path_mtu.evicted")) {
  entries_max = std::max<size_t>(entries_max, 1);
  entries_ = std::make_unique<Entry[]>(entries_max);
  buckets_.resize(std::bit_ceil(entries_max * 2));
  for (size_t i = 0; i < entries_max; ++i) free_.push_back(entries_[i]);
}

PathMtus::~PathMtus() {
  while (!by_age_.empty()) remove(*by_age_.front());
  while (free_.pop_front() != nullptr) {
  }
}

size_t PathMtus::bucket(const IpAddress& address) const noexcept {
  return siphash(key_, std::as_bytes(std::span(address.bytes()))) & (buckets_.size() - 1);
}

PathMtus::Entry* PathMtus::find(const IpAddress& address) const noexcept {
  Entry* entry = buckets_[bucket(address)];
  while (entry != nullptr && entry->destination != address) entry = entry->chain;
  return entry;
}

uint16_t PathMtus::get(const IpAddress& destination, uint16_t link_mtu) const noexcept {
  if (by_age_.size() == 0) return link_mtu;
  const Entry* entry = find(destination);
  if (entry == nullptr || context_.now_ns >= entry->until_ns) return link_mtu;
  return std::min(entry->mtu, link_mtu);
}

bool PathMtus::lower(const IpAddress& destination, uint16_t mtu, uint16_t link_mtu) noexcept {
  for (Entry* oldest = by_age_.front(); oldest != nullptr && context_.now_ns >= oldest->until_ns;
       oldest = by_age_.front()) {
    remove(*oldest);
  }
  mtu = std::max(mtu, kFloor);
  if (mtu >= get(destination, link_mtu)) {
    ignored_.add();
    return false;
  }
  Entry* known = find(destination);
  Entry& entry = known != nullptr ? *known : add(destination);
  entry.mtu = mtu;
  entry.until_ns = context_.now_ns + kAgeNs;
  by_age_.remove(entry);
  by_age_.push_back(entry);
  lowered_.add();
  return true;
}

PathMtus::Entry& PathMtus::add(const IpAddress& address) noexcept {
  if (free_.empty()) {
    evicted_.add();
    remove(*by_age_.front());
  }
  Entry& entry = *free_.pop_front();
  entry.destination = address;
  Entry*& head = buckets_[bucket(address)];
  entry.chain = head;
  head = &entry;
  by_age_.push_back(entry);
  return entry;
}

void PathMtus::remove(Entry& entry) noexcept {
  Entry** link = &buckets_[bucket(entry.destination)];
  while (*link != &entry) link = &(*link)->chain;
  *link = entry.chain;
  entry.chain = nullptr;
  by_age_.remove(entry);
  free_.push_back(entry);
}

}  // namespace nobounce::ip
