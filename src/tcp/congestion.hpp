// Congestion control: how many bytes may be in flight.
//
// The connection reports events; what the window becomes is decided here. Loss detection is not
// here: ack.cc, recovery.cc and timers.cc say that something was lost and which phase begins. NewReno (RFC 5681,
// 6582, initial window RFC 6928) is the only algorithm so far; a further one is a second body of
// these calls chosen at connection set-up, so nothing outside this header may know the algorithm.
// Units: bytes. Growth is by bytes acknowledged, at most 2 MSS an ACK in slow start (RFC 3465), so
// that splitting ACKs gains nothing (T-48). Cost: O(1), no allocation.
// Spec: T-37, T-43, T-44, T-46, T-48.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nobounce::tcp {

class Congestion {
 public:
  static constexpr uint32_t kWindowMax = uint32_t{1} << 30;

  void start(uint32_t mss) noexcept;                   // initial window
  void start_after_syn_loss(uint32_t mss) noexcept;    // RFC 5681 3.1: one segment
  void set_mss(uint32_t mss) noexcept { mss_ = mss; }  // path MTU changed: window stays

  // New data acknowledged outside of recovery. `limited`: the window was in use (RFC 7661).
  enum class Use : uint8_t { limited_by_window, limited_by_sender };
  void acknowledged(uint32_t bytes, Use use) noexcept;

  // Three duplicates: halve, then inflate by what has left the network (RFC 5681 3.2).
  void enter_recovery(uint32_t flight_bytes) noexcept;
  void duplicate_in_recovery() noexcept;
  void partial_in_recovery(uint32_t bytes) noexcept;  // RFC 6582 3.2 step 3
  void leave_recovery(uint32_t flight_bytes) noexcept;

  // With SACK: the threshold falls at once, the window goes there as prr.hpp says, not by itself.
  void enter_paced_recovery(uint32_t flight_bytes) noexcept;
  void set_recovery_window(uint32_t bytes) noexcept { window_ = std::min(bytes, kWindowMax); }
  void leave_paced_recovery() noexcept;
  // The reduction since `before` was for nothing: not below what was then.
  void undo(const Congestion& before) noexcept;

  // `first`: the first expiry for this data; repeats keep the threshold (RFC 5681 3.1, eq. 4).
  enum class Timeout : uint8_t { first, repeated };
  void timed_out(uint32_t flight_bytes, Timeout which) noexcept;
  void idle_restart() noexcept;  // idle for more than one RTO: at most the initial window

  [[nodiscard]] uint32_t window() const noexcept { return window_; }
  [[nodiscard]] uint32_t threshold() const noexcept { return threshold_; }
  [[nodiscard]] static uint32_t initial_window(uint32_t mss) noexcept;

 private:
  [[nodiscard]] uint32_t half(uint32_t flight_bytes) const noexcept;

  uint32_t mss_ = 536;
  uint32_t window_ = 0;
  uint32_t threshold_ = kWindowMax;
  uint32_t counted_ = 0;  // bytes acknowledged towards the next MSS in congestion avoidance
};

}  // namespace nobounce::tcp
