// SYN cookies (T-15, RFC 4987 3.6): a half-open connection that the peer keeps for us, in the initial
// sequence number of our SYN-ACK. When the queue of half-open connections is full, the SYN-ACK is
// such a number; its acknowledgement proves that the sender hears what is sent to that address and
// gives the fields of its SYN back. Nothing is kept meanwhile.
//
//   31 30 | 29 .. 27  | 26 .. 19  | 18 .. 0      all of it XOR a mask of the 4-tuple, so that the
//   period| MSS index | tuple tag | SYN tag      number as a whole looks as random as any other ISN
//
// The tuple tag is the keyed hash of 4-tuple, period and fields; the SYN tag that of the peer's
// initial sequence number too. Two, because a cookie's acknowledgement may come first in a later
// segment, when the one before was lost: the place of that segment does not tell the peer's initial
// number, so it cannot be taken, but a reset would end an honest connection. The tuple tag tells it
// from a forgery: it is dropped in silence, and the peer sends the lost one again.
// With timestamps, the low 5 bits of the SYN-ACK's TSval are window scale (15: none) and SACK
// permitted; the peer echoes them. Both tags cover them. Without, neither can be used (as if not
// offered): there is no place to remember them.
//
// Invariants: 1. A forgery succeeds once in 2^28: 27 bits of tags, and of four values of the period
// field two are in time. 2. A cookie is good in its period and the next: at least one period, at most
// two. 3. The MSS that comes back is at most the one that went in. 4. A stamped TSval is never later
// than the clock's and at most 31 ticks earlier, so the connection's timestamps go on growing.
// It is not: a limit (who may send how many is the caller's), nor proof against replay: the same
// acknowledgement is good again while the cookie is (RFC 4987 has no cure without memory).
// Threads: pure functions on plain arguments. Cost: three SipHashes a cookie made or checked.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>

#include "base/clock.hpp"
#include "base/siphash.hpp"
#include "nobounce/address.hpp"
#include "tcp/seqnum.hpp"

namespace nobounce::tcp {

inline constexpr uint64_t kCookiePeriodNs = 64 * kNsPerSecond;
inline constexpr uint64_t kCookieLifeMaxNs = 2 * kCookiePeriodNs;

// Whose cookie: our end, the peer's, and the sequence number of its SYN.
struct CookieEnds {
  Endpoint local, remote;
  Seq irs;
};

// What of the peer's SYN a cookie carries.
struct CookieFields {
  uint16_t mss = 536;
  bool timestamps = false;
  std::optional<uint8_t> window_scale{};  // at most 14
  bool sack_permitted = false;
  friend bool operator==(const CookieFields&, const CookieFields&) = default;
};

enum class CookieRefusal : uint8_t {
  unasked,    // no cookie was sent in time (the caller's finding)
  forged,     // not ours: bits, 4-tuple, options or key differ
  expired,    // ours, and too old
  misplaced,  // ours, but the segment is not the one behind the SYN
};

// The part of `offered` that comes back. The SYN-ACK must offer no more than this.
[[nodiscard]] CookieFields carried_by_cookie(const CookieFields& offered) noexcept;

// Our initial sequence number. `fields` as carried_by_cookie() gave them.
[[nodiscard]] Seq make_cookie(const SipKey& key, const CookieEnds& ends, const CookieFields& fields,
                              uint64_t now_ns) noexcept;
// The TSval for the SYN-ACK, from the clock's.
[[nodiscard]] uint32_t stamp_cookie(uint32_t timestamp, const CookieFields& fields) noexcept;

// `cookie`: the acknowledged number less one; `ends.irs`: the segment's less one; `echo`: its TSecr.
[[nodiscard]] std::expected<CookieFields, CookieRefusal> check_cookie(const SipKey& key,
                                                                      const CookieEnds& ends,
                                                                      Seq cookie,
                                                                      std::optional<uint32_t> echo,
                                                                      uint64_t now_ns) noexcept;

}  // namespace nobounce::tcp
