#include "swiotlb/slot_allocator.hpp"

#include <algorithm>

namespace nobounce {
namespace {

// Starts permitted by alignment, phase and boundary: the same pattern in every set, because sets
// are aligned and no power of two up to 128 crosses them.
[[nodiscard]] SetBits permitted_starts(const RunRequest& request) noexcept {
  SetBits starts = SetBits{1} << request.phase;
  for (unsigned step = 1U << request.align_shift; step < kSetSlots; step *= 2) {
    starts |= starts << step;
  }
  if (request.boundary < kSetSlots) {
    SetBits inside = set_run(0, request.boundary - request.slots + 1);
    for (unsigned step = request.boundary; step < kSetSlots; step *= 2) inside |= inside << step;
    starts &= inside;
  }
  return starts;
}

// Positions from which `count` slots are free: a run of 2k is two runs of k, one behind the other.
[[nodiscard]] SetBits runs_of(SetBits free, unsigned count) noexcept {
  unsigned have = 1;
  while (have < count) {
    const unsigned step = std::min(have, count - have);
    free &= free >> step;
    have += step;
  }
  return free;
}

}  // namespace

SlotAllocator::SlotAllocator(uint32_t first, uint32_t slots) : first_(first), slots_(slots) {
  NB_ASSERT(first < kSetSlots);
  NB_ASSERT(first < slots);
  const uint32_t sets = (slots + kSetSlots - 1) / kSetSlots;
  free_.resize(sets);
  std::vector<FitWord> level((sets + kFanout - 1) / kFanout * kFanout);
  for (uint32_t set = 0; set < sets; ++set) {
    free_[set] = existing(set);
    level[set] = fit_of(free_[set]);
  }
  levels_.push_back(std::move(level));
  while (levels_.back().size() > 1) {
    const std::vector<FitWord>& below = levels_.back();
    const size_t nodes = below.size() / kFanout;
    std::vector<FitWord> above(nodes == 1 ? 1 : (nodes + kFanout - 1) / kFanout * kFanout);
    for (size_t i = 0; i < below.size(); ++i) above[i / kFanout] = above[i / kFanout].max(below[i]);
    levels_.push_back(std::move(above));
  }
}

SetBits SlotAllocator::existing(uint32_t set) const noexcept {
  const uint32_t base = set * kSetSlots;
  const unsigned begin = set == 0 ? first_ : 0;
  const unsigned end = std::min(slots_ - base, kSetSlots);
  return set_run(begin, end - begin);
}

// The lane that decides about a request, and whether it decides for sure or only rules out.
SlotAllocator::Want SlotAllocator::exact_want(const RunRequest& request, bool& exact) noexcept {
  exact = request.boundary >= kSetSlots;
  if (request.phase == 0) {
    // Multiples of 128 have no lane; of those of 64, a run of more than 64 can only begin at 0.
    if (request.align_shift >= FitWord::kAlignLanes && request.slots <= 64) exact = false;
    return {std::min(request.align_shift, FitWord::kAlignLanes - 1), request.slots};
  }
  if (request.align_shift == 1) return {FitWord::kOddLane, request.slots};
  exact = false;
  return {(request.phase & 1) != 0 ? FitWord::kOddLane : 0, request.slots};
}

// A lane value that promises a fit to a request that no lane decides: room for the phase behind an
// aligned start, or a start so aligned that no boundary can be crossed. More than a set: no promise.
SlotAllocator::Want SlotAllocator::sufficient_want(const RunRequest& request) noexcept {
  unsigned shift = request.align_shift;
  if (request.boundary < kSetSlots) {
    if (request.phase != 0) return {0, kSetSlots + 1};
    shift = std::max(shift, static_cast<unsigned>(std::bit_width(request.slots - 1)));
  }
  if (shift >= FitWord::kAlignLanes) return {0, kSetSlots + 1};
  return {shift, request.phase + request.slots};
}

bool SlotAllocator::may_fit(FitWord fit, const RunRequest& request) noexcept {
  bool exact = false;
  const Want want = exact_want(request, exact);
  return fit.lane(want.lane) >= want.slots;
}

uint32_t SlotAllocator::descend(size_t level, size_t index, Want want,
                                SearchFrom from) const noexcept {
  while (level > 0) {
    const std::vector<FitWord>& below = levels_[--level];
    index *= kFanout;
    if (from == SearchFrom::high) index += kFanout - 1;
    while (below[index].lane(want.lane) < want.slots) {
      index = from == SearchFrom::high ? index - 1 : index + 1;
    }
  }
  return static_cast<uint32_t>(index);
}

std::optional<uint32_t> SlotAllocator::find_set(Want want, SearchFrom from) const noexcept {
  if (fit().lane(want.lane) < want.slots) return std::nullopt;
  return descend(levels_.size() - 1, 0, want, from);
}

// The next set after `set` in the order of the search: along the rest of its line, then one up.
std::optional<uint32_t> SlotAllocator::next_set(uint32_t set, Want want,
                                                SearchFrom from) const noexcept {
  size_t index = set;
  for (size_t level = 0; level + 1 < levels_.size(); ++level, index /= kFanout) {
    const size_t line = index / kFanout * kFanout;
    const size_t left = from == SearchFrom::high ? index - line : line + kFanout - 1 - index;
    for (size_t step = 1; step <= left; ++step) {
      const size_t other = from == SearchFrom::high ? index - step : index + step;
      if (levels_[level][other].lane(want.lane) >= want.slots) {
        return descend(level, other, want, from);
      }
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> SlotAllocator::alloc(const RunRequest& request) noexcept {
  NB_ASSERT(request.slots >= 1);
  NB_ASSERT(request.slots <= kSetSlots);
  NB_ASSERT(request.align_shift <= 7);
  NB_ASSERT(request.phase < (1U << request.align_shift));
  if (request.slots > request.boundary) return std::nullopt;

  bool exact = false;
  const Want want = exact_want(request, exact);
  std::optional<uint32_t> set = find_set(want, request.from);
  if (!set) return std::nullopt;
  if (!exact) {
    if (const auto sure = find_set(sufficient_want(request), request.from)) set = sure;
  }
  for (; set; set = next_set(*set, want, request.from)) {
    if (const auto slot = take_in(*set, request)) return slot;
    NB_ASSERT(!exact);  // a lane that decides does not send us to a set in vain
  }
  return std::nullopt;
}

std::optional<uint32_t> SlotAllocator::take_in(uint32_t set, const RunRequest& request) noexcept {
  const SetBits fitting = runs_of(free_[set], request.slots) & permitted_starts(request);
  if (fitting == 0) return std::nullopt;
  const unsigned start = request.from == SearchFrom::high
                             ? kSetSlots - 1 - set_leading_zeros(fitting)
                             : set_trailing_zeros(fitting);
  const FitWord before = FitWord::of_run(free_run_around(free_[set], start));
  free_[set] &= ~set_run(start, request.slots);
  if (!levels_[0][set].exceeds(before)) set_fit(set, fit_of(free_[set]));
  return set * kSetSlots + start;
}

void SlotAllocator::release(uint32_t start, unsigned count) noexcept {
  const uint32_t set = start / kSetSlots;
  NB_ASSERT(count >= 1);
  NB_ASSERT(start % kSetSlots + count <= kSetSlots);
  const SetBits run = set_run(start % kSetSlots, count);
  NB_ASSERT((run & ~existing(set)) == 0);
  NB_ASSERT((free_[set] & run) == 0);
  free_[set] |= run;
  const SlotRun merged = free_run_around(free_[set], start % kSetSlots);
  set_fit(set, levels_[0][set].max(FitWord::of_run(merged)));
}

void SlotAllocator::set_fit(uint32_t set, FitWord fit) noexcept {
  size_t index = set;
  for (size_t level = 0;; ++level) {
    FitWord& node = levels_[level][index];
    if (node == fit) return;
    node = fit;
    if (level + 1 == levels_.size()) return;
    const size_t line = index / kFanout * kFanout;
    for (size_t i = line; i < line + kFanout; ++i) fit = fit.max(levels_[level][i]);
    index /= kFanout;
  }
}

bool SlotAllocator::is_pristine() const noexcept {
  for (uint32_t set = 0; set < free_.size(); ++set) {
    if (free_[set] != existing(set)) return false;
  }
  return is_consistent();
}

bool SlotAllocator::is_consistent() const noexcept {
  for (size_t set = 0; set < free_.size(); ++set) {
    if ((free_[set] & ~existing(static_cast<uint32_t>(set))) != 0) return false;
    if (!(levels_[0][set] == fit_of(free_[set]))) return false;
  }
  for (size_t level = 1; level < levels_.size(); ++level) {
    for (size_t i = 0; i < levels_[level].size(); ++i) {
      FitWord fit;
      for (size_t child = i * kFanout; child < (i + 1) * kFanout; ++child) {
        if (child < levels_[level - 1].size()) fit = fit.max(levels_[level - 1][child]);
      }
      if (!(levels_[level][i] == fit)) return false;
    }
  }
  return true;
}

}  // namespace nobounce
