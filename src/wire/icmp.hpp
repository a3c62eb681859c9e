// ICMPv4 header (RFC 792): 8 bytes: type, code, checksum and four bytes that depend on the type.
// A view is valid as long as the private bytes it was parsed from. The checksum covers the payload,
// which may lie in frags: whoever has the packet verifies it.
#pragma once

#include <cstdint>
#include <expected>

#include "base/bytes.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kIcmpHeaderSize = 8;
inline constexpr size_t kIcmpChecksumOffset = 2;

enum IcmpType : uint8_t {
  kIcmpEchoReply = 0,
  kIcmpUnreachable = 3,
  kIcmpSourceQuench = 4,
  kIcmpRedirect = 5,
  kIcmpEchoRequest = 8,
  kIcmpTimeExceeded = 11,
  kIcmpParameterProblem = 12,
};

enum IcmpTimeExceededCode : uint8_t {
  kIcmpTimeToLiveExceeded = 0,
  kIcmpReassemblyTimeExceeded = 1,
};

enum IcmpUnreachableCode : uint8_t {
  kIcmpNetUnreachable = 0,
  kIcmpHostUnreachable = 1,
  kIcmpProtocolUnreachable = 2,
  kIcmpPortUnreachable = 3,
  kIcmpFragmentationNeeded = 4,
  kIcmpSourceRouteFailed = 5,
  kIcmpNetProhibited = 9,
  kIcmpHostProhibited = 10,
  kIcmpAdministrativelyProhibited = 13,
};

struct IcmpHeader {
  uint8_t type = 0;
  uint8_t code = 0;
  uint16_t checksum = 0;
  uint16_t identifier = 0;  // echo; unused (zero) in errors
  uint16_t sequence = 0;    // echo; next-hop MTU of "fragmentation needed"

  // Writes kIcmpHeaderSize bytes with the checksum as given.
  void emit(MutableBytes to) const noexcept;
};

class IcmpView {
 public:
  [[nodiscard]] static std::expected<IcmpView, HeaderCause> parse(Bytes head) noexcept;

  [[nodiscard]] uint8_t type() const noexcept { return load_be<uint8_t>(header_, 0); }
  [[nodiscard]] uint8_t code() const noexcept { return load_be<uint8_t>(header_, 1); }
  [[nodiscard]] uint16_t checksum() const noexcept { return load_be<uint16_t>(header_, 2); }
  [[nodiscard]] uint16_t identifier() const noexcept { return load_be<uint16_t>(header_, 4); }
  [[nodiscard]] uint16_t sequence() const noexcept { return load_be<uint16_t>(header_, 6); }
  [[nodiscard]] uint16_t next_hop_mtu() const noexcept { return load_be<uint16_t>(header_, 6); }
  // Types that report a problem with another packet (never answered with an error, N-4).
  [[nodiscard]] bool is_error() const noexcept;

 private:
  explicit IcmpView(Bytes header) noexcept : header_(header) {}
  Bytes header_;
};

}  // namespace nobounce::wire
