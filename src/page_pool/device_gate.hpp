// Lets any thread use a device for a moment until the gate is closed; close() returns when the last
// of them is out. What the reference does with a grace period (PP-55).
//
// Cost: enter and leave one atomic operation each. close() spins: what is done inside is short.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace nobounce {

class DeviceGate {
 public:
  // True: inside, leave() is due. False: closed.
  [[nodiscard]] bool enter() noexcept {
    if ((word_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() noexcept { word_.fetch_sub(1, std::memory_order_release); }  // [leave]
  void close() noexcept {
    word_.fetch_or(kClosed, std::memory_order_acq_rel);
    while ((word_.load(std::memory_order_acquire) & ~kClosed) != 0)
      sched_yield();  // pairs w. [leave]
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  std::atomic<uint32_t> word_{0};  // kClosed, and how many are inside
};

}  // namespace nobounce
