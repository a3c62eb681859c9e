// Eventfds that are shared with a peer that is not trusted (TM-86): of a back-end, those that came from
// the front-end; of a front-end, the kicks that it gave away.
//
// The peer may clear O_NONBLOCK and fill the counter at any instant, so that a plain write blocks
// for ever. Three things keep the signalling thread alive:
//  1. adopt() accepts an eventfd and nothing else (a pipe or a file would behave otherwise).
//  2. signal() sets O_NONBLOCK again when it is gone, before it writes. A full counter is no error:
//     the peer has a notification it has not taken yet.
//  3. In the window between the two the write may still block: the watchdog, a thread that only ever
//     looks at one word an event, empties the counter after at most 200 ms and so lets the writer go.
// What the peer signals through such an event is never read here: it is watched edge-triggered.
//
// Threads: one thread at a time for each PeerEvent, any number of threads for different ones on the
// same watchdog. adopt(), reset() and moving are for set-up and tear-down. SignalWatchdog has a thread
// of its own; set_active() from anywhere.
// Cost: signal() two system calls. The watchdog wakes ten times a second while it is active.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/assert.hpp"
#include "base/counters.hpp"
#include "base/unique_fd.hpp"

namespace nobounce {

class SignalWatchdog {
 public:
  // One event. enter() and leave() stand around a write that may block.
  class Watch {
   public:
    explicit Watch(int fd) noexcept : fd_(fd) {}
    void enter() noexcept { step(); }
    void leave() noexcept { step(); }

   private:
    friend SignalWatchdog;
    // One writing thread. Nothing else is handed over with it.
    void step() noexcept {
      sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    const int fd_;
    std::atomic<uint64_t> sequence_{0};  // odd: in the write
    uint64_t seen_ = 0;                  // the watchdog's
  };

  // `rescued` counts the writes that had to be let go.
  explicit SignalWatchdog(SharedCounter rescued);
  ~SignalWatchdog();
  SignalWatchdog(const SignalWatchdog&) = delete;
  SignalWatchdog& operator=(const SignalWatchdog&) = delete;

  void add(Watch& watch);
  // The fd of a watch that was added is closed through here, so that the watchdog never reads from a
  // number that means another file by then.
  void remove(Watch& watch, UniqueFd fd) noexcept;
  // The thread sleeps without a time-out while no peer is there.
  void set_active(bool active) noexcept;

 private:
  void run() noexcept;
  void look(Watch& watch) noexcept;

  SharedCounter rescued_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::vector<Watch*> watches_;
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
  std::unique_ptr<SignalWatchdog::Watch> watch_;  // there when the watchdog is
};

}  // namespace nobounce
