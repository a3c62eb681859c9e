// Round-trip time and retransmission timeout (RFC 6298).
//
// The first sample sets SRTT = R and RTTVAR = R/2; later ones move them by 1/8 and 1/4. The timeout
// doubles with each expiry (backoff) until an acknowledgement of new data; it is never below
// rto_min nor above rto_max. Which samples are valid (Karn) is the caller's to know.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"

namespace nobounce::tcp {

class RttEstimator {
 public:
  static constexpr uint64_t kInitialRtoNs = kNsPerSecond;           // RFC 6298 2.1
  static constexpr uint64_t kAfterSynLossRtoNs = 3 * kNsPerSecond;  // RFC 6298 5.7
  static constexpr uint64_t kGranularityNs = kNsPerMs;
  static constexpr uint64_t kSampleMaxNs = 3600 * kNsPerSecond;  // above: absurd, dropped

  RttEstimator(uint64_t rto_min_ns, uint64_t rto_max_ns) noexcept
      : rto_min_ns_(rto_min_ns), rto_max_ns_(rto_max_ns), rto_ns_(kInitialRtoNs) {
    clamp();
  }

  void sample(uint64_t rtt_ns) noexcept {
    if (rtt_ns > kSampleMaxNs) return;
    if (!has_sample_) {
      has_sample_ = true;
      smoothed_ns_ = rtt_ns;
      variation_ns_ = rtt_ns / 2;
    } else {
      const uint64_t error = smoothed_ns_ > rtt_ns ? smoothed_ns_ - rtt_ns : rtt_ns - smoothed_ns_;
      variation_ns_ = variation_ns_ - variation_ns_ / 4 + error / 4;
      smoothed_ns_ = smoothed_ns_ - smoothed_ns_ / 8 + rtt_ns / 8;
    }
    rto_ns_ = smoothed_ns_ + std::max(kGranularityNs, 4 * variation_ns_);
    clamp();
  }
  // The SYN or SYN-ACK was lost: data starts with 3 s unless the handshake gave a sample.
  void syn_was_lost() noexcept {
    if (has_sample_) return;
    rto_ns_ = kAfterSynLossRtoNs;
    clamp();
  }

  void back_off() noexcept {
    if (backoff_ < 32) ++backoff_;
  }
  void progress() noexcept { backoff_ = 0; }

  [[nodiscard]] bool has_sample() const noexcept { return has_sample_; }
  [[nodiscard]] uint64_t smoothed_ns() const noexcept { return smoothed_ns_; }
  [[nodiscard]] uint64_t variation_ns() const noexcept { return variation_ns_; }
  [[nodiscard]] unsigned backoff() const noexcept { return backoff_; }
  // With the back-off applied.
  [[nodiscard]] uint64_t rto_ns() const noexcept { return backed_off(backoff_, rto_max_ns_); }
  [[nodiscard]] uint64_t backed_off(unsigned times, uint64_t cap_ns) const noexcept {
    uint64_t value = rto_ns_;
    for (unsigned i = 0; i < times && value < cap_ns; ++i) value *= 2;
    return std::min(value, cap_ns);
  }

 private:
  void clamp() noexcept { rto_ns_ = std::clamp(rto_ns_, rto_min_ns_, rto_max_ns_); }

  uint64_t rto_min_ns_;
  uint64_t rto_max_ns_;
  uint64_t rto_ns_;
  uint64_t smoothed_ns_ = 0;
  uint64_t variation_ns_ = 0;
  unsigned backoff_ = 0;
  bool has_sample_ = false;
};

}  // namespace nobounce::tcp
