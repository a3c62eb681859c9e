// Time comes from outside, everywhere: the real clock in a program, a manual one in tests.
#pragma once

#include <atomic>
#include <cstdint>

namespace nobounce {

inline constexpr uint64_t kNsPerUs = 1'000;
inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, never goes back. Any thread.
  [[nodiscard]] virtual uint64_t now_ns() noexcept = 0;
};

class MonotonicClock final : public Clock {
 public:
  [[nodiscard]] uint64_t now_ns() noexcept override;
};

class ManualClock final : public Clock {
 public:
  explicit ManualClock(uint64_t start_ns = kNsPerSecond) : now_ns_(start_ns) {}
  [[nodiscard]] uint64_t now_ns() noexcept override {
    return now_ns_.load(std::memory_order_relaxed);
  }
  void advance(uint64_t ns) noexcept { now_ns_.fetch_add(ns, std::memory_order_relaxed); }
  void set(uint64_t ns) noexcept { now_ns_.store(ns, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> now_ns_;
};

// CPU time used by the calling thread, ns. A system call.
[[nodiscard]] uint64_t thread_cpu_ns() noexcept;
// How often the calling thread could have gone on, and another got the core. A system call.
[[nodiscard]] uint64_t thread_forced_switches() noexcept;

}  // namespace nobounce
