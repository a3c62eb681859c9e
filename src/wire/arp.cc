#include "wire/arp.hpp"

#include <cstring>

#include "wire/ethernet.hpp"

namespace nobounce::wire {
namespace {

constexpr uint16_t kHardwareEthernet = 1;
constexpr uint8_t kMacSize = 6;
constexpr uint8_t kIpv4Size = 4;

MacAddress load_mac(Bytes packet, size_t offset) noexcept {
  MacAddress mac;
  std::memcpy(mac.bytes.data(), packet.data() + offset, kMacSize);
  return mac;
}

}  // namespace

void ArpPacket::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kArpSize);
  store_be<uint16_t>(to, 0, kHardwareEthernet);
  store_be<uint16_t>(to, 2, kEtherTypeIpv4);
  store_be<uint8_t>(to, 4, kMacSize);
  store_be<uint8_t>(to, 5, kIpv4Size);
  store_be<uint16_t>(to, 6, static_cast<uint16_t>(operation));
  std::memcpy(to.data() + 8, sender_mac.bytes.data(), kMacSize);
  store_be<uint32_t>(to, 14, sender_ip.v4_bits());
  std::memcpy(to.data() + 18, target_mac.bytes.data(), kMacSize);
  store_be<uint32_t>(to, 24, target_ip.v4_bits());
}

std::expected<ArpView, HeaderCause> ArpView::parse(Bytes packet) noexcept {
  if (packet.size() < kArpSize) return std::unexpected(HeaderCause::truncated);
  const uint16_t operation = load_be<uint16_t>(packet, 6);
  const bool is_ethernet_ipv4 = load_be<uint16_t>(packet, 0) == kHardwareEthernet &&
                                load_be<uint16_t>(packet, 2) == kEtherTypeIpv4 &&
                                load_be<uint8_t>(packet, 4) == kMacSize &&
                                load_be<uint8_t>(packet, 5) == kIpv4Size;
  if (!is_ethernet_ipv4 || operation < 1 || operation > 2) {
    return std::unexpected(HeaderCause::bad_format);
  }
  return ArpView(packet.first(kArpSize));
}

MacAddress ArpView::sender_mac() const noexcept { return load_mac(packet_, 8); }
MacAddress ArpView::target_mac() const noexcept { return load_mac(packet_, 18); }

}  // namespace nobounce::wire
