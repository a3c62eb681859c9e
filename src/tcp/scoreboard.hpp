// What became of every byte between SND.UNA and SND.NXT: in flight, held by the peer (SACK), or lost.
//
//   SND.UNA                                                            SND.NXT
//   |--- lost ---|-- sacked --|--- flight 12.1 ms ---|- flight 12.3 ms -|
//
// Ranges in order of sequence number, without gaps; each says how it stands, when it was last sent and
// whether that was not the first time. A range is what shares all of this, so it follows the edges of
// segments and of SACK blocks and knows nothing of packets (G-3). What becomes equal to its neighbour
// joins it. This is bookkeeping alone: when something counts as lost is decided in rack.hpp, what is
// sent in send.cc.
//
// Invariants: 1 ranges touch, the first begins at the lowest byte outstanding, the last ends at the
// highest; 2 sums (`sacked_bytes()` and so on) are those of the ranges; 3 neighbours differ.
//
// Bounds (T-40): kRangesMax of a connection, kept in a pool that all of the shard share; its first range
// is in the scoreboard itself, so that a connection without loss never waits for others. When either
// bound is hit information is dropped, always to the side of later retransmission: a SACK block that
// needs one more range is not taken in (`Taken::dropped`), new data takes its send time along to the
// data before it, and at worst all is one range that was sent just now.
// Cost: a search walks from the range last touched, at most kRangesMax steps; sent() and
// acknowledged() without loss are O(1) a range. Nothing allocates.
// Threads: the shard's. Spec: T-37, T-39, T-40, T-41, G-3.
#pragma once

#include <cstdint>
#include <optional>

#include "base/list.hpp"
#include "base/object_pool.hpp"
#include "tcp/seqnum.hpp"

namespace nobounce::tcp {

enum class Fate : uint8_t {
  in_flight,  // sent, and nothing heard of it
  sacked,     // the peer has it, and may still throw it away (RFC 2018 8)
  lost,       // taken for lost, to be sent again
};

struct SentRange : ListHook {
  Seq begin, end;
  uint64_t sent_ns = 0;  // last time, of all of it the latest
  Fate fate = Fate::in_flight;
  bool again = false;  // sent more than once: an answer does not say which copy it is for
  [[nodiscard]] uint32_t size() const noexcept { return bytes_between(begin, end); }
};

using RangePool = ObjectPool<SentRange>;

// What one ACK brought that was not known, gathered over its parts.
struct Delivery {
  // Answers to what was sent again later than this cannot be for that copy (RFC 8985 6.2 step 2).
  uint64_t again_until_ns = ~uint64_t{0};

  uint32_t bytes = 0;
  bool any = false;        // `newest` is set
  bool again = false;      // something had been sent more than once
  bool reordered = false;  // something sent once arrived behind what was sent after it
  uint64_t newest_ns = 0;  // sent last of all that was delivered, and there the highest
  Seq newest_end{};
  uint64_t newest_once_ns = 0;  // ... of what was sent once; 0: nothing was
};

class Scoreboard {
 public:
  static constexpr size_t kRangesMax = 512;
  enum class Taken : uint8_t { whole, dropped };
  struct Span {
    Seq begin, end;
  };
  // Of what was sent at `newest_ns`, or before, something was delivered: what was sent earlier and is
  // older than `window_ns` on top of `rtt_ns` is lost (RFC 8985 6.2 step 5).
  struct Deadline {
    uint64_t newest_ns = 0;
    Seq newest_end{};
    uint64_t patience_ns = 0;  // rtt + window
    uint64_t now_ns = 0;
  };
  struct Losses {
    uint32_t bytes = 0;
    uint32_t bytes_again = 0;  // of it: had been sent again
    uint64_t next_ns = 0;      // then more of it will be; 0: none
  };

  explicit Scoreboard(RangePool& pool) noexcept : pool_(pool) {}
  ~Scoreboard() { clear(); }
  Scoreboard(const Scoreboard&) = delete;
  Scoreboard& operator=(const Scoreboard&) = delete;

  // ---- sums ----
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] size_t ranges() const noexcept { return ranges_.size(); }
  [[nodiscard]] uint32_t outstanding_bytes() const noexcept { return outstanding_; }
  [[nodiscard]] uint32_t sacked_bytes() const noexcept { return sacked_; }
  [[nodiscard]] uint32_t lost_bytes() const noexcept { return lost_; }
  // The estimate of what is on its way (RFC 6675 pipe).
  [[nodiscard]] uint32_t pipe_bytes() const noexcept { return outstanding_ - sacked_ - lost_; }
  // Everything is in flight for the first time: no ACK can show a loss but by its blocks.
  [[nodiscard]] bool is_plain() const noexcept { return sacked_ + lost_ + again_ == 0; }
  // The peer held this, and now acknowledges less: it has thrown it away (T-37).
  [[nodiscard]] bool is_reneged() noexcept {
    return !ranges_.empty() && ranges_.front()->fate == Fate::sacked;
  }

  // ---- what was sent ----
  // New data behind all else. Within `grain_ns` it shares the send time of the data before it.
  void sent(Seq begin, uint32_t bytes, uint64_t now_ns, uint64_t grain_ns) noexcept;
  // [begin, begin + bytes), which is outstanding, went again.
  void sent_again(Seq begin, uint32_t bytes, uint64_t now_ns) noexcept;

  // ---- what was heard ----
  void acknowledged(Seq una, Delivery& delivery) noexcept;
  // A block within what is outstanding.
  Taken sacked(Seq left, Seq right, Delivery& delivery) noexcept;

  // ---- what is lost ----
  Losses find_lost(const Deadline& deadline) noexcept;
  void lose_all() noexcept;       // but what the peer holds
  void unlose_all() noexcept;     // it was late, not lost: in flight as before
  void forget_sacked() noexcept;  // what the peer held is in flight again
  // The first lost bytes at or behind `from`.
  [[nodiscard]] std::optional<Span> next_lost(Seq from) noexcept;

  void clear() noexcept;

  // Calls visit(const SentRange&) in order; for tests and dumps.
  template <class Visit>
  void for_each(Visit visit) {
    for (SentRange* range = ranges_.front(); range != nullptr; range = ranges_.next(*range)) {
      visit(*range);
    }
  }

 private:
  [[nodiscard]] SentRange* make() noexcept;
  void drop(SentRange& range) noexcept;
  [[nodiscard]] SentRange* previous(SentRange& range) noexcept {
    return &range == ranges_.front() ? nullptr : static_cast<SentRange*>(range.previous);
  }
  [[nodiscard]] SentRange* find(Seq seq) noexcept;
  [[nodiscard]] SentRange* split(SentRange& range, Seq at) noexcept;
  [[nodiscard]] SentRange* carve(SentRange& range, Seq left, Seq right) noexcept;
  SentRange* take_sacked(SentRange& range, Seq left, Seq right) noexcept;
  void count(const SentRange& range, int32_t sign) noexcept;
  void note(const SentRange& range, Seq begin, Seq end, Delivery& delivery) noexcept;
  void move_edge(SentRange& before, SentRange& behind, Seq edge) noexcept;
  void set_fate(SentRange& range, Fate fate) noexcept;
  SentRange& join(SentRange& range) noexcept;
  void collapse(uint64_t now_ns) noexcept;

  RangePool& pool_;
  List<SentRange> ranges_;
  SentRange own_;              // the first one in use
  SentRange* hint_ = nullptr;  // in the list, or null
  bool own_is_used_ = false;
  uint32_t outstanding_ = 0, sacked_ = 0, lost_ = 0;
  uint32_t again_ = 0;          // in flight, not for the first time
  uint64_t last_since_ns_ = 0;  // since when the last range takes new data
  Seq highest_delivered_;       // acknowledged or sacked
};

}  // namespace nobounce::tcp
