// What a slot set can still hold, in eight bytes.
//
// A set is 128 slots, a bit each (1 = free). Its fit word says, for each class of permitted starts,
// how long the longest free run beginning at such a start is:
//
//   lane 0..6   starts that are multiples of 1, 2, 4, ... 64 slots
//   lane 7      odd starts (a device that wants the low 12 bits of the original address kept)
//
// So "does a run of n slots with this alignment fit?" is one comparison of a byte, exact, and the
// fit word of many sets is the bytewise maximum of theirs: see slot_allocator.hpp.
//
// Plain values, any thread. Cost: fit_of() a few instructions for each free run of the set.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "base/assert.hpp"

namespace nobounce {

// One bit for each slot of a set; slot 0 is bit 0.
__extension__ using SetBits = unsigned __int128;

inline constexpr unsigned kSetSlots = 128;
inline constexpr SetBits kSetAllFree = ~SetBits{0};

[[nodiscard]] constexpr unsigned set_trailing_zeros(SetBits bits) noexcept {
  const auto low = static_cast<uint64_t>(bits);
  if (low != 0) return static_cast<unsigned>(std::countr_zero(low));
  return 64 + static_cast<unsigned>(std::countr_zero(static_cast<uint64_t>(bits >> 64)));
}
[[nodiscard]] constexpr unsigned set_leading_zeros(SetBits bits) noexcept {
  const auto high = static_cast<uint64_t>(bits >> 64);
  if (high != 0) return static_cast<unsigned>(std::countl_zero(high));
  return 64 + static_cast<unsigned>(std::countl_zero(static_cast<uint64_t>(bits)));
}
// `count` ones from bit `start`; 1 <= count, start + count <= 128.
[[nodiscard]] constexpr SetBits set_run(unsigned start, unsigned count) noexcept {
  return (kSetAllFree >> (kSetSlots - count)) << start;
}

// A run of free slots: [begin, end).
struct SlotRun {
  unsigned begin = 0;
  unsigned end = 0;
};

// The lowest free run. There must be one.
[[nodiscard]] constexpr SlotRun first_free_run(SetBits free) noexcept {
  const unsigned begin = set_trailing_zeros(free);
  const SetBits busy_above = ~(free >> begin);
  return {begin, busy_above == 0 ? kSetSlots : begin + set_trailing_zeros(busy_above)};
}
// The free run that slot `slot` (free) lies in.
[[nodiscard]] constexpr SlotRun free_run_around(SetBits free, unsigned slot) noexcept {
  const SetBits busy_below = slot == 0 ? 0 : ~free & set_run(0, slot);
  const SetBits busy_above = ~free >> slot;
  return {busy_below == 0 ? 0 : kSetSlots - set_leading_zeros(busy_below),
          busy_above == 0 ? kSetSlots : slot + set_trailing_zeros(busy_above)};
}

class FitWord {
 public:
  using Lanes = uint8_t __attribute__((vector_size(8)));
  static constexpr unsigned kAlignLanes = 7;  // starts that are multiples of 2^lane
  static constexpr unsigned kOddLane = 7;

  constexpr FitWord() noexcept = default;

  // The fit of one free run: its length from the first permitted start of each lane.
  [[nodiscard]] static FitWord of_run(SlotRun run) noexcept {
    // Rounds begin up to the lane's start: add, mask, then one more for the odd lane.
    constexpr Lanes kAdd = {0, 1, 3, 7, 15, 31, 63, 0};
    constexpr Lanes kMask = {0xff, 0xfe, 0xfc, 0xf8, 0xf0, 0xe0, 0xc0, 0xfe};
    constexpr Lanes kPlus = {0, 0, 0, 0, 0, 0, 0, 1};
    const Lanes start = ((splat(run.begin) + kAdd) & kMask) + kPlus;
    const Lanes end = splat(run.end);
    return FitWord((end - start) & reinterpret_lanes(end > start));
  }

  [[nodiscard]] FitWord max(FitWord other) const noexcept {
    return FitWord(lanes_ > other.lanes_ ? lanes_ : other.lanes_);
  }
  [[nodiscard]] unsigned lane(unsigned index) const noexcept {
    return static_cast<unsigned>(raw() >> (8 * index)) & 0xff;
  }
  [[nodiscard]] uint64_t raw() const noexcept { return std::bit_cast<uint64_t>(lanes_); }
  [[nodiscard]] static FitWord from_raw(uint64_t raw) noexcept {
    return FitWord(std::bit_cast<Lanes>(raw));
  }
  [[nodiscard]] bool operator==(const FitWord& other) const noexcept {
    return raw() == other.raw();
  }

  // True when no lane's maximum can come from `run`: taking slots of it leaves this word as it is.
  [[nodiscard]] bool exceeds(FitWord run) const noexcept {
    const Lanes witness = reinterpret_lanes((lanes_ == run.lanes_) & (lanes_ != Lanes{}));
    return std::bit_cast<uint64_t>(witness) == 0;
  }

 private:
  explicit FitWord(Lanes lanes) noexcept : lanes_(lanes) {}
  static Lanes splat(unsigned value) noexcept { return Lanes{} + static_cast<uint8_t>(value); }
  template <class Comparison>
  static Lanes reinterpret_lanes(Comparison lanes) noexcept {
    return std::bit_cast<Lanes>(lanes);
  }

  Lanes lanes_{};
};
static_assert(sizeof(FitWord) == 8);
static_assert(std::endian::native == std::endian::little, "lane n is byte n");

[[nodiscard]] inline FitWord fit_of(SetBits free) noexcept {
  FitWord fit;
  while (free != 0) {
    const SlotRun run = first_free_run(free);
    fit = fit.max(FitWord::of_run(run));
    free &= ~set_run(run.begin, run.end - run.begin);
  }
  return fit;
}

}  // namespace nobounce
