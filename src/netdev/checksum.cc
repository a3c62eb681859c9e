#include "netdev/checksum.hpp"

#include "base/checksum.hpp"
#include "wire/udp.hpp"

namespace nobounce {

bool complete_checksum(Packet& packet) noexcept {
  if (packet.checksum != Checksum::partial) return true;
  const size_t start = packet.csum_start;
  const size_t field = start + packet.csum_offset;
  const MutableBytes head = packet.mutable_head();
  if (field + 2 > head.size()) return false;
  uint16_t value = checksum_finish(packet.sum(start, packet.size() - start));
  if (value == 0 && packet.csum_offset == wire::kUdpChecksumOffset) value = 0xffff;
  store_be<uint16_t>(head, field, value);
  packet.checksum = Checksum::none;
  return true;
}

}  // namespace nobounce
