// Everything a stack owns, in the order it must go: handles of sockets keep it alive, so that pages
// they still hold have a home to return to.
#pragma once

#include <memory>
#include <thread>

#include "base/copies.hpp"
#include "base/counters.hpp"
#include "base/fork_mark.hpp"
#include "dma/dma_device.hpp"
#include "memory/private_arena.hpp"
#include "memory/shared_region.hpp"
#include "nobounce/stack.hpp"
#include "socket/shard.hpp"
#include "swiotlb/swiotlb.hpp"

namespace nobounce {

class StackCore {
 public:
  // In a child by fork(2) it is kept for ever: everything in it is the parent's to end (TM-87).
  static std::shared_ptr<StackCore> make();
  ~StackCore();
  // Ends the I/O thread and closes the device. Idempotent.
  void stop() noexcept;

  StackOptions options;
  std::unique_ptr<Clock> own_clock;
  std::unique_ptr<Random> own_random;
  std::unique_ptr<CounterRegistry> counters;
  std::unique_ptr<CopyLedger> copies;
  std::unique_ptr<SharedRegion> region;  // none for a device of memory alone
  std::unique_ptr<Swiotlb> swiotlb;
  std::unique_ptr<DmaDevice> dma;
  std::unique_ptr<PrivateArena> arena;
  std::unique_ptr<Shard> shard;
  std::thread io_thread;
  const ForkMark home;
  MacAddress mac;
  uint16_t mtu = 0;
};

// A moment after which a wait is over.
class Deadline {
 public:
  Deadline(Clock& clock, uint64_t timeout_ns) noexcept
      : clock_(clock),
        at_ns_(timeout_ns == Event::kForever ? Event::kForever : clock.now_ns() + timeout_ns) {}
  // What is left; 0 when it is over.
  [[nodiscard]] uint64_t left_ns() const noexcept {
    if (at_ns_ == Event::kForever) return Event::kForever;
    const uint64_t now = clock_.now_ns();
    return now < at_ns_ ? at_ns_ - now : 0;
  }

 private:
  Clock& clock_;
  uint64_t at_ns_;
};

[[nodiscard]] inline uint64_t to_ns(Timeout timeout) noexcept {
  if (!timeout) return Event::kForever;
  return timeout->count() < 0 ? 0 : static_cast<uint64_t>(timeout->count());
}

// Waits until `ready()` holds. False: the deadline passed. The stack going down signals the event.
template <class Ready>
[[nodiscard]] bool wait_until(SocketCore& core, const Deadline& deadline, Ready ready) noexcept {
  for (;;) {
    const uint32_t seen = core.event.prepare();
    if (ready()) return true;
    const uint64_t left = deadline.left_ns();
    if (left == 0 || core.shard.is_forked()) return false;
    core.shard.wait(core.event, seen, left);
  }
}

// Runs `body` on the shard with a context of the caller's and waits. False: the stack is down.
template <class Body>
[[nodiscard]] bool run_on_shard(Shard& shard, Body body) noexcept {
  ControlCall call;
  call.context = &body;
  call.body = [](Shard& on, void* context) noexcept { (*static_cast<Body*>(context))(on); };
  return shard.control(call);
}

// The handle goes: the shard ends the connection and takes the core back.
void close_core(SocketCore& core, bool abort) noexcept;

}  // namespace nobounce
