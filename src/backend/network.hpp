// What is behind the device: the built-in peer, or a switch that joins guests, perhaps with a TAP.
//
//   join()    when a guest's first pair has started
//   leave()   before anything that guest gave is let go; nothing when it is not here
//   round()   moves frames for all of them
//   sleep()   until there may be work, at most so long
//
// Threads: the back-end's service thread makes, drives and destroys it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "backend/counters.hpp"
#include "backend/session.hpp"
#include "base/error.hpp"

namespace nobounce::backend {

class Network {
 public:
  virtual ~Network() = default;
  // Guests at a time; those beyond wait to be accepted.
  [[nodiscard]] virtual size_t guests_max() const noexcept = 0;
  // The session outlives the stay.
  [[nodiscard]] virtual Result<void> join(Session& session) = 0;
  virtual void leave(Session& session) noexcept = 0;
  // False: it never joined, or it broke its rings and must leave.
  [[nodiscard]] virtual bool serves(const Session& session) const noexcept = 0;
  // One round of work; returns how much was done (0: idle).
  virtual size_t round() noexcept = 0;
  // Returns early when the wake fd is readable.
  virtual void sleep(uint64_t limit_ns) noexcept = 0;
};

struct NetworkPlace {
  BackendCounters& counters;
  CounterRegistry& registry;
  int wake_fd;  // must end each sleep; outlives the network
};

using NetworkFactory =
    std::move_only_function<Result<std::unique_ptr<Network>>(const NetworkPlace& place)>;

}  // namespace nobounce::backend
