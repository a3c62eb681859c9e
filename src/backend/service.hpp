// What lives on the guest port: the built-in peer (peer.hpp), or a test's own.
//
// One service a guest: made when the first pair's rings have started, destroyed before anything the
// guest gave is let go. The service owns the GuestPort.
// Threads: the back-end's service thread makes, drives and destroys it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/counters.hpp"
#include "backend/session.hpp"
#include "base/error.hpp"

namespace nobounce::backend {

class PortService {
 public:
  virtual ~PortService() = default;
  // One round of work; returns how much was done (0: idle).
  virtual size_t round() noexcept = 0;
  // Sleeps until there may be work or a wake fd is readable, at most `limit_ns`.
  virtual void sleep(uint64_t limit_ns) noexcept = 0;
  // The service has ended (the guest broke its rings): to be destroyed.
  [[nodiscard]] virtual bool is_down() const noexcept = 0;
};

struct ServicePlace {
  Session& session;
  BackendCounters& counters;
  std::span<const int> wake_fds;  // for GuestPortOptions
};

using ServiceFactory =
    std::move_only_function<Result<std::unique_ptr<PortService>>(const ServicePlace& place)>;

}  // namespace nobounce::backend
