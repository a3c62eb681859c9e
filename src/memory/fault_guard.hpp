// The SIGBUS guard of TM-64: a fault in a watched range is answered with a private zero page.
//
// A peer that truncates its file, or the kernel when it has no page to give, makes any access to
// shared memory a SIGBUS. The guard's handler finds the range, maps a zeroed private page over the
// page that faulted, raises the range's flag and lets the access run again; what is read there is
// zeros, what is written there reaches nobody. A fault anywhere else goes to the handler that was
// there before, or to the default.
//
// Limits: a thread that blocks SIGBUS is killed by the kernel at such a fault; a handler that a
// program installs later replaces this one.
//
// Threads: watch and unwatch any (lock, set-up); the handler on whatever thread faulted, and it
// takes no lock, allocates nothing and calls nothing but mmap.
#pragma once

#include <atomic>
#include <cstddef>

namespace nobounce {

class FaultGuard {
 public:
  static constexpr size_t kRangesMax = 256;

  // Watches [base, base + bytes), whose mapping has pages of `page_bytes`. `broken` becomes true at
  // the first fault and stays valid until unwatch(). False when all places are taken.
  [[nodiscard]] static bool watch(std::byte* base, size_t bytes, size_t page_bytes,
                                  std::atomic<bool>& broken) noexcept;
  // Before the range is unmapped. No-op for a range that is not watched.
  static void unwatch(std::byte* base) noexcept;
};

}  // namespace nobounce
