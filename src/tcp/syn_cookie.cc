#include "tcp/syn_cookie.hpp"

#include <array>
#include <cstring>

namespace nobounce::tcp {
namespace {

// Rounded down to one of these: the floor (T-52), what holds without the option (IPv4, IPv6),
// tunnels, PPPoE, Ethernet, jumbo frames.
constexpr std::array<uint16_t, 8> kMss{88, 536, 1220, 1300, 1400, 1440, 1460, 8960};

constexpr unsigned kPeriodShift = 30, kMssShift = 27, kTupleTagShift = 19;
constexpr uint32_t kPeriodMask = 3, kMssMask = 7, kTupleTagMask = 0xff, kSynTagMask = 0x7ffff;
constexpr uint64_t kPeriodsGood = 2;
static_assert(kMss.size() == kMssMask + 1);

constexpr uint32_t kScaleMask = 0xf, kScaleNone = 0xf, kScaleMax = 14;
constexpr uint32_t kSackBit = 0x10;
constexpr uint32_t kOptionMask = kScaleMask | kSackBit;
constexpr uint32_t kWithTimestamps = 0x80;  // in the tags' option byte, beside the five bits

uint32_t mss_index(uint16_t mss) noexcept {
  uint32_t index = 0;
  while (index < kMssMask && kMss[index + 1] <= mss) ++index;
  return index;
}

uint32_t option_bits(const CookieFields& fields) noexcept {
  return fields.window_scale.value_or(kScaleNone) | (fields.sack_permitted ? kSackBit : 0);
}

// Keyed hashes over one buffer: what is hashed grows, and the first byte tells which it is.
class Tags {
 public:
  Tags(const SipKey& key, const CookieEnds& ends) noexcept : key_(key) {
    std::memcpy(&bytes_[1], ends.local.address.bytes().data(), 16);
    std::memcpy(&bytes_[17], ends.remote.address.bytes().data(), 16);
    store_be<uint16_t>(bytes_, 33, ends.local.port);
    store_be<uint16_t>(bytes_, 35, ends.remote.port);
    store_be<uint32_t>(bytes_, kFieldsEnd, ends.irs.value());
  }
  uint32_t mask() noexcept { return hash(1, kTupleEnd); }
  // The cookie's low 27 bits.
  uint32_t tags(uint64_t period, uint32_t index, uint32_t options) noexcept {
    store_be<uint64_t>(bytes_, kTupleEnd, period);
    store_be<uint8_t>(bytes_, kTupleEnd + 8, static_cast<uint8_t>(index));
    store_be<uint8_t>(bytes_, kTupleEnd + 9, static_cast<uint8_t>(options));
    return (hash(2, kFieldsEnd) & kTupleTagMask) << kTupleTagShift |
           (hash(3, kSynEnd) & kSynTagMask);
  }

 private:
  static constexpr size_t kTupleEnd = 37, kFieldsEnd = kTupleEnd + 10, kSynEnd = kFieldsEnd + 4;

  uint32_t hash(uint8_t which, size_t size) noexcept {
    store_be<uint8_t>(bytes_, 0, which);
    return static_cast<uint32_t>(siphash(key_, Bytes(bytes_).first(size)));
  }

  const SipKey& key_;
  std::array<std::byte, kSynEnd> bytes_{};
};

}  // namespace

CookieFields carried_by_cookie(const CookieFields& offered) noexcept {
  CookieFields carried;
  carried.mss = kMss[mss_index(offered.mss)];
  if (!offered.timestamps) return carried;
  carried.timestamps = true;
  carried.window_scale = offered.window_scale;
  carried.sack_permitted = offered.sack_permitted;
  return carried;
}

Seq make_cookie(const SipKey& key, const CookieEnds& ends, const CookieFields& fields,
                uint64_t now_ns) noexcept {
  NB_ASSERT(fields == carried_by_cookie(fields));
  NB_ASSERT(fields.window_scale.value_or(0) <= kScaleMax);
  const uint64_t period = now_ns / kCookiePeriodNs;
  const uint32_t index = mss_index(fields.mss);
  const uint32_t options = fields.timestamps ? kWithTimestamps | option_bits(fields) : 0;
  Tags tags(key, ends);
  return Seq(tags.mask() ^ (static_cast<uint32_t>(period & kPeriodMask) << kPeriodShift |
                            index << kMssShift | tags.tags(period, index, options)));
}

uint32_t stamp_cookie(uint32_t timestamp, const CookieFields& fields) noexcept {
  const uint32_t stamped = (timestamp & ~kOptionMask) | option_bits(fields);
  return static_cast<int32_t>(stamped - timestamp) > 0 ? stamped - (kOptionMask + 1) : stamped;
}

std::expected<CookieFields, CookieRefusal> check_cookie(const SipKey& key, const CookieEnds& ends,
                                                        Seq cookie, std::optional<uint32_t> echo,
                                                        uint64_t now_ns) noexcept {
  Tags tags(key, ends);
  const uint32_t plain = cookie.value() ^ tags.mask();
  const uint64_t current = now_ns / kCookiePeriodNs;
  const uint64_t age = (current - (plain >> kPeriodShift)) & kPeriodMask;
  const uint32_t index = plain >> kMssShift & kMssMask;
  const uint32_t bits = echo.value_or(0) & kOptionMask;
  const uint32_t wrong = plain ^ tags.tags(current - age, index, echo ? kWithTimestamps | bits : 0);
  if ((wrong >> kTupleTagShift & kTupleTagMask) != 0) {
    return std::unexpected(CookieRefusal::forged);
  }
  if (age >= kPeriodsGood) return std::unexpected(CookieRefusal::expired);
  if ((wrong & kSynTagMask) != 0) return std::unexpected(CookieRefusal::misplaced);

  CookieFields fields;
  fields.mss = kMss[index];
  fields.timestamps = echo.has_value();
  if (fields.timestamps) {
    if ((bits & kScaleMask) <= kScaleMax) {
      fields.window_scale = static_cast<uint8_t>(bits & kScaleMask);
    }
    fields.sack_permitted = (bits & kSackBit) != 0;
  }
  return fields;
}

}  // namespace nobounce::tcp
