// Every stand-alone fence of the project, by the hand-over it serves. Acquire and release on a
// single word are written at the word, with a label that names their partner.
#pragma once

#include <atomic>

namespace nobounce {

// Between "publish" and "does the other side want to be told?", and between "I want to be told" and
// "is there something already?". Both sides of a wake-up use it; one alone is not enough
// (VIRTIO 1.2 2.7.7, 2.7.10; x86 may pass a store with a later load).
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer does not model stand-alone fences; an RMW on one word orders the same way.
  static std::atomic<unsigned> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Keeps the compiler from re-reading or moving loads of shared memory across a copy-out (TM-1).
inline void compiler_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

// In a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace nobounce
