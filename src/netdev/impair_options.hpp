// What an ImpairedDevice does to traffic, and its text form:
//
//   loss=1%,reorder=2%,duplicate=1%,corrupt=0.1%,delay=10ms,rate=100M,seed=7
//
// Probabilities are of one packet: "1%" or "0.01". Times: "10ms", "500us", "1s". Rates are bits per
// second: "64K", "100M", "1G" (powers of 1000) or plain. Every key once at most, in any order.
// Plain value and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace nobounce {

struct ImpairOptions {
  static constexpr uint64_t kDelayMaxNs = 10'000'000'000;
  static constexpr uint64_t kRateMin = 8'000;  // a byte a millisecond
  static constexpr uint64_t kRateMax = 1'000'000'000'000;

  double loss = 0;  // probabilities, 0 to 1
  double reorder = 0;
  double duplicate = 0;
  double corrupt = 0;
  uint64_t delay_ns = 0;
  uint64_t rate = 0;  // bits per second; 0: no limit
  uint64_t seed = 1;

  friend bool operator==(const ImpairOptions&, const ImpairOptions&) = default;
};

[[nodiscard]] Result<ImpairOptions> parse_impairments(std::string_view text);
// The text form of all that is not 0, and the seed.
[[nodiscard]] std::string to_string(const ImpairOptions& options);

}  // namespace nobounce
