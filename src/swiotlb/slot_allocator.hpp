// The slots of one area: finds, takes and gives back runs of slots.
//
// Slot sets are leaves of a tree whose nodes are fit words (fit_word.hpp); a node is the bytewise
// maximum of its eight children, which are one cache line:
//
//   level 2   [root]                                     which runs can be had at all?
//   level 1   [ 0 ][ 1 ] ...                             8 sets each
//   level 0   [0][1][2][3][4][5][6][7] [8] ...           fit word of a set
//   free      [0][1][2] ...                              128 bits a set
//
// A request that cannot be met is refused by looking at the root alone. One that can goes straight
// down to its set: one cache line a level, log8(sets) levels (three for 64 MiB, five for 8 GiB), and
// never looks into a set in vain. That holds for every length with any power-of-two alignment up to
// 128 KiB, and for odd starts. For the other rules (a phase in a wider mask, a segment boundary
// inside a set) a sufficient test is tried the same way first; only when that fails are the sets
// with a long enough run tried one after the other.
//
// Invariants
//  1. Complete: alloc() fails only when no fitting run exists (checked against a full scan in tests).
//  2. A run never crosses a set; slots outside the area are busy for ever.
//  3. A node is the maximum of its children, at every return.
//
// Low and high requests start from opposite ends, so that small short-lived runs and blocks of
// whole pages meet only when the area is nearly full (NC-76).
//
// Not thread-safe: the area's lock protects it. Allocates only in the constructor.
// Spec: SW-6, SW-16, SW-19, SW-23, SW-24, SW-45, SW-46, NC-74, NC-76, NC-78.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "swiotlb/fit_word.hpp"

namespace nobounce {

enum class SearchFrom : uint8_t { low, high };

// What a run must meet, in slots.
struct RunRequest {
  unsigned slots = 1;             // 1..128
  unsigned align_shift = 0;       // start is `phase` modulo 2^align_shift; 0..7
  unsigned phase = 0;             // below 2^align_shift
  unsigned boundary = kSetSlots;  // the run does not cross a multiple of this power of two
  SearchFrom from = SearchFrom::low;
};

class SlotAllocator {
 public:
  // `slots` is counted from slot 0 of the first set; slots below `first` and from `slots` on do not
  // exist. Both matter only for a pool that does not begin and end on a set.
  SlotAllocator(uint32_t first, uint32_t slots);

  // First slot of a run that is now taken.
  [[nodiscard]] std::optional<uint32_t> alloc(const RunRequest& request) noexcept;
  // Gives slots back; any part of what was taken, at most one set, each slot busy (asserted).
  void release(uint32_t start, unsigned count) noexcept;

  // Upper bound of what fits, for others to read before they take the lock.
  [[nodiscard]] FitWord fit() const noexcept { return levels_.back()[0]; }
  [[nodiscard]] bool is_free(uint32_t slot) const noexcept {
    return ((free_[slot / kSetSlots] >> (slot % kSetSlots)) & 1) != 0;
  }
  // Necessary condition for `request` on an area with this fit; exact where alloc() is.
  [[nodiscard]] static bool may_fit(FitWord fit, const RunRequest& request) noexcept;

  // For tests, O(slots): free maps equal to those of an empty area, tree consistent.
  [[nodiscard]] bool is_pristine() const noexcept;
  [[nodiscard]] bool is_consistent() const noexcept;

 private:
  static constexpr unsigned kFanout = 8;

  // A lane and the least value of it that is looked for.
  struct Want {
    unsigned lane = 0;
    unsigned slots = 0;
  };
  [[nodiscard]] static Want exact_want(const RunRequest& request, bool& exact) noexcept;
  [[nodiscard]] static Want sufficient_want(const RunRequest& request) noexcept;

  [[nodiscard]] std::optional<uint32_t> find_set(Want want, SearchFrom from) const noexcept;
  [[nodiscard]] std::optional<uint32_t> next_set(uint32_t set, Want want,
                                                 SearchFrom from) const noexcept;
  [[nodiscard]] uint32_t descend(size_t level, size_t index, Want want,
                                 SearchFrom from) const noexcept;
  [[nodiscard]] std::optional<uint32_t> take_in(uint32_t set, const RunRequest& request) noexcept;
  void set_fit(uint32_t set, FitWord fit) noexcept;
  [[nodiscard]] SetBits existing(uint32_t set) const noexcept;

  uint32_t first_;
  uint32_t slots_;
  std::vector<SetBits> free_;
  std::vector<std::vector<FitWord>> levels_;  // [0]: one a set; back(): the root alone
};

}  // namespace nobounce
