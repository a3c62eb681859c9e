// Loss and its repair when SACK is agreed (RFC 2018, 6675, 8985, 9937; T-37, T-39, T-41, T-46).
//
//   ACK --> D-SACK? --> scoreboard: acknowledged, sacked --> rack: what arrived, how old
//       --> tail probe answered? --> what is lost now --> recovery begins, goes on (prr), ends
//
// An ACK without blocks when nothing is missing costs two comparisons more than its share of the
// scoreboard: what arrived is older than all that is left (Scoreboard::find_lost). What is sent for it
// is decided in output() at the end of the burst.
#include <algorithm>
#include <array>
#include <span>

#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// Lowest first.
struct Blocks {
  std::array<Scoreboard::Span, wire::kTcpSackBlocksMax> spans;
  size_t count = 0;

  void add(const Scoreboard::Span& span) noexcept {
    size_t at = count++;
    for (; at > 0 && spans[at - 1].begin > span.begin; --at) spans[at] = spans[at - 1];
    spans[at] = span;
  }
};

Scoreboard::Span span_of(const wire::TcpSackBlock& block) noexcept {
  return {.begin = Seq(block.left), .end = Seq(block.right)};
}

// RFC 2883 4: the first block tells of a duplicate when it lies below the acknowledgement, or within
// the second.
bool is_duplicate_block(const wire::TcpOptions& options, Seq ack) noexcept {
  const Scoreboard::Span first = span_of(options.sack[0]);
  if (first.begin >= first.end) return false;
  if (first.end <= ack) return true;
  if (options.sack_count < 2) return false;
  const Scoreboard::Span second = span_of(options.sack[1]);
  return second.begin <= first.begin && first.end <= second.end;
}

}  // namespace

void Machine::on_ack_with_sack(Connection& c, const Segment& segment) noexcept {
  const uint32_t pipe_before = c.scoreboard.pipe_bytes();
  const bool advances = segment.ack > c.snd_una;
  const uint32_t acked = bytes_between(c.snd_una, segment.ack);
  const bool fin_acked = c.fin_sent && segment.ack == c.snd_nxt;
  const bool reordering_seen = c.rack.reordering_seen;
  Delivery delivery{.again_until_ns = c.rack.again_until_ns(now())};
  if (advances) take_new_ack(c, segment, delivery);
  if (segment.options.sack_count > 0) take_blocks(c, segment, delivery);
  if (advances || delivery.bytes > 0) c.probe_ns = 0;
  if (c.tail_probe.kind != TailProbe::Kind::none) on_probe_answer(c, segment, advances);
  c.rack.delivered(delivery, now());
  if (c.rack.reordering_seen != reordering_seen) counters_.rack_reordering.add();
  if (advances) {
    take_rtt_sample(c, segment, delivery.newest_once_ns);
    take_back_timeout(c, segment);
  }
  const bool was_in_recovery = c.in_recovery;
  if (c.in_recovery && c.snd_una >= c.recover) leave_sack_recovery(c);
  const uint32_t lost = find_losses(c, delivery.bytes);  // behind that, a new one begins
  if (c.in_recovery && (delivery.bytes > 0 || lost > 0)) {
    pace_recovery(c, delivery.bytes, advances && lost == 0);
  }
  if (advances) {
    if (!was_in_recovery && !c.in_recovery) grow_window(c, pipe_before, acked);
    restart_retransmit_timer(c);
  }
  if (advances || delivery.bytes > 0 || lost > 0 || c.reorder_ns != 0) {
    c.needs_output = true;  // and the loss timer
    note_work(c);
  }
  if (advances && fin_acked) on_fin_acked(c);
}

// Lowest first: what a lost ACK would have told of comes together with what is above it, and that is no
// reordering.
void Machine::take_blocks(Connection& c, const Segment& segment, Delivery& delivery) noexcept {
  const wire::TcpOptions& options = segment.options;
  counters_.sack_in.add();
  size_t first = 0;
  if (is_duplicate_block(options, segment.ack)) {
    on_duplicate_block(c, span_of(options.sack[0]));
    first = 1;
  }
  Blocks blocks;
  for (size_t i = first; i < options.sack_count; ++i) {
    const Scoreboard::Span span = span_of(options.sack[i]);
    // Comparison is by distance, so all three pairs have to be in order.
    if (span.begin >= span.end || span.begin < c.snd_una || span.begin >= c.snd_nxt ||
        span.end > c.snd_nxt) {
      counters_.sack_invalid.add();
      continue;
    }
    blocks.add(span);
  }
  for (const Scoreboard::Span& span : std::span(blocks.spans).first(blocks.count)) {
    if (c.scoreboard.sacked(span.begin, span.end, delivery) == Scoreboard::Taken::dropped) {
      counters_.limit_sack_ranges.add();
    }
  }
}

// ---- losses -------------------------------------------------------------------------------------

uint32_t Machine::find_losses(Connection& c, uint32_t delivered) noexcept {
  if (!c.rack.any) return 0;
  const bool strong =
      c.in_recovery || c.scoreboard.sacked_bytes() >= uint64_t{Rack::kSackedMax} * c.mss;
  const uint64_t window_ns =
      c.rack.window_ns(strong ? Rack::Evidence::strong : Rack::Evidence::weak, c.rtt.smoothed_ns());
  const Scoreboard::Losses losses =
      c.scoreboard.find_lost({.newest_ns = c.rack.newest_ns,
                              .newest_end = c.rack.newest_end,
                              .patience_ns = c.rack.rtt_ns + window_ns,
                              .now_ns = now()});
  c.reorder_ns = losses.next_ns;
  if (losses.bytes == 0) return 0;
  counters_.rack_lost.add();
  if (losses.bytes_again > 0) counters_.rack_lost_again.add();
  if (c.snd_una >= c.recover) enter_sack_recovery(c, delivered);
  return losses.bytes;
}

void Machine::enter_sack_recovery(Connection& c, uint32_t delivered) noexcept {
  counters_.fast_retransmits.add();
  const uint32_t flight = c.scoreboard.pipe_bytes() + c.scoreboard.lost_bytes() + delivered;
  c.undo.start(Undo::Cause::recovery, c.congestion, 0);
  // What was sacked before this ACK counts as well, where no new data has taken its place.
  c.congestion.enter_paced_recovery(
      std::max(flight, std::min(c.scoreboard.outstanding_bytes(), c.congestion.window())));
  c.prr.start(flight);
  c.in_recovery = true;
  c.recover = c.snd_nxt;
  c.tail_probe.kind = TailProbe::Kind::none;
  c.probe_ns = 0;
}

void Machine::pace_recovery(Connection& c, uint32_t delivered, bool goes_well) noexcept {
  c.congestion.set_recovery_window(c.prr.window({.delivered = delivered,
                                                 .pipe = c.scoreboard.pipe_bytes(),
                                                 .threshold = c.congestion.threshold(),
                                                 .mss = c.mss,
                                                 .goes_well = goes_well}));
}

void Machine::leave_sack_recovery(Connection& c) noexcept {
  c.in_recovery = false;
  c.congestion.leave_paced_recovery();
  c.rack.recovery_ended();
}

void Machine::on_reorder_timeout(Connection& c) noexcept {
  counters_.rack_timeouts.add();
  c.reorder_ns = 0;
  if (find_losses(c, 0) == 0) return;
  if (c.in_recovery) pace_recovery(c, 0, false);
  output(c);
}

// ---- reductions that were for nothing -----------------------------------------------------------

void Machine::on_duplicate_block(Connection& c, const Scoreboard::Span& span) noexcept {
  // Older than anything it could be about, or not yet sent.
  if (span.begin < c.snd_una - c.snd_wnd_max || span.end > c.snd_nxt) {
    counters_.sack_invalid.add();
    return;
  }
  counters_.dsack_in.add();
  if (c.tail_probe.kind == TailProbe::Kind::again && span.end == c.tail_probe.end) {
    counters_.tlp_needless.add();  // both copies have arrived: nothing was lost
    c.tail_probe.kind = TailProbe::Kind::none;
    return;
  }
  const Undo::Verdict verdict = c.undo.duplicate(span.begin, span.end);
  if (verdict == Undo::Verdict::unrelated) return;  // the wire's own copy
  counters_.needless.add();
  c.rack.was_needless(c.snd_una, c.snd_nxt);
  if (verdict == Undo::Verdict::all_needless) {
    counters_.undo_dsack.add();
    take_back(c);
  }
}

// RFC 3522: the first new ACK after a time-out is for what was sent before it.
void Machine::take_back_timeout(Connection& c, const Segment& segment) noexcept {
  if (c.undo.cause != Undo::Cause::timeout || !c.timestamps || !segment.options.timestamps) return;
  c.undo.cause = Undo::Cause::recovery;  // from now on only D-SACKs can tell
  const auto echo_age =
      static_cast<int32_t>(c.undo.timeout_clock - segment.options.timestamps->echo);
  if (segment.options.timestamps->echo == 0 || echo_age <= 0) return;
  counters_.undo_timeout.add();
  c.scoreboard.unlose_all();
  take_back(c);
}

void Machine::take_back(Connection& c) noexcept {
  c.congestion.undo(c.undo.before);
  c.undo.cause = Undo::Cause::none;
  c.in_recovery = false;
  c.recover = c.snd_una;
  c.needs_output = true;
  note_work(c);
}

}  // namespace nobounce::tcp
