// Sequence numbers (RFC 9293 3.4): 32 bits that wrap. Comparison is by signed distance, so that it
// holds for numbers less than 2^31 apart (T-6); there is no total order and no `<=>`.
#pragma once

#include <cstdint>

namespace nobounce::tcp {

class Seq {
 public:
  constexpr Seq() noexcept = default;
  constexpr explicit Seq(uint32_t value) noexcept : value_(value) {}

  [[nodiscard]] constexpr uint32_t value() const noexcept { return value_; }

  friend constexpr Seq operator+(Seq seq, uint32_t bytes) noexcept {
    return Seq(seq.value_ + bytes);
  }
  friend constexpr Seq operator-(Seq seq, uint32_t bytes) noexcept {
    return Seq(seq.value_ - bytes);
  }
  constexpr Seq& operator+=(uint32_t bytes) noexcept {
    value_ += bytes;
    return *this;
  }
  // Signed distance from `from` to `to`.
  friend constexpr int32_t operator-(Seq to, Seq from) noexcept {
    return static_cast<int32_t>(to.value_ - from.value_);
  }
  friend constexpr bool operator==(Seq, Seq) noexcept = default;
  friend constexpr bool operator<(Seq a, Seq b) noexcept { return a - b < 0; }
  friend constexpr bool operator<=(Seq a, Seq b) noexcept { return a - b <= 0; }
  friend constexpr bool operator>(Seq a, Seq b) noexcept { return a - b > 0; }
  friend constexpr bool operator>=(Seq a, Seq b) noexcept { return a - b >= 0; }

 private:
  uint32_t value_ = 0;
};

[[nodiscard]] constexpr Seq max(Seq a, Seq b) noexcept { return a < b ? b : a; }
[[nodiscard]] constexpr Seq min(Seq a, Seq b) noexcept { return a < b ? a : b; }

// Bytes from `from` up to `to`; 0 when `to` is not ahead.
[[nodiscard]] constexpr uint32_t bytes_between(Seq from, Seq to) noexcept {
  const int32_t distance = to - from;
  return distance > 0 ? static_cast<uint32_t>(distance) : 0;
}

}  // namespace nobounce::tcp
