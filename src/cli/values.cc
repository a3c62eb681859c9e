#include "cli/values.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <utility>

#include "netdev/net_device.hpp"

namespace nobounce::cli {
namespace {

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace

std::optional<uint64_t> parse_number(std::string_view text, uint64_t low, uint64_t high) {
  const auto value = parse_whole<uint64_t>(text);
  if (!value || *value < low || *value > high) return {};
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  unsigned shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift != 0) text.remove_suffix(1);
  return parse_number(text, 1, UINT64_MAX >> shift).transform([shift](uint64_t value) {
    return value << shift;
  });
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 3> kUnits{
      {{"ms", 1e-3}, {"s", 1.0}, {"m", 60.0}}};
  double unit = 1.0;
  for (const auto& [name, seconds] : kUnits) {
    if (!text.ends_with(name)) continue;
    unit = seconds;
    text.remove_suffix(name.size());
    break;
  }
  const auto value = parse_whole<double>(text);
  if (!value || !std::isfinite(*value)) return {};
  const double seconds = *value * unit;
  if (seconds < 1e-3 || seconds > 86400) return {};
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

std::optional<Mode> parse_mode(std::string_view text) {
  if (text == "nocopy") return Mode::nocopy;
  if (text == "bounce") return Mode::bounce;
  return {};
}

std::optional<uint16_t> parse_queue_size(std::string_view text) {
  const auto value = parse_number(text, kQueueSizeMin, kQueueSizeMax);
  if (!value || !std::has_single_bit(*value)) return {};
  return static_cast<uint16_t>(*value);
}

std::string right_queue_size() {
  return fmt::format("a power of two from {} to {}", kQueueSizeMin, kQueueSizeMax);
}

std::optional<uint16_t> parse_mtu(std::string_view text) {
  return parse_number(text, kMtuMin, kMtuMax).transform([](uint64_t value) {
    return static_cast<uint16_t>(value);
  });
}

std::string right_mtu() { return fmt::format("a number of bytes from {} to {}", kMtuMin, kMtuMax); }

std::optional<Endpoint> parse_endpoint(std::string_view text) {
  if (const auto address = IpAddress::parse(text)) return Endpoint{*address, 0};
  const auto endpoint = Endpoint::parse(text);
  if (!endpoint || endpoint->port == 0) return {};
  return endpoint;
}

std::optional<MacAddress> parse_unicast_mac(std::string_view text) {
  const auto mac = MacAddress::parse(text);
  if (!mac || mac->is_multicast() || mac->is_zero()) return {};
  return mac;
}

std::optional<IpPrefix> parse_host_prefix(std::string_view text) {
  const auto prefix = IpPrefix::parse(text);
  if (!prefix) return {};
  const IpAddress& address = prefix->address;
  if (address.is_any() || address.is_multicast() || address.is_limited_broadcast()) return {};
  if (address.is_v4() && prefix->length <= 30) {
    const uint32_t host_mask = prefix->length == 0 ? ~0u : (1u << (32 - prefix->length)) - 1;
    const uint32_t host = address.v4_bits() & host_mask;
    if (host == 0 || host == host_mask) return {};
  }
  return prefix;
}

const char* to_string(Mode mode) noexcept { return mode == Mode::nocopy ? "nocopy" : "bounce"; }

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace nobounce::cli
