// Internet addresses: IPv4 or IPv6 in one 16-byte value (IPv4 as v4-mapped, RFC 4291 2.5.5.2).
// Plain values: copy freely, any thread.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nobounce {

class IpAddress {
 public:
  constexpr IpAddress() noexcept = default;  // 0.0.0.0: "any"

  [[nodiscard]] static constexpr IpAddress v4(uint32_t host_order) noexcept {
    IpAddress address;
    for (size_t i = 0; i < 4; ++i) {
      address.bytes_[12 + i] = static_cast<uint8_t>(host_order >> (24 - 8 * i));
    }
    return address;
  }
  [[nodiscard]] static constexpr IpAddress v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) noexcept {
    return v4(uint32_t{a} << 24 | uint32_t{b} << 16 | uint32_t{c} << 8 | d);
  }
  [[nodiscard]] static constexpr IpAddress v6(const std::array<uint8_t, 16>& network) noexcept {
    IpAddress address;
    address.bytes_ = network;
    return address;
  }
  // "192.0.2.1" or "2001:db8::1"; nothing when it is neither.
  [[nodiscard]] static std::optional<IpAddress> parse(std::string_view text);

  [[nodiscard]] constexpr bool is_v4() const noexcept {
    for (size_t i = 0; i < 10; ++i) {
      if (bytes_[i] != 0) return false;
    }
    return bytes_[10] == 0xff && bytes_[11] == 0xff;
  }
  [[nodiscard]] constexpr bool is_v6() const noexcept { return !is_v4(); }
  [[nodiscard]] constexpr uint32_t v4_bits() const noexcept {  // host order; v4 only
    return uint32_t{bytes_[12]} << 24 | uint32_t{bytes_[13]} << 16 | uint32_t{bytes_[14]} << 8 |
           bytes_[15];
  }
  [[nodiscard]] constexpr const std::array<uint8_t, 16>& bytes() const noexcept { return bytes_; }

  [[nodiscard]] constexpr bool is_any() const noexcept {
    if (is_v4()) return v4_bits() == 0;
    for (const uint8_t byte : bytes_) {
      if (byte != 0) return false;
    }
    return true;
  }
  [[nodiscard]] constexpr bool is_multicast() const noexcept {
    return is_v4() ? (v4_bits() >> 28) == 0xe : bytes_[0] == 0xff;
  }
  [[nodiscard]] constexpr bool is_loopback() const noexcept {
    if (is_v4()) return (v4_bits() >> 24) == 127;
    for (size_t i = 0; i < 15; ++i) {
      if (bytes_[i] != 0) return false;
    }
    return bytes_[15] == 1;
  }
  [[nodiscard]] constexpr bool is_limited_broadcast() const noexcept {
    return is_v4() && v4_bits() == 0xffffffff;
  }

  [[nodiscard]] std::string to_string() const;

  friend constexpr auto operator<=>(const IpAddress&, const IpAddress&) noexcept = default;

 private:
  std::array<uint8_t, 16> bytes_{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
};

// An address with a port in host order.
struct Endpoint {
  IpAddress address;
  uint16_t port = 0;

  // "192.0.2.1:80", "[2001:db8::1]:80".
  [[nodiscard]] static std::optional<Endpoint> parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  friend constexpr auto operator<=>(const Endpoint&, const Endpoint&) noexcept = default;
};

// An address with a prefix length: "192.0.2.1/24".
struct IpPrefix {
  IpAddress address;
  uint8_t length = 0;  // 0..32 for IPv4, 0..128 for IPv6

  [[nodiscard]] static std::optional<IpPrefix> parse(std::string_view text);
  [[nodiscard]] bool contains(const IpAddress& other) const noexcept;
  // IPv4: the directed broadcast address; any for IPv6 and prefixes longer than 30.
  [[nodiscard]] IpAddress broadcast() const noexcept;
  [[nodiscard]] std::string to_string() const;
};

// What is in `prefix` goes by `gateway`: "10.88.0.0/16=10.77.0.9".
struct Route {
  IpPrefix prefix;
  IpAddress gateway;

  [[nodiscard]] static std::optional<Route> parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
};

struct MacAddress {
  std::array<uint8_t, 6> bytes{};

  [[nodiscard]] static std::optional<MacAddress> parse(std::string_view text);
  [[nodiscard]] static constexpr MacAddress broadcast() noexcept {
    return {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};
  }
  [[nodiscard]] constexpr bool is_multicast() const noexcept { return (bytes[0] & 1) != 0; }
  [[nodiscard]] constexpr bool is_zero() const noexcept { return *this == MacAddress{}; }
  [[nodiscard]] std::string to_string() const;
  friend constexpr auto operator<=>(const MacAddress&, const MacAddress&) noexcept = default;
};

}  // namespace nobounce
