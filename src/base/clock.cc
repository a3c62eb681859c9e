#include "base/clock.hpp"

#include <sys/resource.h>

#include <ctime>

namespace nobounce {
namespace {

uint64_t read_clock(clockid_t id) noexcept {
  timespec ts{};
  clock_gettime(id, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * kNsPerSecond + static_cast<uint64_t>(ts.tv_nsec);
}

}  // namespace

uint64_t MonotonicClock::now_ns() noexcept { return read_clock(CLOCK_MONOTONIC); }

uint64_t thread_cpu_ns() noexcept { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

uint64_t thread_forced_switches() noexcept {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

}  // namespace nobounce
