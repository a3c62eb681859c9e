// UDP header (RFC 768): 8 bytes: ports, length, checksum.
// A view is valid as long as the private bytes it was parsed from. The checksum covers the payload,
// which may lie in frags: whoever has the packet verifies it.
#pragma once

#include <cstdint>
#include <expected>

#include "base/bytes.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kUdpHeaderSize = 8;
inline constexpr uint16_t kUdpChecksumOffset = 6;

struct UdpHeader {
  uint16_t source_port = 0;
  uint16_t destination_port = 0;
  uint16_t length = 0;  // header and payload
  uint16_t checksum = 0;

  // Writes kUdpHeaderSize bytes with the checksum as given.
  void emit(MutableBytes to) const noexcept;
};

class UdpView {
 public:
  // `datagram_bytes`: header and all payload that IP delivered. Length must be in [8, that] (N-10).
  [[nodiscard]] static std::expected<UdpView, HeaderCause> parse(Bytes head,
                                                                 size_t datagram_bytes) noexcept;

  [[nodiscard]] uint16_t source_port() const noexcept { return load_be<uint16_t>(header_, 0); }
  [[nodiscard]] uint16_t destination_port() const noexcept { return load_be<uint16_t>(header_, 2); }
  [[nodiscard]] uint16_t length() const noexcept { return load_be<uint16_t>(header_, 4); }
  [[nodiscard]] uint16_t checksum() const noexcept { return load_be<uint16_t>(header_, 6); }

 private:
  explicit UdpView(Bytes header) noexcept : header_(header) {}
  Bytes header_;
};

}  // namespace nobounce::wire
