#include "tcp/scoreboard.hpp"

#include <algorithm>

namespace nobounce::tcp {
namespace {

// Of what the peer holds, and of what is lost, nothing but that is asked any more.
bool may_join(const SentRange& before, const SentRange& behind) noexcept {
  if (before.fate != behind.fate) return false;
  return before.fate != Fate::in_flight ||
         (before.again == behind.again && before.sent_ns == behind.sent_ns);
}

// What is joined is as old as its youngest part.
void take_times(SentRange& whole, const SentRange& part) noexcept {
  whole.sent_ns = std::max(whole.sent_ns, part.sent_ns);
  whole.again = whole.again || part.again;
}

}  // namespace

// ---- ranges -------------------------------------------------------------------------------------

SentRange* Scoreboard::make() noexcept {
  if (ranges_.size() >= kRangesMax) return nullptr;
  if (own_is_used_) return pool_.acquire();
  own_is_used_ = true;
  return &own_;
}

// Takes it out of the list and out of the sums.
void Scoreboard::drop(SentRange& range) noexcept {
  count(range, -1);
  if (hint_ == &range) hint_ = nullptr;
  ranges_.remove(range);
  if (&range == &own_) {
    own_is_used_ = false;
  } else {
    pool_.release(&range);
  }
}

void Scoreboard::clear() noexcept {
  while (SentRange* range = ranges_.front()) drop(*range);
}

void Scoreboard::count(const SentRange& range, int32_t sign) noexcept {
  const uint32_t bytes = sign > 0 ? range.size() : 0 - range.size();
  outstanding_ += bytes;
  if (range.fate == Fate::sacked) sacked_ += bytes;
  if (range.fate == Fate::lost) lost_ += bytes;
  if (range.fate == Fate::in_flight && range.again) again_ += bytes;
}

void Scoreboard::set_fate(SentRange& range, Fate fate) noexcept {
  count(range, -1);
  range.fate = fate;
  count(range, 1);
}

// The one that holds `seq`, which is outstanding.
SentRange* Scoreboard::find(Seq seq) noexcept {
  SentRange* range = hint_ != nullptr ? hint_ : ranges_.front();
  while (range->begin > seq) range = previous(*range);
  while (range->end <= seq) range = ranges_.next(*range);
  hint_ = range;
  return range;
}

// `range` keeps what lies before `at`; returns the rest. Null, and nothing changed: no range left.
SentRange* Scoreboard::split(SentRange& range, Seq at) noexcept {
  NB_ASSERT(range.begin < at);
  NB_ASSERT(at < range.end);
  SentRange* rest = make();
  if (rest == nullptr) return nullptr;
  rest->begin = at;
  rest->end = range.end;
  rest->sent_ns = range.sent_ns;
  rest->fate = range.fate;
  rest->again = range.again;
  range.end = at;
  if (SentRange* following = ranges_.next(range)) {
    ranges_.insert_before(*following, *rest);
  } else {
    ranges_.push_back(*rest);
  }
  return rest;
}

// [left, right) of `range` as a range of its own. Null, and nothing changed: no ranges left.
SentRange* Scoreboard::carve(SentRange& range, Seq left, Seq right) noexcept {
  SentRange* piece = &range;
  if (range.begin < left) piece = split(range, left);
  if (piece == nullptr) return nullptr;
  if (right < piece->end && split(*piece, right) == nullptr) {
    join(*piece);
    return nullptr;
  }
  return piece;
}

void Scoreboard::move_edge(SentRange& before, SentRange& behind, Seq edge) noexcept {
  count(before, -1);
  count(behind, -1);
  before.end = behind.begin = edge;
  count(before, 1);
  count(behind, 1);
}

// Merges a range with neighbours that have become like it; returns what it is now part of.
SentRange& Scoreboard::join(SentRange& range) noexcept {
  SentRange* whole = &range;
  SentRange* before = previous(range);
  if (before != nullptr && may_join(*before, range)) whole = before;
  for (SentRange* behind = ranges_.next(*whole); behind != nullptr && may_join(*whole, *behind);
       behind = ranges_.next(*whole)) {
    take_times(*whole, *behind);
    move_edge(*whole, *behind, behind->end);
    drop(*behind);
  }
  return *whole;
}

// No ranges left where one is needed: all of it was sent just now, as far as anybody knows.
void Scoreboard::collapse(uint64_t now_ns) noexcept {
  while (ranges_.size() > 1) {
    SentRange* behind = ranges_.next(*ranges_.front());
    move_edge(*ranges_.front(), *behind, behind->end);
    drop(*behind);
  }
  SentRange& all = *ranges_.front();
  count(all, -1);
  all.fate = Fate::in_flight;
  all.again = true;
  all.sent_ns = now_ns;
  count(all, 1);
}

// ---- what was sent ------------------------------------------------------------------------------

void Scoreboard::sent(Seq begin, uint32_t bytes, uint64_t now_ns, uint64_t grain_ns) noexcept {
  NB_ASSERT(bytes > 0);
  SentRange* last = ranges_.back();
  NB_ASSERT(last == nullptr || last->end == begin);
  if (last == nullptr) highest_delivered_ = begin;
  const bool joins = last != nullptr && last->fate == Fate::in_flight && !last->again &&
                     now_ns - last_since_ns_ <= grain_ns;
  if (!joins) {
    if (SentRange* range = make()) {
      range->begin = range->end = begin;
      range->fate = Fate::in_flight;
      range->again = false;
      ranges_.push_back(*range);
      last = range;
      last_since_ns_ = now_ns;
    } else if (last->fate != Fate::in_flight) {
      collapse(now_ns);
      last = ranges_.back();
    }
  }
  count(*last, -1);
  last->end += bytes;
  last->sent_ns = now_ns;
  count(*last, 1);
}

void Scoreboard::sent_again(Seq begin, uint32_t bytes, uint64_t now_ns) noexcept {
  const Seq end = begin + bytes;
  for (SentRange* range = find(begin); range != nullptr && range->begin < end;) {
    if (range->fate != Fate::sacked) {
      SentRange* piece = carve(*range, max(begin, range->begin), min(end, range->end));
      if (piece != nullptr) range = piece;  // else all of it goes by the later time
      count(*range, -1);
      range->fate = Fate::in_flight;
      range->again = true;
      range->sent_ns = now_ns;
      count(*range, 1);
      range = hint_ = &join(*range);
    }
    range = ranges_.next(*range);
  }
}

// ---- what was heard -----------------------------------------------------------------------------

void Scoreboard::note(const SentRange& range, Seq begin, Seq end, Delivery& delivery) noexcept {
  if (range.fate == Fate::sacked) return;  // known since then
  delivery.bytes += bytes_between(begin, end);
  delivery.again = delivery.again || range.again;
  if (!range.again) {
    if (end < highest_delivered_) delivery.reordered = true;
    delivery.newest_once_ns = std::max(delivery.newest_once_ns, range.sent_ns);
  }
  highest_delivered_ = max(highest_delivered_, end);
  if (range.again && range.sent_ns > delivery.again_until_ns) return;
  const bool newer = !delivery.any || range.sent_ns > delivery.newest_ns ||
                     (range.sent_ns == delivery.newest_ns && end > delivery.newest_end);
  if (!newer) return;
  delivery.any = true;
  delivery.newest_ns = range.sent_ns;
  delivery.newest_end = end;
}

void Scoreboard::acknowledged(Seq una, Delivery& delivery) noexcept {
  for (SentRange* first = ranges_.front(); first != nullptr && first->begin < una;
       first = ranges_.front()) {
    note(*first, first->begin, min(first->end, una), delivery);
    if (first->end <= una) {
      drop(*first);
      continue;
    }
    count(*first, -1);
    first->begin = una;
    count(*first, 1);
  }
  highest_delivered_ = max(highest_delivered_, una);
}

Scoreboard::Taken Scoreboard::sacked(Seq left, Seq right, Delivery& delivery) noexcept {
  NB_ASSERT(left < right);
  NB_ASSERT(!ranges_.empty());
  NB_ASSERT(ranges_.front()->begin <= left);
  NB_ASSERT(right <= ranges_.back()->end);
  Taken taken = Taken::whole;
  for (SentRange* range = find(left); range != nullptr && range->begin < right;) {
    if (range->fate != Fate::sacked) {
      const Seq begin = max(left, range->begin);
      const Seq end = min(right, range->end);
      SentRange was;
      was.sent_ns = range->sent_ns;
      was.fate = range->fate;
      was.again = range->again;
      SentRange* held = take_sacked(*range, begin, end);
      if (held != nullptr) {
        note(was, begin, end, delivery);
        range = hint_ = held;
      } else {
        taken = Taken::dropped;
      }
    }
    range = ranges_.next(*range);
  }
  return taken;
}

// Part of `range` joins what the peer holds. Beside a range that it holds already that takes no other.
SentRange* Scoreboard::take_sacked(SentRange& range, Seq left, Seq right) noexcept {
  SentRange* before = previous(range);
  SentRange* behind = ranges_.next(range);
  const bool is_front = left == range.begin;
  const bool is_back = right == range.end;
  if (is_front && !is_back && before != nullptr && before->fate == Fate::sacked) {
    take_times(*before, range);
    move_edge(*before, range, right);
    return before;
  }
  if (is_back && !is_front && behind != nullptr && behind->fate == Fate::sacked) {
    take_times(*behind, range);
    move_edge(range, *behind, left);
    return behind;
  }
  SentRange* piece = carve(range, left, right);
  if (piece == nullptr) return nullptr;
  set_fate(*piece, Fate::sacked);
  return &join(*piece);
}

// ---- what is lost -------------------------------------------------------------------------------

Scoreboard::Losses Scoreboard::find_lost(const Deadline& deadline) noexcept {
  Losses losses;
  for (SentRange* range = ranges_.front(); range != nullptr; range = ranges_.next(*range)) {
    if (range->fate != Fate::in_flight) continue;
    const bool earlier = range->sent_ns < deadline.newest_ns ||
                         (range->sent_ns == deadline.newest_ns && range->end < deadline.newest_end);
    if (!earlier) continue;
    const uint64_t lost_ns = range->sent_ns + deadline.patience_ns;
    if (lost_ns > deadline.now_ns) {
      losses.next_ns = std::max(losses.next_ns, lost_ns);
      continue;
    }
    losses.bytes += range->size();
    if (range->again) losses.bytes_again += range->size();
    set_fate(*range, Fate::lost);
    range = &join(*range);
  }
  return losses;
}

void Scoreboard::lose_all() noexcept {
  for (SentRange* range = ranges_.front(); range != nullptr; range = ranges_.next(*range)) {
    if (range->fate != Fate::in_flight) continue;
    set_fate(*range, Fate::lost);
    range = &join(*range);
  }
}

void Scoreboard::unlose_all() noexcept {
  for (SentRange* range = ranges_.front(); range != nullptr; range = ranges_.next(*range)) {
    if (range->fate != Fate::lost) continue;
    set_fate(*range, Fate::in_flight);
    range = &join(*range);
  }
}

void Scoreboard::forget_sacked() noexcept {
  for (SentRange* range = ranges_.front(); range != nullptr; range = ranges_.next(*range)) {
    if (range->fate != Fate::sacked) continue;
    set_fate(*range, Fate::in_flight);
    range = &join(*range);
  }
}

std::optional<Scoreboard::Span> Scoreboard::next_lost(Seq from) noexcept {
  if (lost_ == 0) return std::nullopt;
  SentRange* range = from <= ranges_.front()->begin ? ranges_.front() : find(from);
  while (range != nullptr && range->fate != Fate::lost) range = ranges_.next(*range);
  if (range == nullptr) return std::nullopt;
  hint_ = range;
  return Span{max(from, range->begin), range->end};
}

}  // namespace nobounce::tcp
