#include "wire/udp.hpp"

namespace nobounce::wire {

void UdpHeader::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kUdpHeaderSize);
  store_be<uint16_t>(to, 0, source_port);
  store_be<uint16_t>(to, 2, destination_port);
  store_be<uint16_t>(to, 4, length);
  store_be<uint16_t>(to, kUdpChecksumOffset, checksum);
}

std::expected<UdpView, HeaderCause> UdpView::parse(Bytes head, size_t datagram_bytes) noexcept {
  if (head.size() < kUdpHeaderSize) return std::unexpected(HeaderCause::truncated);
  const uint16_t length = load_be<uint16_t>(head, 4);
  if (length < kUdpHeaderSize || length > datagram_bytes) {
    return std::unexpected(HeaderCause::bad_length);
  }
  return UdpView(head.first(kUdpHeaderSize));
}

}  // namespace nobounce::wire
