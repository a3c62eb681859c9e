// Why a header could not be parsed: one enum for all headers, so that a floor counts by cause.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nobounce::wire {

enum class HeaderCause : uint8_t {
  truncated,        // fewer bytes than the header says, or than the smallest header has
  bad_version,      // IPv4: version is not 4
  bad_header_size,  // IHL or data offset below the minimum
  bad_length,       // a length field contradicts the header or the packet
  bad_checksum,     // IPv4 header checksum
  bad_format,       // ARP: hardware or protocol type, address sizes, operation
};
inline constexpr size_t kHeaderCauses = 6;

[[nodiscard]] constexpr const char* name(HeaderCause cause) noexcept {
  switch (cause) {
    case HeaderCause::truncated:
      return "truncated";
    case HeaderCause::bad_version:
      return "bad_version";
    case HeaderCause::bad_header_size:
      return "bad_header_size";
    case HeaderCause::bad_length:
      return "bad_length";
    case HeaderCause::bad_checksum:
      return "bad_header_checksum";
    case HeaderCause::bad_format:
      return "bad_format";
  }
  return "unknown";
}

}  // namespace nobounce::wire
