// The few pcapng blocks a capture needs (draft-ietf-opsawg-pcapng): section header, one Ethernet
// interface, enhanced packets, interface statistics. Little-endian, nanosecond timestamps.
// Each call writes one whole block to the front of `to` and returns its size; the caller makes sure
// that it fits (see the *Size helpers).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.hpp"
#include "nobounce/address.hpp"

namespace nobounce::pcapng {

inline constexpr size_t kHeadersSizeMax = 512;
inline constexpr size_t kStatisticsSize = 24 + 12 + 12 + 4;

enum class Direction : uint8_t { in = 1, out = 2 };

struct PacketFacts {
  uint64_t time_ns = 0;  // since 1970
  uint32_t original_size = 0;
  Direction direction = Direction::in;
  uint32_t queue = 0;
};

// Section header and interface description.
size_t write_headers(MutableBytes to, std::string_view application, std::string_view interface,
                     const MacAddress& mac, uint32_t snap_length) noexcept;

// Size of a packet block that holds `captured` bytes.
[[nodiscard]] constexpr size_t packet_size(size_t captured) noexcept {
  return 28 + round_up(captured, 4) + 8 + 8 + 4 + 4;
}
// Writes everything but the data and returns where `captured` bytes of it belong; padding is zero.
[[nodiscard]] MutableBytes begin_packet(MutableBytes to, size_t captured,
                                        const PacketFacts& facts) noexcept;

size_t write_statistics(MutableBytes to, uint64_t time_ns, uint64_t received,
                        uint64_t dropped) noexcept;

}  // namespace nobounce::pcapng
