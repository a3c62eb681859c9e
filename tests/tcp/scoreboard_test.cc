// The scoreboard alone: T-37, T-39, T-40, G-3.
#include "tcp/scoreboard.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "base/random.hpp"

namespace nobounce::tcp {

void PrintTo(const Seq& seq, std::ostream* out) { *out << seq.value(); }

namespace {

struct Seen {
  uint32_t begin, end;
  Fate fate;
  uint64_t sent_ns;
  bool again;
  friend bool operator==(const Seen&, const Seen&) = default;
  friend void PrintTo(const Seen& seen, std::ostream* out) {
    *out << "[" << seen.begin << "," << seen.end << ") "
         << (seen.fate == Fate::sacked ? "sacked"
             : seen.fate == Fate::lost ? "lost"
                                       : "flight")
         << (seen.again ? " again " : " ") << seen.sent_ns;
  }
};

// Numbers relative to `base`, which lies where they wrap.
struct Board {
  static constexpr uint32_t kBase = 0xffffff00;

  void sent(uint32_t begin, uint32_t bytes, uint64_t now, uint64_t grain = 0) {
    board.sent(at(begin), bytes, now, grain);
  }
  void sent_again(uint32_t begin, uint32_t end, uint64_t now) {
    board.sent_again(at(begin), end - begin, now);
  }
  Delivery acknowledged(uint32_t una, uint64_t again_until = ~uint64_t{0}) {
    Delivery delivery{.again_until_ns = again_until};
    board.acknowledged(at(una), delivery);
    return delivery;
  }
  Delivery sacked(uint32_t left, uint32_t right, uint64_t again_until = ~uint64_t{0}) {
    Delivery delivery{.again_until_ns = again_until};
    taken = board.sacked(at(left), at(right), delivery);
    return delivery;
  }
  Scoreboard::Losses find_lost(uint64_t newest, uint32_t end, uint64_t patience, uint64_t now) {
    return board.find_lost(
        {.newest_ns = newest, .newest_end = at(end), .patience_ns = patience, .now_ns = now});
  }
  [[nodiscard]] std::vector<Seen> seen() {
    std::vector<Seen> list;
    board.for_each([&list](const SentRange& range) {
      list.push_back({.begin = range.begin.value() - kBase,
                      .end = range.end.value() - kBase,
                      .fate = range.fate,
                      .sent_ns = range.sent_ns,
                      .again = range.again});
    });
    return list;
  }
  static Seq at(uint32_t offset) { return Seq(kBase) + offset; }

  RangePool pool{2000};
  Scoreboard board{pool};
  Scoreboard::Taken taken = Scoreboard::Taken::whole;
};

using Ranges = std::vector<Seen>;

TEST(Scoreboard, T41_what_is_sent_together_is_one_range) {
  Board b;
  b.sent(0, 100, 10);
  b.sent(100, 100, 10);
  b.sent(200, 100, 11);
  EXPECT_EQ(b.seen(),
            (Ranges{{0, 200, Fate::in_flight, 10, false}, {200, 300, Fate::in_flight, 11, false}}));
  EXPECT_EQ(b.board.pipe_bytes(), 300U);
  EXPECT_TRUE(b.board.is_plain());
  b.sent(300, 100, 14, 3);  // within the grain of the last: its time, not the older one
  b.sent(400, 100, 15, 3);  // not within it any more, counted from when the range began
  EXPECT_EQ(b.seen(), (Ranges{{0, 200, Fate::in_flight, 10, false},
                              {200, 400, Fate::in_flight, 14, false},
                              {400, 500, Fate::in_flight, 15, false}}));
}

TEST(Scoreboard, T39_G3_blocks_cut_ranges_where_they_end_and_join) {
  Board b;
  b.sent(0, 1000, 10);
  EXPECT_EQ(b.sacked(300, 400).bytes, 100U);
  EXPECT_EQ(b.sacked(500, 600).bytes, 100U);
  EXPECT_EQ(b.board.ranges(), 5U);
  EXPECT_EQ(b.sacked(350, 550).bytes, 100U);  // the hole alone is new
  EXPECT_EQ(b.seen(), (Ranges{{0, 300, Fate::in_flight, 10, false},
                              {300, 600, Fate::sacked, 10, false},
                              {600, 1000, Fate::in_flight, 10, false}}));
  EXPECT_EQ(b.board.sacked_bytes(), 300U);
  EXPECT_EQ(b.board.pipe_bytes(), 700U);
  EXPECT_EQ(b.sacked(300, 600).bytes, 0U);     // told again
  EXPECT_EQ(b.acknowledged(600).bytes, 300U);  // of it the peer had 300
  EXPECT_EQ(b.board.sacked_bytes(), 0U);
  EXPECT_EQ(b.board.outstanding_bytes(), 400U);
  EXPECT_EQ(b.acknowledged(1000).bytes, 400U);
  EXPECT_TRUE(b.board.empty());
  EXPECT_EQ(b.pool.in_use(), 0U);
}

TEST(Scoreboard, T41_the_newest_of_what_arrived) {
  Board b;
  b.sent(0, 100, 10);
  b.sent(100, 100, 20);
  b.sent(200, 100, 30);
  const Delivery all = b.acknowledged(250);
  EXPECT_TRUE(all.any);
  EXPECT_EQ(all.newest_ns, 30U);
  EXPECT_EQ(all.newest_end, Board::at(250));
  EXPECT_EQ(all.newest_once_ns, 30U);
  EXPECT_FALSE(all.reordered);
  b.sent(300, 100, 40);
  b.sent_again(250, 300, 50);
  const Delivery too_soon = b.sacked(250, 300, 49);  // an answer to the first copy
  EXPECT_EQ(too_soon.bytes, 50U);
  EXPECT_FALSE(too_soon.any);
  EXPECT_TRUE(too_soon.again);
  EXPECT_EQ(too_soon.newest_once_ns, 0U);
  b.sent_again(300, 400, 60);
  const Delivery second = b.sacked(300, 400, 60);
  EXPECT_EQ(second.newest_ns, 60U);
}

TEST(Scoreboard, T41_reordering_is_what_was_sent_once_and_arrives_behind_later_data) {
  Board b;
  for (uint32_t i = 0; i < 10; ++i) b.sent(i * 100, 100, 10 + i);
  EXPECT_FALSE(b.sacked(500, 600).reordered);
  EXPECT_FALSE(b.sacked(600, 700).reordered);
  EXPECT_TRUE(b.sacked(300, 400).reordered);
  b.sent_again(0, 100, 50);
  EXPECT_FALSE(b.acknowledged(100).reordered);  // a repair
  EXPECT_TRUE(b.acknowledged(200).reordered);
}

TEST(Scoreboard, T41_lost_is_what_was_sent_before_and_is_older_than_patience) {
  Board b;
  b.sent(0, 100, 10);
  b.sent(100, 100, 20);
  b.sent(200, 100, 30);
  b.sent(300, 100, 30);  // one range with the one before
  b.sent(400, 100, 40);
  (void)b.sacked(300, 350);
  const auto none = b.find_lost(30, 350, 25, 34);
  EXPECT_EQ(none.bytes, 0U);
  EXPECT_EQ(none.next_ns, 55U);  // when 200..300 will be
  const auto some = b.find_lost(30, 350, 25, 45);
  EXPECT_EQ(some.bytes, 200U);
  EXPECT_EQ(some.next_ns, 55U);
  EXPECT_EQ(b.board.lost_bytes(), 200U);
  EXPECT_EQ(b.find_lost(30, 350, 25, 55).bytes, 100U);
  EXPECT_EQ(b.seen(), (Ranges{{0, 300, Fate::lost, 30, false},
                              {300, 350, Fate::sacked, 30, false},
                              {350, 400, Fate::in_flight, 30, false},  // behind it, same time
                              {400, 500, Fate::in_flight, 40, false}}));
  EXPECT_EQ(b.board.pipe_bytes(), 150U);
  b.sent_again(0, 100, 60);
  const auto lost = b.board.next_lost(Board::at(0));
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->begin, Board::at(100));
  EXPECT_EQ(lost->end, Board::at(300));
  EXPECT_EQ(b.board.next_lost(Board::at(250))->begin, Board::at(250));
  EXPECT_FALSE(b.board.next_lost(Board::at(300)));
  // The repair is lost too: something sent behind it has arrived.
  b.sent_again(100, 300, 70);
  (void)b.sacked(100, 300);
  const auto again = b.find_lost(70, 300, 5, 75);
  EXPECT_EQ(again.bytes, 250U);
  EXPECT_EQ(again.bytes_again, 100U);
}

TEST(Scoreboard, T41_nothing_is_older_when_all_came_in_order) {
  Board b;
  b.sent(0, 100, 10);
  b.sent(100, 100, 20);
  (void)b.acknowledged(100);
  EXPECT_EQ(b.find_lost(10, 100, 0, 1000).next_ns, 0U);
  EXPECT_EQ(b.find_lost(10, 100, 0, 1000).bytes, 0U);
}

TEST(Scoreboard, T37_a_time_out_spares_what_the_peer_holds_unless_it_reneged) {
  Board b;
  b.sent(0, 1000, 10);
  (void)b.sacked(200, 300);
  b.board.lose_all();
  EXPECT_EQ(b.board.lost_bytes(), 900U);
  EXPECT_FALSE(b.board.is_reneged());
  (void)b.acknowledged(200);  // and not 300: it has thrown it away
  EXPECT_TRUE(b.board.is_reneged());
  b.board.forget_sacked();
  b.board.lose_all();
  EXPECT_EQ(b.seen(), (Ranges{{200, 1000, Fate::lost, 10, false}}));
  b.board.unlose_all();
  EXPECT_EQ(b.board.pipe_bytes(), 800U);
}

// One byte in two: the bound holds, the rest is not taken in, and nothing else goes wrong.
TEST(Scoreboard, T40_a_storm_of_blocks_is_bounded) {
  Board b;
  b.sent(0, 100'000, 10);
  size_t dropped = 0;
  for (uint32_t i = 1; i < 100'000; i += 2) {
    (void)b.sacked(i, i + 1);
    if (b.taken == Scoreboard::Taken::dropped) ++dropped;
    ASSERT_LE(b.board.ranges(), Scoreboard::kRangesMax);
  }
  EXPECT_GT(dropped, 49'000U);
  EXPECT_EQ(b.board.sacked_bytes() + dropped, 50'000U);
  // Beside what is held no further range is needed.
  const uint32_t held = b.board.sacked_bytes();
  EXPECT_EQ(b.sacked(2, 3).bytes, 1U);
  EXPECT_EQ(b.taken, Scoreboard::Taken::whole);
  EXPECT_EQ(b.board.sacked_bytes(), held + 1);
  // New data finds no range of its own: it goes with the last, by the later time.
  b.sent(100'000, 100, 50);
  b.board.lose_all();
  b.sent_again(0, 1, 60);
  EXPECT_EQ(b.acknowledged(100'100).bytes + held + 1, 100'100U);
  EXPECT_EQ(b.pool.in_use(), 0U);
}

// Others have all of the pool.
TEST(Scoreboard, T40_without_a_range_everything_was_sent_just_now) {
  RangePool pool(0);
  Scoreboard board(pool);
  board.sent(Seq(0), 1000, 10, 0);
  board.sent(Seq(1000), 500, 20, 0);
  EXPECT_EQ(board.ranges(), 1U);
  Delivery delivery;
  EXPECT_EQ(board.sacked(Seq(100), Seq(200), delivery), Scoreboard::Taken::dropped);
  EXPECT_EQ(delivery.bytes, 0U);
  board.lose_all();
  board.sent_again(Seq(0), 100, 30);  // cannot be told apart from the rest
  EXPECT_EQ(board.pipe_bytes(), 1500U);
  board.lose_all();
  board.sent(Seq(1500), 100, 40, 0);
  EXPECT_EQ(board.pipe_bytes(), 1600U);
  EXPECT_EQ(board.lost_bytes(), 0U);
  board.acknowledged(Seq(1600), delivery);
  EXPECT_EQ(delivery.bytes, 1600U);
  EXPECT_TRUE(board.empty());
}

// ---- against a model that knows every byte ------------------------------------------------------

struct Byte {
  Fate fate = Fate::in_flight;
  uint64_t sent_ns = 0;
  bool again = false;
};

class Model {
 public:
  std::vector<Byte> bytes;  // from 0; before `una` done with
  uint32_t una = 0;
  uint32_t highest = 0;
  bool is_vague = false;  // of lost bytes it is not known which went again

  [[nodiscard]] uint32_t nxt() const { return static_cast<uint32_t>(bytes.size()); }
  void deliver(uint32_t left, uint32_t right, Fate becomes, Delivery& d) {
    for (uint32_t i = left; i < right;) {
      uint32_t end = i + 1;  // of a range
      while (end < right && same(i, end)) ++end;
      is_vague = is_vague || bytes[i].fate == Fate::lost;
      if (bytes[i].fate != Fate::sacked) {
        d.bytes += end - i;
        if (!bytes[i].again && end < highest) d.reordered = true;
        highest = std::max(highest, end);
        for (uint32_t k = i; k < end; ++k) bytes[k].fate = becomes;
      }
      i = end;
    }
  }
  // How far the range reaches that `i` is in.
  [[nodiscard]] uint32_t range_end(uint32_t i) const {
    uint32_t end = i + 1;
    while (end < nxt() && same(i, end)) ++end;
    return end;
  }
  uint32_t find_lost(uint64_t newest, uint32_t newest_end, uint64_t patience, uint64_t now) {
    uint32_t lost = 0;
    for (uint32_t i = una; i < nxt();) {
      const uint32_t end = range_end(i);
      const Byte& byte = bytes[i];
      const bool before = byte.sent_ns < newest || (byte.sent_ns == newest && end < newest_end);
      if (byte.fate == Fate::in_flight && before && byte.sent_ns + patience <= now) {
        lost += end - i;
        for (uint32_t k = i; k < end; ++k) bytes[k].fate = Fate::lost;
      }
      i = end;
    }
    return lost;
  }
  [[nodiscard]] uint32_t count(Fate fate) const {
    uint32_t sum = 0;
    for (uint32_t i = una; i < nxt(); ++i) sum += bytes[i].fate == fate ? 1 : 0;
    return sum;
  }

 private:
  [[nodiscard]] bool same(uint32_t a, uint32_t b) const {
    const Byte& x = bytes[a];
    const Byte& y = bytes[b];
    if (x.fate != y.fate) return false;
    return x.fate != Fate::in_flight || (x.sent_ns == y.sent_ns && x.again == y.again);
  }
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) {}

  void step() {
    now_ += random_.below(3);
    switch (random_.below(10)) {
      case 0:
      case 1:
      case 2:
        return send();
      case 3:
      case 4:
        return sack();
      case 5:
        return acknowledge();
      case 6:
        return find_lost();
      case 7:
      case 8:
        return send_again();
      default:
        return rarely();
    }
  }
  void check() {
    uint32_t at = m_.una;
    std::optional<Seen> before;
    for (const Seen& range : b_.seen()) {
      ASSERT_EQ(range.begin, at);
      ASSERT_LT(range.begin, range.end);
      for (; at < range.end; ++at) {
        ASSERT_EQ(m_.bytes[at].fate, range.fate) << at;
        if (range.fate != Fate::in_flight) continue;
        ASSERT_EQ(m_.bytes[at].sent_ns, range.sent_ns) << at;
        ASSERT_EQ(m_.bytes[at].again, range.again) << at;
      }
      if (before && before->fate == range.fate) {
        ASSERT_EQ(range.fate, Fate::in_flight);  // others would have been joined
        ASSERT_TRUE(before->sent_ns != range.sent_ns || before->again != range.again);
      }
      before = range;
    }
    ASSERT_EQ(at, m_.nxt());
    ASSERT_EQ(b_.board.outstanding_bytes(), m_.nxt() - m_.una);
    ASSERT_EQ(b_.board.sacked_bytes(), m_.count(Fate::sacked));
    ASSERT_EQ(b_.board.lost_bytes(), m_.count(Fate::lost));
    ASSERT_EQ(b_.board.pipe_bytes(), m_.count(Fate::in_flight));
    const auto lost = b_.board.next_lost(Board::at(m_.una));
    ASSERT_EQ(lost.has_value(), m_.count(Fate::lost) > 0);
    if (lost) {
      ASSERT_EQ(m_.bytes[lost->begin.value() - Board::kBase].fate, Fate::lost);
    }
  }

 private:
  struct Piece {
    uint32_t begin, end;
  };
  [[nodiscard]] uint32_t below(uint32_t bound) {
    return static_cast<uint32_t>(random_.below(bound));
  }
  [[nodiscard]] std::optional<Piece> piece() {
    const uint32_t left = m_.nxt() - m_.una;
    if (left == 0) return std::nullopt;
    const uint32_t begin = m_.una + below(left);
    const uint32_t size = 1 + below(std::min(40u, m_.nxt() - begin));
    return Piece{begin, begin + size};
  }
  void send() {
    if (m_.nxt() - m_.una > 400) return;
    const uint32_t bytes = 1 + below(20);
    if (m_.una == m_.nxt()) m_.highest = m_.nxt();
    b_.sent(m_.nxt(), bytes, now_);
    for (uint32_t i = 0; i < bytes; ++i) m_.bytes.push_back({Fate::in_flight, now_, false});
  }
  void sack() {
    const auto p = piece();
    if (!p) return;
    Delivery expected;
    m_.is_vague = false;
    m_.deliver(p->begin, p->end, Fate::sacked, expected);
    const Delivery got = b_.sacked(p->begin, p->end);
    ASSERT_EQ(b_.taken, Scoreboard::Taken::whole);
    ASSERT_EQ(got.bytes, expected.bytes);
    if (!m_.is_vague) {
      ASSERT_EQ(got.reordered, expected.reordered);
    }
  }
  void acknowledge() {
    const auto p = piece();
    if (!p) return;
    Delivery expected;
    m_.is_vague = false;
    m_.deliver(m_.una, p->begin, Fate::sacked, expected);
    m_.una = p->begin;
    m_.highest = std::max(m_.highest, m_.una);
    const Delivery got = b_.acknowledged(p->begin);
    ASSERT_EQ(got.bytes, expected.bytes);
    if (!m_.is_vague) {
      ASSERT_EQ(got.reordered, expected.reordered);
    }
  }
  void find_lost() {
    const uint64_t newest = now_ - below(50);
    const uint32_t end = m_.una + below(m_.nxt() - m_.una + 1);
    const uint64_t patience = below(60);
    const uint32_t expected = m_.find_lost(newest, end, patience, now_);
    ASSERT_EQ(b_.find_lost(newest, end, patience, now_).bytes, expected);
  }
  void send_again() {
    const auto p = piece();
    if (!p) return;
    b_.sent_again(p->begin, p->end, now_);
    for (uint32_t i = p->begin; i < p->end; ++i) {
      if (m_.bytes[i].fate != Fate::sacked) m_.bytes[i] = {Fate::in_flight, now_, true};
    }
  }
  void rarely() {
    switch (random_.below(12)) {
      case 0:
        b_.board.lose_all();
        for (Byte& byte : m_.bytes) {
          if (byte.fate == Fate::in_flight) byte.fate = Fate::lost;
        }
        return;
      case 1:
        b_.board.unlose_all();
        return revive(Fate::lost);
      case 2:
        b_.board.forget_sacked();
        return revive(Fate::sacked);
      default:
        return;
    }
  }
  // Of what was joined meanwhile the times are the latest of it.
  void revive(Fate fate) {
    for (const Seen& range : b_.seen()) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        Byte& byte = m_.bytes[i];
        if (byte.fate != fate) continue;
        ASSERT_LE(byte.sent_ns, range.sent_ns);
        ASSERT_LE(byte.again, range.again);
        byte = {Fate::in_flight, range.sent_ns, range.again};
      }
    }
  }

  SeededRandom random_;
  Board b_;
  Model m_;
  uint64_t now_ = 1000;
};

TEST(Scoreboard, T40_T41_G3_agrees_with_a_model_of_every_byte) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Walk walk(seed);
    for (int i = 0; i < 400; ++i) {
      SCOPED_TRACE(i);
      walk.step();
      walk.check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace nobounce::tcp
