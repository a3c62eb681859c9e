#include "backend/mac_table.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace nobounce::backend {

size_t MacTable::set_of(const MacAddress& mac) const noexcept {
  std::array<std::byte, 6> bytes;
  std::ranges::transform(mac.bytes, bytes.begin(), [](uint8_t byte) { return std::byte{byte}; });
  return siphash(key_, bytes) % kSets;
}

bool MacTable::learn(const MacAddress& mac, uint16_t port, uint64_t now_ns) noexcept {
  if (mac.is_multicast() || mac.is_zero()) return false;
  auto& set = sets_[set_of(mac)];
  const uint64_t now = std::max<uint64_t>(now_ns, 1);
  const auto known = std::ranges::find_if(
      set, [&](const Entry& entry) { return entry.seen_ns != 0 && entry.mac == mac; });
  if (known != set.end()) {
    *known = {mac, port, now};
    return false;
  }
  Entry& oldest = *std::ranges::min_element(set, {}, &Entry::seen_ns);
  const bool evicts = oldest.seen_ns != 0 && now - oldest.seen_ns < kAgeNs;
  oldest = {mac, port, now};
  return evicts;
}

std::optional<uint16_t> MacTable::find(const MacAddress& mac, uint64_t now_ns) const noexcept {
  for (const Entry& entry : sets_[set_of(mac)]) {
    if (entry.seen_ns == 0 || entry.mac != mac) continue;
    if (now_ns > entry.seen_ns && now_ns - entry.seen_ns >= kAgeNs) return std::nullopt;
    return entry.port;
  }
  return std::nullopt;
}

void MacTable::forget(uint16_t port) noexcept {
  for (auto& set : sets_) {
    for (Entry& entry : set) {
      if (entry.port == port) entry = {};
    }
  }
}

size_t MacTable::size() const noexcept {
  size_t count = 0;
  for (const auto& set : sets_) {
    count += static_cast<size_t>(
        std::ranges::count_if(set, [](const Entry& entry) { return entry.seen_ns != 0; }));
  }
  return count;
}

}  // namespace nobounce::backend
