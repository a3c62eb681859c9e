// Why the network layer dropped a packet: one counter each, "ip.drop.<name>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/counters.hpp"
#include "wire/cause.hpp"

namespace nobounce::ip {

enum class Drop : uint8_t {
  // sending
  no_route,
  bad_source,
  ipv6_not_supported,
  output_full,
  too_big,
  local_full,
  local_no_memory,
  // receiving: Ethernet
  short_frame,
  other_mac,
  unknown_ether_type,
  // receiving: IPv4, in the order of the checks
  truncated,
  bad_version,
  bad_header_size,
  bad_length,
  bad_header_checksum,
  source_route,
  bad_source_address,
  not_for_us,
  link_broadcast,
  bad_csum_start,
  unknown_protocol,
};
inline constexpr std::array kDropNames = {
    "no_route",
    "bad_source",
    "ipv6_not_supported",
    "output_full",
    "too_big",
    "local_full",
    "local_no_memory",
    "short_frame",
    "other_mac",
    "unknown_ether_type",
    "truncated",
    "bad_version",
    "bad_header_size",
    "bad_length",
    "bad_header_checksum",
    "source_route",
    "bad_source_address",
    "not_for_us",
    "link_broadcast",
    "bad_csum_start",
    "unknown_protocol",
};
static_assert(kDropNames.size() == static_cast<size_t>(Drop::unknown_protocol) + 1);

class DropCounters {
 public:
  explicit DropCounters(CounterRegistry& registry) {
    for (size_t i = 0; i < kDropNames.size(); ++i) {
      counters_[i] = registry.counter(std::string("ip.drop.") + kDropNames[i]);
    }
  }
  void add(Drop drop) noexcept { counters_[static_cast<size_t>(drop)].add(); }

 private:
  std::array<Counter, kDropNames.size()> counters_;
};

[[nodiscard]] constexpr Drop drop_of(wire::HeaderCause cause) noexcept {
  switch (cause) {
    case wire::HeaderCause::bad_version:
      return Drop::bad_version;
    case wire::HeaderCause::bad_header_size:
      return Drop::bad_header_size;
    case wire::HeaderCause::bad_length:
      return Drop::bad_length;
    case wire::HeaderCause::bad_checksum:
      return Drop::bad_header_checksum;
    default:
      return Drop::truncated;
  }
}

}  // namespace nobounce::ip
