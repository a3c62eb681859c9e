// Seeded payload in a buffer large enough that no cache holds it: a transfer that turns in it reads
// (or writes) cold memory, as a real program does. A hot buffer would hide what a copy costs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.hpp"

namespace nobounce::cli {

inline constexpr uint64_t kRotationBytes = uint64_t{256} << 20;

class Rotation {
 public:
  // For sending: filled from the seed.
  static Rotation seeded(uint64_t bytes, uint64_t seed);
  // For receiving: touched, zero.
  static Rotation blank(uint64_t bytes);

  // The next `size` bytes at most; turns around at the end.
  [[nodiscard]] MutableBytes next(uint64_t size) noexcept;
  // The piece was not used to its end: the next one begins where it was left.
  void unused(uint64_t bytes) noexcept { at_ -= bytes; }

 private:
  explicit Rotation(uint64_t bytes) : memory_(bytes) {}
  std::vector<std::byte> memory_;
  uint64_t at_ = 0;
};

}  // namespace nobounce::cli
