// The Internet checksum (RFC 1071): one's complement sums over private bytes.
//
// A sum is kept unfolded in 64 bits and folded once at the end. Pieces of a packet can be summed
// apart and joined with checksum_join(), which takes care of odd offsets.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"

namespace nobounce {

// Partial sum of `bytes` as 16-bit big-endian words starting at an even offset, added to `sum`.
[[nodiscard]] uint64_t checksum_add(uint64_t sum, Bytes bytes) noexcept;

// Copies and sums in one pass (the source is read once).
[[nodiscard]] uint64_t checksum_copy(uint64_t sum, MutableBytes to, Bytes from) noexcept;

// Folds to 16 bits, without the final complement. Host-order value of the big-endian word sum.
[[nodiscard]] uint16_t checksum_fold(uint64_t sum) noexcept;

// The field's value: complement of the fold.
[[nodiscard]] inline uint16_t checksum_finish(uint64_t sum) noexcept {
  return static_cast<uint16_t>(~checksum_fold(sum));
}

// Adds the sum of a piece that starts at `offset` bytes into the whole.
[[nodiscard]] inline uint64_t checksum_join(uint64_t sum, uint64_t piece, size_t offset) noexcept {
  const uint16_t folded = checksum_fold(piece);
  return sum + ((offset & 1) != 0 ? std::byteswap(folded) : folded);
}

}  // namespace nobounce
