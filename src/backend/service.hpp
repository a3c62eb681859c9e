// A network with room for one guest: what answers it is made when it comes and goes with it.
// The built-in peer (peer.hpp) is one, and so are tests' own.
//
// Threads: the back-end's service thread makes, drives and destroys everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/network.hpp"

namespace nobounce::backend {

// What lives on the guest port, which it owns.
class PortService {
 public:
  virtual ~PortService() = default;
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

[[nodiscard]] NetworkFactory one_guest(ServiceFactory services);

}  // namespace nobounce::backend
