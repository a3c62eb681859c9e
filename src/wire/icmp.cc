#include "wire/icmp.hpp"

namespace nobounce::wire {

void IcmpHeader::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kIcmpHeaderSize);
  store_be<uint8_t>(to, 0, type);
  store_be<uint8_t>(to, 1, code);
  store_be<uint16_t>(to, kIcmpChecksumOffset, checksum);
  store_be<uint16_t>(to, 4, identifier);
  store_be<uint16_t>(to, 6, sequence);
}

std::expected<IcmpView, HeaderCause> IcmpView::parse(Bytes head) noexcept {
  if (head.size() < kIcmpHeaderSize) return std::unexpected(HeaderCause::truncated);
  return IcmpView(head.first(kIcmpHeaderSize));
}

bool IcmpView::is_error() const noexcept {
  switch (type()) {
    case kIcmpUnreachable:
    case kIcmpSourceQuench:
    case kIcmpRedirect:
    case kIcmpTimeExceeded:
    case kIcmpParameterProblem:
      return true;
    default:
      return false;
  }
}

}  // namespace nobounce::wire
