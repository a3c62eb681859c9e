// Proportional rate reduction (RFC 9937): from the flight at the loss to the threshold within one round
// trip, in step with what is delivered.
//
//   on its way > threshold   of each byte delivered, threshold/flight of one may be sent
//   below it                 what was delivered, and one segment more as long as repair goes well, up
//                            to the threshold
// The first repair goes at once in any case. Cost: O(1). Spec: T-46.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nobounce::tcp {

struct Prr {
  uint64_t flight = 1;  // when recovery began
  uint64_t delivered = 0;
  uint64_t sent = 0;

  void start(uint32_t flight_bytes) noexcept { *this = {.flight = std::max(flight_bytes, 1u)}; }

  struct Ack {
    uint32_t delivered = 0;  // bytes it told of
    uint32_t pipe = 0;       // on their way after it
    uint32_t threshold = 0;
    uint32_t mss = 0;
    bool goes_well = false;  // it acknowledged something, and showed no further loss
  };
  // The window until the next ACK.
  [[nodiscard]] uint32_t window(const Ack& ack) noexcept {
    delivered += ack.delivered;
    const uint64_t earned = delivered > sent ? delivered - sent : 0;
    uint64_t more = 0;
    if (ack.pipe > ack.threshold) {
      const uint64_t share = (delivered * ack.threshold + flight - 1) / flight;
      more = share > sent ? share - sent : 0;
    } else {
      more = std::max<uint64_t>(earned, ack.delivered) + (ack.goes_well ? ack.mss : 0);
      more = std::min<uint64_t>(more, ack.threshold - ack.pipe);
    }
    if (sent == 0) more = std::max<uint64_t>(more, ack.mss);
    return static_cast<uint32_t>(ack.pipe + more);
  }
};

}  // namespace nobounce::tcp
