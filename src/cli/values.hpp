// Values as they are written on the command line and in configuration files.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nobounce/address.hpp"
#include "nobounce/stack.hpp"

namespace nobounce::cli {

// "65536", "64K", "64M", "1G" (powers of 1024).
[[nodiscard]] std::optional<uint64_t> parse_bytes(std::string_view text);
// "5", "2.5", "200ms", "5s", "2m": seconds unless said otherwise; more than 0, at most a day.
[[nodiscard]] std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);
// A decimal number in [low, high].
[[nodiscard]] std::optional<uint64_t> parse_number(std::string_view text, uint64_t low,
                                                   uint64_t high);
[[nodiscard]] std::optional<Mode> parse_mode(std::string_view text);
// Descriptors of a queue and bytes of an MTU, in the bounds of netdev/net_device.hpp; right_...()
// says which for add_value().
[[nodiscard]] std::optional<uint16_t> parse_queue_size(std::string_view text);
[[nodiscard]] std::string right_queue_size();
[[nodiscard]] std::optional<uint16_t> parse_mtu(std::string_view text);
[[nodiscard]] std::string right_mtu();
// "10.77.0.1" or "10.77.0.1:9"; port 0 when there is none.
[[nodiscard]] std::optional<Endpoint> parse_endpoint(std::string_view text);
// A unicast address that is not zero.
[[nodiscard]] std::optional<MacAddress> parse_unicast_mac(std::string_view text);
// An address a host can have, with its prefix length: no network, broadcast or multicast address.
[[nodiscard]] std::optional<IpPrefix> parse_host_prefix(std::string_view text);

[[nodiscard]] const char* to_string(Mode mode) noexcept;
// "1.5 GiB", "64.0 KiB", "12 B".
[[nodiscard]] std::string format_bytes(uint64_t bytes);

}  // namespace nobounce::cli
