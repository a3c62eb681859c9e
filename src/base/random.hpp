// Random numbers come from outside too: the kernel's CSPRNG in a program, a seeded generator in
// tests. A source belongs to one thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.hpp"

namespace nobounce {

class Random {
 public:
  virtual ~Random() = default;
  [[nodiscard]] virtual uint64_t next_u64() noexcept = 0;

  [[nodiscard]] uint32_t next_u32() noexcept { return static_cast<uint32_t>(next_u64() >> 32); }
  // Uniform in [0, bound); bound > 0. Multiply-shift, bias below 2^-32 for 32-bit bounds.
  [[nodiscard]] uint32_t below(uint32_t bound) noexcept {
    return static_cast<uint32_t>((uint64_t{next_u32()} * bound) >> 32);
  }
  void fill(MutableBytes bytes) noexcept;
};

// getrandom(2) through a private buffer (TM-65).
class SystemRandom final : public Random {
 public:
  [[nodiscard]] uint64_t next_u64() noexcept override;

 private:
  std::array<uint64_t, 32> buffer_{};
  size_t left_ = 0;
};

// splitmix64: for tests, generators of test data and impairments. Same seed, same sequence.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  [[nodiscard]] uint64_t next_u64() noexcept override {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace nobounce
