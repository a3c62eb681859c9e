// SipHash-2-4 (Aumasson, Bernstein 2012): the keyed hash of every table a peer can fill (T-62), and
// the PRF of initial sequence numbers and timestamp offsets (T-8, T-9). Keys come from Random.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"
#include "base/random.hpp"

namespace nobounce {

struct SipKey {
  uint64_t k0 = 0;
  uint64_t k1 = 0;
  static SipKey make(Random& random) noexcept { return {random.next_u64(), random.next_u64()}; }
};

[[nodiscard]] uint64_t siphash(const SipKey& key, Bytes bytes) noexcept;

}  // namespace nobounce
