// Eventfds that came from the front-end: shared objects whose other end is not trusted (TM-86).
//
// The peer may clear O_NONBLOCK and fill the counter at any instant, so that a plain write blocks
// for ever. Three things keep the service thread alive:
//  1. adopt() accepts an eventfd and nothing else (a pipe or a file would behave otherwise).
//  2. signal() sets O_NONBLOCK again when it is gone, before it writes. A full counter is no error:
//     the guest has a notification it has not taken yet.
//  3. In the window between the two the write may still block: the watchdog, a thread that only ever
//     looks at one word, empties the counter after 100 ms and so lets the writer go.
// Kick events are never read at all: they are watched edge-triggered.
//
// Threads: PeerEvent by the service thread; SignalWatchdog has a thread of its own.
// Cost: signal() two system calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "backend/counters.hpp"
#include "base/assert.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::backend {

class SignalWatchdog {
 public:
  explicit SignalWatchdog(BackendCounters& counters);
  ~SignalWatchdog();
  SignalWatchdog(const SignalWatchdog&) = delete;
  SignalWatchdog& operator=(const SignalWatchdog&) = delete;

  // Around a write that may block.
  void enter(int fd) noexcept {
    sequence_.fetch_add(1, std::memory_order_relaxed);
    fd_.store(fd, std::memory_order_release);  // pairs with the load in look()
  }
  void leave() noexcept { fd_.store(-1, std::memory_order_release); }
  // An fd that was ever given to enter() is closed through here, so that the watchdog never reads
  // from a number that means another file by then.
  void close(UniqueFd fd) noexcept;
  // The thread sleeps without a time-out while no front-end is there.
  void set_active(bool active) noexcept;

 private:
  void run() noexcept;
  void look(uint64_t& seen) noexcept;

  BackendCounters& counters_;
  std::atomic<int> fd_{-1};
  std::atomic<uint64_t> sequence_{0};
  std::mutex lock_;
  std::condition_variable wake_;
  bool active_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

enum class Signalled : uint8_t { done, saturated, failed };

class PeerEvent {
 public:
  PeerEvent() = default;
  PeerEvent(PeerEvent&&) noexcept = default;
  PeerEvent& operator=(PeerEvent&& other) noexcept;
  ~PeerEvent() { reset(); }

  // Nothing when `fd` is not an eventfd (it is closed then). `watchdog` may be null in tests and
  // outlives the event.
  [[nodiscard]] static std::optional<PeerEvent> adopt(UniqueFd fd, SignalWatchdog* watchdog);

  [[nodiscard]] bool is_open() const noexcept { return fd_.is_open(); }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  Signalled signal() noexcept;
  void reset() noexcept;

 private:
  UniqueFd fd_;
  SignalWatchdog* watchdog_ = nullptr;
};

}  // namespace nobounce::backend
