// ARP for IPv4 over Ethernet (RFC 826): 28 bytes; nothing else parses (N-5).
// A view is valid as long as the private bytes it was parsed from.
#pragma once

#include <cstdint>
#include <expected>

#include "base/bytes.hpp"
#include "nobounce/address.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kArpSize = 28;

enum class ArpOperation : uint16_t { request = 1, reply = 2 };

struct ArpPacket {
  ArpOperation operation = ArpOperation::request;
  MacAddress sender_mac;
  IpAddress sender_ip;
  MacAddress target_mac;
  IpAddress target_ip;

  // Writes kArpSize bytes. Addresses are IPv4.
  void emit(MutableBytes to) const noexcept;
};

class ArpView {
 public:
  // Checks hardware type, protocol type, both sizes and the operation.
  [[nodiscard]] static std::expected<ArpView, HeaderCause> parse(Bytes packet) noexcept;

  [[nodiscard]] ArpOperation operation() const noexcept {
    return static_cast<ArpOperation>(load_be<uint16_t>(packet_, 6));
  }
  [[nodiscard]] MacAddress sender_mac() const noexcept;
  [[nodiscard]] IpAddress sender_ip() const noexcept {
    return IpAddress::v4(load_be<uint32_t>(packet_, 14));
  }
  [[nodiscard]] MacAddress target_mac() const noexcept;
  [[nodiscard]] IpAddress target_ip() const noexcept {
    return IpAddress::v4(load_be<uint32_t>(packet_, 24));
  }

 private:
  explicit ArpView(Bytes packet) noexcept : packet_(packet) {}
  Bytes packet_;
};

}  // namespace nobounce::wire
