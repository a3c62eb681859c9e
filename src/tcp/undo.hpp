// Was the last reduction of the window for nothing? (T-37; RFC 3708, RFC 3522)
//
// It was when all that was sent again had arrived already: the peer says so with one D-SACK each. And a
// time-out was when the first ACK after it echoes a timestamp from before it. What was sent again is
// remembered exactly, because a wire that duplicates brings D-SACKs of its own; kSpansMax is what
// reordering makes go again in a round trip or two, and an episode with more is not taken back.
// Plain state. Cost: O(kSpansMax).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tcp/congestion.hpp"
#include "tcp/scoreboard.hpp"

namespace nobounce::tcp {

struct Undo {
  static constexpr size_t kSpansMax = 16;
  enum class Cause : uint8_t { none, recovery, timeout };
  enum class Verdict : uint8_t { unrelated, needless, all_needless };

  Cause cause = Cause::none;   // of the reduction; none: there is nothing to take back
  Congestion before;           // the window as it was
  uint32_t timeout_clock = 0;  // our timestamp at the time-out
  bool is_complete = true;     // `spans` is all that went again
  size_t count = 0;
  std::array<Scoreboard::Span, kSpansMax> spans;  // sent again, not shown to be needless

  void start(Cause why, const Congestion& window, uint32_t clock) noexcept {
    cause = why;
    before = window;
    timeout_clock = clock;
    is_complete = true;
    count = 0;
  }

  void sent_again(Seq begin, uint32_t bytes) noexcept {
    if (count > 0 && spans[count - 1].end == begin) {
      spans[count - 1].end += bytes;
    } else if (count < kSpansMax) {
      spans[count++] = {.begin = begin, .end = begin + bytes};
    } else {
      is_complete = false;
    }
  }

  // The peer got [begin, end) twice.
  [[nodiscard]] Verdict duplicate(Seq begin, Seq end) noexcept {
    Verdict verdict = Verdict::unrelated;
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      Scoreboard::Span span = spans[i];
      if (begin < span.end && span.begin < end) {
        verdict = Verdict::needless;
        // What lies in the middle takes what is before it along: segments go, and arrive, in order.
        span.begin = min(end, span.end);
      }
      if (span.begin < span.end) spans[kept++] = span;
    }
    count = kept;
    const bool all = verdict == Verdict::needless && count == 0 && is_complete;
    return all && cause != Cause::none ? Verdict::all_needless : verdict;
  }
};

}  // namespace nobounce::tcp
