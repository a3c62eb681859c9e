// Software completion of a partial checksum, for devices without the offload.
#pragma once

#include "skb/packet.hpp"

namespace nobounce {

// Sums from csum_start to the packet's end over head and frags (each byte read once; the field
// holds the pseudo header's sum) and writes the field in the private head. A UDP result of 0 is
// sent as 0xffff (N-10); the field at offset 6 is UDP's. The packet is Checksum::none afterwards.
// Does nothing unless the checksum is partial. False, and nothing written, when the field does not
// lie in the head: the fields may come from the other side.
[[nodiscard]] bool complete_checksum(Packet& packet) noexcept;

}  // namespace nobounce
