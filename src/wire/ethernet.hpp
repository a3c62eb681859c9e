// Ethernet II header: 6 destination, 6 source, 2 type.
// A view is valid as long as the private bytes it was parsed from.
#pragma once

#include <cstdint>
#include <expected>

#include "base/bytes.hpp"
#include "nobounce/address.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kEthernetHeaderSize = 14;
inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr uint16_t kEtherTypeArp = 0x0806;
inline constexpr uint16_t kEtherTypeIpv6 = 0x86dd;

struct EthernetHeader {
  MacAddress destination;
  MacAddress source;
  uint16_t ether_type = 0;

  // Writes kEthernetHeaderSize bytes.
  void emit(MutableBytes to) const noexcept;
};

class EthernetView {
 public:
  [[nodiscard]] static std::expected<EthernetView, HeaderCause> parse(Bytes frame) noexcept;

  [[nodiscard]] MacAddress destination() const noexcept;
  [[nodiscard]] MacAddress source() const noexcept;
  [[nodiscard]] uint16_t ether_type() const noexcept { return load_be<uint16_t>(header_, 12); }

 private:
  explicit EthernetView(Bytes header) noexcept : header_(header) {}
  Bytes header_;
};

}  // namespace nobounce::wire
