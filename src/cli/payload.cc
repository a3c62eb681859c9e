#include "cli/payload.hpp"

#include <algorithm>

#include "base/random.hpp"

namespace nobounce::cli {

Rotation Rotation::seeded(uint64_t bytes, uint64_t seed) {
  Rotation rotation(bytes);
  SeededRandom random(seed);
  random.fill(rotation.memory_);
  return rotation;
}

Rotation Rotation::blank(uint64_t bytes) { return Rotation(bytes); }

MutableBytes Rotation::next(uint64_t size) noexcept {
  if (at_ == memory_.size()) at_ = 0;
  const uint64_t count = std::min<uint64_t>(size, memory_.size() - at_);
  const MutableBytes piece = MutableBytes(memory_).subspan(at_, count);
  at_ += count;
  return piece;
}

}  // namespace nobounce::cli
