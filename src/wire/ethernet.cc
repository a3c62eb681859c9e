#include "wire/ethernet.hpp"

#include <cstring>

namespace nobounce::wire {
namespace {

MacAddress load_mac(Bytes bytes, size_t offset) noexcept {
  MacAddress mac;
  NB_ASSERT(offset + mac.bytes.size() <= bytes.size());
  std::memcpy(mac.bytes.data(), bytes.data() + offset, mac.bytes.size());
  return mac;
}

}  // namespace

void EthernetHeader::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kEthernetHeaderSize);
  std::memcpy(to.data(), destination.bytes.data(), 6);
  std::memcpy(to.data() + 6, source.bytes.data(), 6);
  store_be<uint16_t>(to, 12, ether_type);
}

std::expected<EthernetView, HeaderCause> EthernetView::parse(Bytes frame) noexcept {
  if (frame.size() < kEthernetHeaderSize) return std::unexpected(HeaderCause::truncated);
  return EthernetView(frame.first(kEthernetHeaderSize));
}

MacAddress EthernetView::destination() const noexcept { return load_mac(header_, 0); }
MacAddress EthernetView::source() const noexcept { return load_mac(header_, 6); }

}  // namespace nobounce::wire
