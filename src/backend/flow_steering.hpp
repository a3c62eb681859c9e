// Automatic receive steering (virtio.md 9): frames towards the guest go to the queue pair on which
// the guest last sent that flow. A table of hints: a collision costs a hand-over in the guest, no more.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.hpp"

namespace nobounce::backend {

class FlowSteering {
 public:
  // `frame` is the front of an Ethernet frame, private.
  void learn(Bytes frame, uint16_t pair) noexcept { pairs_[slot_of(frame)] = pair; }
  [[nodiscard]] uint16_t pair_of(Bytes frame) const noexcept { return pairs_[slot_of(frame)]; }

 private:
  static constexpr size_t kSlots = 1024;
  static constexpr size_t kLink = 14;

  // The same for both directions: addresses and ports are joined by exclusive or. Fragments and what
  // is not IPv4 go by addresses alone or to slot 0.
  [[nodiscard]] static size_t slot_of(Bytes frame) noexcept {
    if (frame.size() < kLink + 20 || load_be<uint16_t>(frame, 12) != 0x0800) return 0;
    const Bytes ip = frame.subspan(kLink);
    const auto first = static_cast<uint8_t>(ip[0]);
    uint32_t mix = load_be<uint32_t>(ip, 12) ^ load_be<uint32_t>(ip, 16);
    const size_t header = size_t{first & 0xfU} * 4;
    const bool fragment = (load_be<uint16_t>(ip, 6) & 0x3fff) != 0;
    if (!fragment && header >= 20 && ip.size() >= header + 4) {
      mix ^=
          static_cast<uint32_t>(load_be<uint16_t>(ip, header) ^ load_be<uint16_t>(ip, header + 2))
          << 8;
    }
    return (mix * 0x9e3779b1U) >> 22;
  }

  std::array<uint16_t, kSlots> pairs_{};
};
static_assert(uint32_t{0xffffffff} >> 22 < 1024);

}  // namespace nobounce::backend
