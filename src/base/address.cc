#include "nobounce/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nobounce {
namespace {

template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  const std::string copy(text);
  if (copy.find('\0') != std::string::npos) return {};  // inet_pton would stop there
  in_addr v4_address{};
  if (inet_pton(AF_INET, copy.c_str(), &v4_address) == 1) return v4(ntohl(v4_address.s_addr));
  std::array<uint8_t, 16> network{};
  if (inet_pton(AF_INET6, copy.c_str(), network.data()) == 1) return v6(network);
  return {};
}

std::string IpAddress::to_string() const {
  char text[INET6_ADDRSTRLEN];
  if (is_v4()) {
    inet_ntop(AF_INET, bytes_.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, bytes_.data(), text, sizeof text);
  }
  return text;
}

std::optional<Endpoint> Endpoint::parse(std::string_view text) {
  std::string_view host;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {};
  host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return {};  // a bare IPv6 address: ambiguous
  }
  const auto address = IpAddress::parse(host);
  const auto port = parse_number<uint16_t>(text.substr(colon + 1));
  if (!address || !port) return {};
  return Endpoint{*address, *port};
}

std::string Endpoint::to_string() const {
  return address.is_v4() ? fmt::format("{}:{}", address.to_string(), port)
                         : fmt::format("[{}]:{}", address.to_string(), port);
}

std::optional<IpPrefix> IpPrefix::parse(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  const auto address = IpAddress::parse(text.substr(0, slash));
  const auto length = parse_number<uint8_t>(text.substr(slash + 1));
  if (!address || !length || *length > (address->is_v4() ? 32 : 128)) return {};
  return IpPrefix{*address, *length};
}

bool IpPrefix::contains(const IpAddress& other) const noexcept {
  if (address.is_v4() != other.is_v4()) return false;
  const size_t bits = length + (address.is_v4() ? 96u : 0u);
  const size_t whole = bits / 8;
  if (std::memcmp(address.bytes().data(), other.bytes().data(), whole) != 0) return false;
  if (bits % 8 == 0) return true;
  const auto mask = static_cast<uint8_t>(0xff << (8 - bits % 8));
  return (address.bytes()[whole] & mask) == (other.bytes()[whole] & mask);
}

IpAddress IpPrefix::broadcast() const noexcept {
  if (!address.is_v4() || length > 30) return {};
  const uint32_t host_bits = length == 0 ? 0xffffffff : (uint32_t{1} << (32 - length)) - 1;
  return IpAddress::v4(address.v4_bits() | host_bits);
}

std::string IpPrefix::to_string() const {
  return fmt::format("{}/{}", address.to_string(), length);
}

std::optional<Route> Route::parse(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {};
  const auto prefix = IpPrefix::parse(text.substr(0, equals));
  const auto gateway = IpAddress::parse(text.substr(equals + 1));
  if (!prefix || !gateway) return {};
  return Route{*prefix, *gateway};
}

std::string Route::to_string() const {
  return fmt::format("{}={}", prefix.to_string(), gateway.to_string());
}

std::optional<MacAddress> MacAddress::parse(std::string_view text) {
  MacAddress mac;
  if (text.size() != 17) return {};
  for (size_t i = 0; i < 6; ++i) {
    if (i > 0 && text[3 * i - 1] != ':') return {};
    const auto byte = parse_number<uint8_t>(text.substr(3 * i, 2), 16);
    if (!byte) return {};
    mac.bytes[i] = *byte;
  }
  return mac;
}

std::string MacAddress::to_string() const {
  return fmt::format("{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2],
                     bytes[3], bytes[4], bytes[5]);
}

}  // namespace nobounce
