// What a learning switch knows: behind which port each MAC address was last seen (IEEE 802.1Q 8.8).
//
// A fixed table of sets of four, hashed with a key of its own: guests choose addresses, and may
// neither make it grow nor make each other's entries collide on purpose. A full set forgets the entry
// that was not seen for the longest time; traffic to a forgotten address is flooded, not lost.
//
// Threads: one. Cost: O(1), nothing allocates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/siphash.hpp"
#include "nobounce/address.hpp"

namespace nobounce::backend {

class MacTable {
 public:
  static constexpr size_t kSets = 256;
  static constexpr size_t kWays = 4;
  static constexpr uint64_t kAgeNs = 300'000'000'000;  // 802.1Q's default

  explicit MacTable(Random& random) noexcept : key_(SipKey::make(random)) {}

  // A frame from `mac` came in by `port`. Group addresses are nobody's. True: another entry had to go.
  bool learn(const MacAddress& mac, uint16_t port, uint64_t now_ns) noexcept;
  [[nodiscard]] std::optional<uint16_t> find(const MacAddress& mac, uint64_t now_ns) const noexcept;
  void forget(uint16_t port) noexcept;
  [[nodiscard]] size_t size() const noexcept;

 private:
  struct Entry {
    MacAddress mac;
    uint16_t port = 0;
    uint64_t seen_ns = 0;  // 0: empty
  };

  [[nodiscard]] size_t set_of(const MacAddress& mac) const noexcept;

  const SipKey key_;
  std::array<std::array<Entry, kWays>, kSets> sets_{};
};

}  // namespace nobounce::backend
