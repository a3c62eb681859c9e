// NewReno's arithmetic (RFC 5681, 6582, 6928).
#include <algorithm>

#include "tcp/congestion.hpp"

namespace nobounce::tcp {

uint32_t Congestion::initial_window(uint32_t mss) noexcept {
  return std::min(10 * mss, std::max(2 * mss, uint32_t{14600}));  // RFC 6928 2
}

void Congestion::start(uint32_t mss) noexcept {
  mss_ = mss;
  window_ = initial_window(mss);
  threshold_ = kWindowMax;
  counted_ = 0;
}

void Congestion::start_after_syn_loss(uint32_t mss) noexcept {
  start(mss);
  window_ = mss;
}

void Congestion::acknowledged(uint32_t bytes, Use use) noexcept {
  if (use == Use::limited_by_sender) return;
  if (window_ < threshold_) {
    window_ = std::min(kWindowMax, window_ + std::min(bytes, 2 * mss_));
    return;
  }
  // One MSS for each window's worth of bytes (RFC 3465 2.1).
  counted_ = std::min(kWindowMax, counted_ + bytes);
  if (counted_ >= window_) {
    counted_ -= window_;
    window_ = std::min(kWindowMax, window_ + mss_);
  }
}

uint32_t Congestion::half(uint32_t flight_bytes) const noexcept {
  return std::max(flight_bytes / 2, 2 * mss_);
}

void Congestion::enter_recovery(uint32_t flight_bytes) noexcept {
  threshold_ = half(flight_bytes);
  window_ = threshold_ + 3 * mss_;
  counted_ = 0;
}

void Congestion::duplicate_in_recovery() noexcept {
  window_ = std::min(kWindowMax, window_ + mss_);
}

void Congestion::partial_in_recovery(uint32_t bytes) noexcept {
  window_ = window_ > bytes ? window_ - bytes : 0;
  window_ = std::max(window_ + (bytes >= mss_ ? mss_ : 0), mss_);
}

void Congestion::leave_recovery(uint32_t flight_bytes) noexcept {
  window_ = std::min(threshold_, std::max(flight_bytes, mss_) + mss_);
  counted_ = 0;
}

void Congestion::enter_paced_recovery(uint32_t flight_bytes) noexcept {
  threshold_ = half(flight_bytes);
  counted_ = 0;
}

void Congestion::leave_paced_recovery() noexcept {
  window_ = threshold_;
  counted_ = 0;
}

void Congestion::undo(const Congestion& before) noexcept {
  window_ = std::max(window_, before.window_);
  threshold_ = std::max(threshold_, before.threshold_);
}

void Congestion::timed_out(uint32_t flight_bytes, Timeout which) noexcept {
  if (which == Timeout::first) threshold_ = half(flight_bytes);
  window_ = mss_;
  counted_ = 0;
}

void Congestion::idle_restart() noexcept {
  window_ = std::min(window_, initial_window(mss_));
  counted_ = 0;
}

}  // namespace nobounce::tcp
