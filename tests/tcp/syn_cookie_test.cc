// SYN cookies as pure functions: T-15.
#include "tcp/syn_cookie.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace nobounce::test {
namespace {

using tcp::CookieEnds;
using tcp::CookieFields;
using tcp::CookieRefusal;
using tcp::kCookiePeriodNs;
using tcp::Seq;

constexpr SipKey kKey{0x0123456789abcdef, 0xfedcba9876543210};
constexpr uint64_t kNow = 1000 * kCookiePeriodNs;
constexpr uint32_t kClock = 0x12345678;

CookieEnds some_ends() {
  return {{IpAddress::v4(192, 0, 2, 1), 80}, {IpAddress::v4(198, 51, 100, 7), 40000}, Seq(0x1234)};
}
CookieEnds random_ends(Random& random) {
  return {{IpAddress::v4(random.next_u32()), static_cast<uint16_t>(random.next_u32())},
          {IpAddress::v4(random.next_u32()), static_cast<uint16_t>(random.next_u32())},
          Seq(random.next_u32())};
}
CookieFields some_fields() {
  return {.mss = 1460, .timestamps = true, .window_scale = 7, .sack_permitted = true};
}
std::vector<CookieFields> all_options() {
  std::vector<CookieFields> list{{.mss = 1460}};
  for (int scale = -1; scale <= 14; ++scale) {
    for (const bool sack : {false, true}) {
      CookieFields fields{.mss = 1460, .timestamps = true, .sack_permitted = sack};
      if (scale >= 0) fields.window_scale = static_cast<uint8_t>(scale);
      list.push_back(fields);
    }
  }
  return list;
}

// A cookie and what its acknowledgement brings.
struct Made {
  Seq iss;
  std::optional<uint32_t> echo;
};
Made make(const CookieEnds& ends, const CookieFields& fields, uint64_t now_ns = kNow) {
  Made made{tcp::make_cookie(kKey, ends, fields, now_ns), {}};
  if (fields.timestamps) made.echo = tcp::stamp_cookie(kClock, fields);
  return made;
}
auto check(const CookieEnds& ends, const Made& made, uint64_t now_ns = kNow) {
  return tcp::check_cookie(kKey, ends, made.iss, made.echo, now_ns);
}

TEST(SynCookie, T15_every_option_comes_back) {
  for (const CookieFields& fields : all_options()) {
    EXPECT_EQ(tcp::carried_by_cookie(fields), fields);
    const auto back = check(some_ends(), make(some_ends(), fields));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, fields);
  }
}

TEST(SynCookie, T15_every_mss_comes_back_rounded_down) {
  uint32_t kept = 0;
  uint16_t before = 0;
  for (uint32_t mss = 88; mss <= 0xffff; ++mss) {
    const CookieFields fields = tcp::carried_by_cookie({.mss = static_cast<uint16_t>(mss)});
    ASSERT_LE(fields.mss, mss);
    ASSERT_GE(fields.mss, before);
    before = fields.mss;
    if (fields.mss == mss) {
      ++kept;
      const auto back = check(some_ends(), make(some_ends(), fields));
      ASSERT_TRUE(back.has_value());
      EXPECT_EQ(back->mss, mss);
    }
  }
  EXPECT_EQ(kept, 8U);
  for (const uint16_t common : std::to_array<uint16_t>({536, 1220, 1440, 1460, 8960})) {
    EXPECT_EQ(tcp::carried_by_cookie({.mss = common}).mss, common);
  }
  EXPECT_EQ(tcp::carried_by_cookie({.mss = 0}).mss, 88);  // never asked: the floor is above
}

TEST(SynCookie, T15_without_timestamps_nothing_but_the_mss_is_carried) {
  const CookieFields offered{.mss = 1460, .window_scale = 7, .sack_permitted = true};
  EXPECT_EQ(tcp::carried_by_cookie(offered), CookieFields{.mss = 1460});
}

TEST(SynCookie, T15_ipv6_too) {
  CookieEnds ends = some_ends();
  ends.local.address = IpAddress::parse("2001:db8::1").value();
  ends.remote.address = IpAddress::parse("2001:db8::2").value();
  const Made made = make(ends, some_fields());
  EXPECT_TRUE(check(ends, made).has_value());
  ends.remote.address = IpAddress::parse("2001:db8::3").value();
  EXPECT_FALSE(check(ends, made).has_value());
}

TEST(SynCookie, T50_stamped_timestamp_is_at_most_31_ticks_early_and_never_late) {
  for (const CookieFields& fields : all_options()) {
    for (const uint32_t start : {0U, 1000U, 0x7fffffc0U, 0xffffffc0U}) {
      for (uint32_t i = 0; i < 128; ++i) {
        const uint32_t late = start + i - tcp::stamp_cookie(start + i, fields);
        ASSERT_LE(late, 31U);
      }
    }
  }
}

TEST(SynCookie, T15_good_in_its_period_and_the_next) {
  for (const uint64_t offset : {uint64_t{0}, kCookiePeriodNs / 2, kCookiePeriodNs - 1}) {
    const uint64_t made_ns = kNow + offset;
    const Made made = make(some_ends(), some_fields(), made_ns);
    for (const uint64_t later :
         {made_ns, made_ns + kCookiePeriodNs, kNow + 2 * kCookiePeriodNs - 1}) {
      EXPECT_TRUE(check(some_ends(), made, later).has_value()) << later - made_ns;
    }
    for (const uint64_t period : {2, 3}) {
      for (const uint64_t at : {uint64_t{0}, kCookiePeriodNs - 1}) {
        const auto late = check(some_ends(), made, kNow + period * kCookiePeriodNs + at);
        ASSERT_FALSE(late.has_value());
        EXPECT_EQ(late.error(), CookieRefusal::expired);
      }
    }
  }
}

// The two bits of the period come round; the hash has all of it.
TEST(SynCookie, T15_never_good_again) {
  const Made made = make(some_ends(), some_fields());
  for (uint64_t period = 2; period < 10'000; ++period) {
    ASSERT_FALSE(check(some_ends(), made, kNow + period * kCookiePeriodNs).has_value()) << period;
  }
  for (uint64_t period = 1; period <= 1000; ++period) {  // nor before it was made
    ASSERT_FALSE(check(some_ends(), made, kNow - period * kCookiePeriodNs).has_value()) << period;
  }
}

TEST(SynCookie, T15_forgery_of_every_bit_of_the_ack_is_refused) {
  SeededRandom random(7);
  for (int round = 0; round < 200; ++round) {
    const CookieEnds ends = random_ends(random);
    const Made made = make(ends, some_fields());
    ASSERT_TRUE(check(ends, made).has_value());
    for (unsigned bit = 0; bit < 32; ++bit) {
      const Made forged{Seq(made.iss.value() ^ (1U << bit)), made.echo};
      ASSERT_FALSE(check(ends, forged).has_value()) << "bit " << bit;
    }
  }
}

TEST(SynCookie, T15_every_bit_of_the_tuple_counts) {
  const CookieEnds ends = some_ends();
  const Made made = make(ends, some_fields());
  std::vector<CookieEnds> others;
  for (unsigned bit = 0; bit < 32; ++bit) {
    CookieEnds other = ends;
    other.local.address = IpAddress::v4(0xc0000201 ^ (1U << bit));
    others.push_back(other);
    other = ends;
    other.remote.address = IpAddress::v4(0xc6336407 ^ (1U << bit));
    others.push_back(other);
  }
  for (unsigned bit = 0; bit < 16; ++bit) {
    CookieEnds other = ends;
    other.local.port = static_cast<uint16_t>(ends.local.port ^ (1U << bit));
    others.push_back(other);
    other = ends;
    other.remote.port = static_cast<uint16_t>(ends.remote.port ^ (1U << bit));
    others.push_back(other);
  }
  CookieEnds swapped = ends;
  std::swap(swapped.local, swapped.remote);
  others.push_back(swapped);
  for (const CookieEnds& other : others) EXPECT_FALSE(check(other, made).has_value());
}

TEST(SynCookie, T15_another_place_in_the_stream_is_told_from_a_forgery) {
  const Made made = make(some_ends(), some_fields());
  for (unsigned bit = 0; bit < 32; ++bit) {
    CookieEnds other = some_ends();
    other.irs = Seq(other.irs.value() ^ (1U << bit));
    const auto checked = check(other, made);
    ASSERT_FALSE(checked.has_value());
    EXPECT_EQ(checked.error(), CookieRefusal::misplaced);
  }
}

TEST(SynCookie, T15_echoed_options_cannot_be_changed) {
  const Made made = make(some_ends(), some_fields());
  for (unsigned bit = 0; bit < 5; ++bit) {
    EXPECT_FALSE(check(some_ends(), {made.iss, *made.echo ^ (1U << bit)}).has_value());
  }
  EXPECT_FALSE(check(some_ends(), {made.iss, {}}).has_value());
  const Made bare = make(some_ends(), {.mss = 1460});
  for (uint32_t bits = 0; bits < 32; ++bits) {
    EXPECT_FALSE(check(some_ends(), {bare.iss, bits}).has_value());
  }
}

TEST(SynCookie, T15_another_key_knows_none_of_them) {
  SeededRandom random(8);
  for (unsigned bit = 0; bit < 128; ++bit) {
    SipKey other = kKey;
    (bit < 64 ? other.k0 : other.k1) ^= uint64_t{1} << (bit % 64);
    const CookieEnds ends = random_ends(random);
    const Made made = make(ends, some_fields());
    EXPECT_FALSE(tcp::check_cookie(other, ends, made.iss, made.echo, kNow).has_value());
  }
}

// Tuple tag: 8 bits. All tags: 27 bits and the period; none of these hits.
TEST(SynCookie, T15_guesses_fail_and_are_nearly_all_called_forged) {
  SeededRandom random(9);
  constexpr uint32_t kGuesses = 1 << 17;
  uint32_t forged = 0, other = 0;
  for (uint32_t i = 0; i < kGuesses; ++i) {
    const auto checked = check(some_ends(), {Seq(random.next_u32()), {}});
    ASSERT_FALSE(checked.has_value());
    checked.error() == CookieRefusal::forged ? ++forged : ++other;
  }
  EXPECT_EQ(forged + other, kGuesses);
  EXPECT_NEAR(other, kGuesses / 256, 100);
}

// T-8: as unpredictable as any initial number, from one peer's ports too.
TEST(SynCookie, T8_every_bit_is_set_half_of_the_time) {
  constexpr int kCookies = 4000;
  std::array<int, 32> set{};
  for (int i = 0; i < kCookies; ++i) {
    CookieEnds ends = some_ends();
    ends.remote.port = static_cast<uint16_t>(1024 + i);
    const uint32_t value = make(ends, some_fields()).iss.value();
    for (unsigned bit = 0; bit < 32; ++bit) set[bit] += static_cast<int>(value >> bit & 1);
  }
  for (const int count : set) EXPECT_NEAR(count, kCookies / 2, 200);
}

}  // namespace
}  // namespace nobounce::test
