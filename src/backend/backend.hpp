// The back-end: a vhost-user device in a process of its own, one guest at a time.
//
//   front-end -- unix socket --> Connection -> Session -> rings, memory map
//   guest     -- rings --------> GuestPort  -> PortService (the peer's stack)
//
// One service thread does everything: control messages, rings, the peer. When there is nothing to do
// it spins for `spin_ns`, then arms the rings and sleeps; the sleep ends with a kick, a control
// message or the stop request. A front-end that leaves, breaks the protocol or is killed is
// forgotten wholly (service, rings, mappings, fds), and the next one is served.
//
// Threads: open() and run() by one thread (run() may be another than open()); counters by any.
// Cost: everything is allocated when a front-end comes and its rings start.
// Spec: TM-73..TM-79, TM-86, TM-87; virtio.md 11..14; C067.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "backend/connection.hpp"
#include "backend/counters.hpp"
#include "backend/listener.hpp"
#include "backend/service.hpp"
#include "backend/session.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/peer_event.hpp"
#include "nobounce/address.hpp"

namespace nobounce::backend {

struct BackendOptions {
  std::string socket;  // path of the vhost-user socket
  Role role = Role::server;
  IpPrefix address{IpAddress::v4(10, 77, 0, 1), 24};           // of the peer
  MacAddress mac{{0x02, 0x6e, 0x62, 0x00, 0x00, 0x01}};        // of the peer
  MacAddress guest_mac{{0x02, 0x6e, 0x62, 0x00, 0x00, 0x02}};  // offered to the guest
  uint16_t mtu = 1500;
  uint16_t queue_pairs = 1;
  uint16_t queue_size_limit = 1024;  // power of two
  uint64_t feature_mask = ~uint64_t{0};
  bool once = false;  // end when the first front-end has left
  uint64_t spin_ns = 8'000;
  bool isolate = false;  // run_backend(): not dumpable, system-call filter
  std::string counters;  // publish under this name ("" = not at all)
};

class Backend {
 public:
  static constexpr uint16_t kQueuePairsMax = 8;

  // Checks the options and opens the socket. `services` makes what answers the guest.
  static Result<std::unique_ptr<Backend>> open(const BackendOptions& options,
                                               ServiceFactory services);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Serves until stopped, or until the first front-end has left when `once`. An error ends it only
  // when nobody can ever be served.
  Result<void> run(std::stop_token stop);

  [[nodiscard]] CounterRegistry& registry() noexcept { return *registry_; }

 private:
  struct Guest;

  Backend(const BackendOptions& options, ServiceFactory services, Listener listener,
          std::unique_ptr<CounterRegistry> registry, UniqueFd stop_event);

  Result<void> wait_for_front_end();
  void meet(UniqueFd socket);
  void part(const std::string& why);
  // False: the front-end is to be left (part() has been called).
  bool serve_control();
  bool answer();
  void serve_rings();
  void start_service();
  void sleep_on_control() const;

  const BackendOptions options_;
  ServiceFactory services_;
  std::unique_ptr<CounterRegistry> registry_;
  BackendCounters counters_;
  SignalWatchdog watchdog_;
  Listener listener_;
  UniqueFd stop_event_;
  MonotonicClock clock_;
  LogLimit connect_limit_, part_limit_, refused_limit_, service_limit_;
  std::unique_ptr<Guest> guest_;
};

// What `nobounce backend` does: opens, isolates the process when asked, serves with the built-in peer.
Result<void> run_backend(const BackendOptions& options, std::stop_token stop);

}  // namespace nobounce::backend
