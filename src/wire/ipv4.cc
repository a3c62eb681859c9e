#include "wire/ipv4.hpp"

#include "base/checksum.hpp"

namespace nobounce::wire {
namespace {

// What both forms of parse need: a header of a sane size that lies in `bytes`.
std::expected<size_t, HeaderCause> header_size_of(Bytes bytes) noexcept {
  if (bytes.size() < kIpv4HeaderSize) return std::unexpected(HeaderCause::truncated);
  const uint8_t first = load_be<uint8_t>(bytes, 0);
  if ((first >> 4) != 4) return std::unexpected(HeaderCause::bad_version);
  const size_t size = size_t{first & 0x0fu} * 4;
  if (size < kIpv4HeaderSize) return std::unexpected(HeaderCause::bad_header_size);
  if (size > bytes.size()) return std::unexpected(HeaderCause::truncated);
  if (load_be<uint16_t>(bytes, 2) < size) return std::unexpected(HeaderCause::bad_length);
  return size;
}

}  // namespace

void Ipv4Header::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kIpv4HeaderSize);
  NB_ASSERT(fragment_offset % 8 == 0);
  const uint16_t flags =
      static_cast<uint16_t>((dont_fragment ? 0x4000 : 0) | (more_fragments ? 0x2000 : 0));
  store_be<uint8_t>(to, 0, 0x45);
  store_be<uint8_t>(to, 1, tos);
  store_be<uint16_t>(to, 2, total_length);
  store_be<uint16_t>(to, 4, identification);
  store_be<uint16_t>(to, 6, static_cast<uint16_t>(flags | (fragment_offset >> 3)));
  store_be<uint8_t>(to, 8, ttl);
  store_be<uint8_t>(to, 9, protocol);
  store_be<uint16_t>(to, 10, 0);
  store_be<uint32_t>(to, 12, source.v4_bits());
  store_be<uint32_t>(to, 16, destination.v4_bits());
  store_be<uint16_t>(to, 10, checksum_finish(checksum_add(0, to.first(kIpv4HeaderSize))));
}

std::expected<Ipv4View, HeaderCause> Ipv4View::parse(Bytes head, size_t packet_bytes) noexcept {
  const auto size = header_size_of(head);
  if (!size) return std::unexpected(size.error());
  if (load_be<uint16_t>(head, 2) > packet_bytes) return std::unexpected(HeaderCause::bad_length);
  if (checksum_finish(checksum_add(0, head.first(*size))) != 0) {
    return std::unexpected(HeaderCause::bad_checksum);
  }
  return Ipv4View(head.first(*size));
}

std::expected<Ipv4View, HeaderCause> Ipv4View::parse_quoted(Bytes quote) noexcept {
  const auto size = header_size_of(quote);
  if (!size) return std::unexpected(size.error());
  return Ipv4View(quote.first(*size));
}

bool Ipv4View::has_source_route() const noexcept {
  constexpr uint8_t kEnd = 0;
  constexpr uint8_t kNop = 1;
  constexpr uint8_t kLooseSourceRoute = 131;
  constexpr uint8_t kStrictSourceRoute = 137;
  size_t at = kIpv4HeaderSize;
  while (at < header_.size()) {
    const uint8_t kind = load_be<uint8_t>(header_, at);
    if (kind == kEnd) return false;
    if (kind == kLooseSourceRoute || kind == kStrictSourceRoute) return true;
    if (kind == kNop) {
      ++at;
      continue;
    }
    if (at + 1 >= header_.size()) return false;
    const uint8_t length = load_be<uint8_t>(header_, at + 1);
    if (length < 2) return false;
    at += length;
  }
  return false;
}

uint64_t pseudo_header_sum(const IpAddress& source, const IpAddress& destination, uint8_t protocol,
                           uint32_t length) noexcept {
  NB_ASSERT(source.is_v4() == destination.is_v4());
  const size_t skip = source.is_v4() ? 12 : 0;
  uint64_t sum = checksum_add(0, std::as_bytes(std::span(source.bytes()).subspan(skip)));
  sum = checksum_add(sum, std::as_bytes(std::span(destination.bytes()).subspan(skip)));
  return sum + protocol + (length >> 16) + (length & 0xffff);
}

}  // namespace nobounce::wire
