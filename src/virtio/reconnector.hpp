// Opens a device again and again until it works, is refused for good, or nobody waits any more: the part
// of a reconnection that may block, on a thread of its own.
//
//   idle --request()--> wanted --attempts, paced--> made    --take()--> idle
//                                                   refused             (for ever)
//
//   state    whose move   what may be done
//   idle     device       request()
//   wanted   helper       open() is called; any failure but not_supported: again after the pace's delay
//   made     device       take()
//   refused  nobody       refusal() says why
//
// Pace: at once, then after 20 ms, doubling to 1 s between the beginnings of two attempts, for as long as
// it takes (C113). A device that held for less than a second goes on with the delay that was reached, so a
// back-end that accepts and hangs up cannot make us spin.
//
// Threads: request(), take(), refusal(), step() by the device's thread; they never block. The helper
// sleeps unless it is wanted, and ends, with whatever it waits for, when the Reconnector goes.
// Counters: "reconnect.attempts". Cost: what open() costs; nothing while idle.
// Spec: virtio.md 13; TM-25, TM-28; C113.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/counters.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "virtio/virtio_net.hpp"

namespace nobounce::virtio {

// When the next attempt begins.
class ReconnectPace {
 public:
  static constexpr uint64_t kDelayMinNs = 20 * kNsPerMs;
  static constexpr uint64_t kDelayMaxNs = kNsPerSecond;

  // The device is lost. `held_ns`: how long it had been there.
  void lost(uint64_t now_ns, uint64_t held_ns) noexcept {
    if (held_ns < kDelayMaxNs) return;
    delay_ns_ = 0;
    next_ns_ = now_ns;
  }
  void attempted(uint64_t begun_ns) noexcept {
    delay_ns_ = std::clamp(2 * delay_ns_, kDelayMinNs, kDelayMaxNs);
    next_ns_ = begun_ns + delay_ns_;
  }
  [[nodiscard]] uint64_t next_ns() const noexcept { return next_ns_; }

 private:
  uint64_t delay_ns_ = 0;
  uint64_t next_ns_ = 0;  // 0: at once
};

class Reconnector {
 public:
  // One attempt: connects and runs the handshake, within the bound of TM-25, and gives up as soon as
  // `cancel_fd` is readable. The error not_supported is final.
  using Open = std::move_only_function<Result<std::unique_ptr<VirtioNet>>(int cancel_fd)>;
  enum class Drive : uint8_t {
    thread,  // a helper
    caller,  // step(), for tests: with their clock, in their thread
  };

  static Result<std::unique_ptr<Reconnector>> create(Open open, std::string name, Clock& clock,
                                                     CounterRegistry& counters,
                                                     Drive drive = Drive::thread);
  ~Reconnector();
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

  // The device is lost. It had been there for `held_ns`.
  void request(uint64_t held_ns) noexcept;
  // The new one, once there is one; else null.
  [[nodiscard]] std::unique_ptr<VirtioNet> take() noexcept;
  // Why there will be none; null as long as there may be one. Valid as long as the Reconnector.
  [[nodiscard]] const char* refusal() const noexcept {
    return state_.load(std::memory_order_acquire) == State::refused ? refusal_.c_str() : nullptr;
  }
  // Without a thread: makes the attempt that is due.
  void step() noexcept;

  // Readable while take() or refusal() may have news that nobody has acknowledged.
  [[nodiscard]] int news_fd() const noexcept { return news_.get(); }
  void acknowledge() noexcept;

 private:
  enum class State : uint8_t { idle, wanted, made, refused };

  Reconnector(Open open, std::string name, Clock& clock, CounterRegistry& counters, Drive drive);
  void run() noexcept;
  [[nodiscard]] bool wait_for_request() noexcept;
  [[nodiscard]] bool wait_for_turn() noexcept;
  void attempt() noexcept;
  void failed(const Error& error) noexcept;
  void publish(State state) noexcept;

  Open open_;
  const std::string name_;  // of the device
  Clock& clock_;
  const Drive drive_;
  UniqueFd news_, request_, cancel_;  // eventfds
  std::atomic<State> state_{State::idle};
  // Handed over with state_.
  std::unique_ptr<VirtioNet> made_;
  std::string refusal_;
  ReconnectPace pace_;
  uint64_t lost_ns_ = 0;
  std::string told_;  // the last failure that was logged
  LogLimit log_limit_;
  SharedCounter attempts_;
  std::thread helper_;
};

}  // namespace nobounce::virtio
