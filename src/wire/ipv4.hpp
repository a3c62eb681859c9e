// IPv4 header (RFC 791) and the pseudo header of the transports' checksums.
// A view is valid as long as the private bytes it was parsed from.
#pragma once

#include <cstdint>
#include <expected>

#include "base/bytes.hpp"
#include "nobounce/address.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kIpv4HeaderSize = 20;  // without options; what we send
inline constexpr size_t kIpv4HeaderSizeMax = 60;

struct Ipv4Header {
  uint8_t tos = 0;
  uint16_t total_length = 0;
  uint16_t identification = 0;
  bool dont_fragment = false;
  bool more_fragments = false;
  uint16_t fragment_offset = 0;  // bytes, a multiple of 8
  uint8_t ttl = 64;
  uint8_t protocol = 0;
  IpAddress source;
  IpAddress destination;

  // Writes kIpv4HeaderSize bytes, checksum included.
  void emit(MutableBytes to) const noexcept;
};

class Ipv4View {
 public:
  // `head` is private and holds at least the whole header; `packet_bytes` is the length of the
  // packet from the IPv4 header on, link padding included (TM-44). Checks, in this order: size,
  // version, IHL, header in `head`, total length >= header, total length <= packet, checksum.
  [[nodiscard]] static std::expected<Ipv4View, HeaderCause> parse(Bytes head,
                                                                  size_t packet_bytes) noexcept;
  // A header quoted by an ICMP error: routers change TTL and checksum and quote only a part, so
  // neither the checksum nor the packet's end is checked. `quote` keeps what is behind the header.
  [[nodiscard]] static std::expected<Ipv4View, HeaderCause> parse_quoted(Bytes quote) noexcept;

  [[nodiscard]] Bytes bytes() const noexcept { return header_; }  // options included
  [[nodiscard]] size_t header_size() const noexcept { return header_.size(); }
  [[nodiscard]] uint8_t tos() const noexcept { return load_be<uint8_t>(header_, 1); }
  [[nodiscard]] uint16_t total_length() const noexcept { return load_be<uint16_t>(header_, 2); }
  [[nodiscard]] uint16_t identification() const noexcept { return load_be<uint16_t>(header_, 4); }
  [[nodiscard]] bool dont_fragment() const noexcept { return (fragment_word() & 0x4000) != 0; }
  [[nodiscard]] bool more_fragments() const noexcept { return (fragment_word() & 0x2000) != 0; }
  [[nodiscard]] uint16_t fragment_offset() const noexcept {
    return static_cast<uint16_t>((fragment_word() & 0x1fff) << 3);
  }
  [[nodiscard]] bool is_fragment() const noexcept { return (fragment_word() & 0x3fff) != 0; }
  [[nodiscard]] uint8_t ttl() const noexcept { return load_be<uint8_t>(header_, 8); }
  [[nodiscard]] uint8_t protocol() const noexcept { return load_be<uint8_t>(header_, 9); }
  [[nodiscard]] IpAddress source() const noexcept {
    return IpAddress::v4(load_be<uint32_t>(header_, 12));
  }
  [[nodiscard]] IpAddress destination() const noexcept {
    return IpAddress::v4(load_be<uint32_t>(header_, 16));
  }
  // Loose or strict source route among the options (T-55: such packets are dropped). A malformed
  // option ends the walk; every step advances.
  [[nodiscard]] bool has_source_route() const noexcept;

 private:
  explicit Ipv4View(Bytes header) noexcept : header_(header) {}
  [[nodiscard]] uint16_t fragment_word() const noexcept { return load_be<uint16_t>(header_, 6); }
  Bytes header_;
};

// Sum of the pseudo header (RFC 9293 3.1, RFC 8200 8.1). `length` is the transport header and its
// payload. Folded, it is what a partial checksum field holds.
[[nodiscard]] uint64_t pseudo_header_sum(const IpAddress& source, const IpAddress& destination,
                                         uint8_t protocol, uint32_t length) noexcept;

}  // namespace nobounce::wire
