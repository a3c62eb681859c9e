// TCP header and options (RFC 9293 3.1, RFC 7323, RFC 2018).
//
// A view is valid as long as the private bytes it was parsed from. The checksum covers the payload,
// which may lie in frags: whoever has the packet verifies it.
//
// Options (T-3): unknown kinds are skipped by their length; a known kind of a wrong length is
// skipped too; a length of 0 or 1, or one past the end, ends the walk and what was read before it
// counts. Of a repeated option the last one counts. Nothing is assumed about alignment.
// Layout when emitted (T-7), own padding zero:
//   SYN             mss, sackOK, TS, nop, wscale
//   SYN without TS  mss, nop, nop, sackOK, nop, wscale
//   others          nop, nop, TS, nop, nop, SACK
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>

#include "base/bytes.hpp"
#include "wire/cause.hpp"

namespace nobounce::wire {

inline constexpr size_t kTcpHeaderSize = 20;
inline constexpr size_t kTcpHeaderSizeMax = 60;
inline constexpr uint16_t kTcpChecksumOffset = 16;
inline constexpr uint8_t kTcpWindowScaleMax = 14;  // RFC 7323 2.3: above counts as 14
inline constexpr size_t kTcpSackBlocksMax = 4;
inline constexpr size_t kTcpTimestampOptionSize = 12;  // with its two NOPs

enum TcpFlag : uint8_t {
  kTcpFin = 0x01,
  kTcpSyn = 0x02,
  kTcpRst = 0x04,
  kTcpPsh = 0x08,
  kTcpAck = 0x10,
  kTcpUrg = 0x20,
  kTcpEce = 0x40,
  kTcpCwr = 0x80,
};

struct TcpTimestamps {
  uint32_t value = 0;
  uint32_t echo = 0;
  friend bool operator==(const TcpTimestamps&, const TcpTimestamps&) = default;
};

struct TcpSackBlock {
  uint32_t left = 0;   // first sequence number of the block
  uint32_t right = 0;  // the one behind its last
  friend bool operator==(const TcpSackBlock&, const TcpSackBlock&) = default;
};

struct TcpOptions {
  std::optional<uint16_t> mss{};  // as received: the floor is the connection's business (T-52)
  std::optional<uint8_t> window_scale{};  // at most 14
  bool sack_permitted = false;
  std::optional<TcpTimestamps> timestamps{};
  uint8_t sack_count = 0;
  std::array<TcpSackBlock, kTcpSackBlocksMax> sack{};

  // Bytes on the wire, a multiple of 4, at most 40. Blocks that do not fit are left out by emit:
  // 3 beside timestamps, 4 without.
  [[nodiscard]] size_t size() const noexcept;
  // Writes size() bytes.
  void emit(MutableBytes to) const noexcept;
  [[nodiscard]] static TcpOptions parse(Bytes options) noexcept;

  friend bool operator==(const TcpOptions&, const TcpOptions&) = default;
};

struct TcpHeader {
  uint16_t source_port = 0;
  uint16_t destination_port = 0;
  uint32_t sequence = 0;
  uint32_t acknowledgement = 0;
  uint8_t flags = 0;  // TcpFlag
  uint16_t window = 0;
  uint16_t checksum = 0;
  uint16_t urgent_pointer = 0;
  TcpOptions options{};

  [[nodiscard]] size_t size() const noexcept { return kTcpHeaderSize + options.size(); }
  // Writes size() bytes with the checksum as given.
  void emit(MutableBytes to) const noexcept;
};

class TcpView {
 public:
  // `head` is private and begins with the TCP header; it holds all of the segment, or at least its
  // first kTcpHeaderSizeMax bytes. A data offset below 5 or past `head` gives no view (T-2).
  [[nodiscard]] static std::expected<TcpView, HeaderCause> parse(Bytes head) noexcept;

  [[nodiscard]] size_t header_size() const noexcept { return header_.size(); }
  [[nodiscard]] uint16_t source_port() const noexcept { return load_be<uint16_t>(header_, 0); }
  [[nodiscard]] uint16_t destination_port() const noexcept { return load_be<uint16_t>(header_, 2); }
  [[nodiscard]] uint32_t sequence() const noexcept { return load_be<uint32_t>(header_, 4); }
  [[nodiscard]] uint32_t acknowledgement() const noexcept { return load_be<uint32_t>(header_, 8); }
  [[nodiscard]] uint8_t flags() const noexcept { return load_be<uint8_t>(header_, 13); }
  [[nodiscard]] bool has(uint8_t flag) const noexcept { return (flags() & flag) != 0; }
  [[nodiscard]] uint16_t window() const noexcept { return load_be<uint16_t>(header_, 14); }
  [[nodiscard]] uint16_t checksum() const noexcept { return load_be<uint16_t>(header_, 16); }
  [[nodiscard]] uint16_t urgent_pointer() const noexcept { return load_be<uint16_t>(header_, 18); }
  [[nodiscard]] TcpOptions options() const noexcept {
    return TcpOptions::parse(header_.subspan(kTcpHeaderSize));
  }
  // Everything as a plain struct.
  [[nodiscard]] TcpHeader header() const noexcept;

 private:
  explicit TcpView(Bytes header) noexcept : header_(header) {}
  Bytes header_;
};

}  // namespace nobounce::wire
