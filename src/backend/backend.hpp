// The back-end: vhost-user devices in a process of their own, one a guest.
//
//   front-end -- unix socket --> Connection -> Session -> rings, memory map
//   guest     -- rings --------> GuestPort  -> Network: the built-in peer, a switch, a TAP
//
// One service thread does everything: front-ends, control messages, rings, the network. When there is
// nothing to do it spins for `spin_ns`, then arms the rings and sleeps; the sleep ends with a kick, a
// control message, a new front-end or the stop request. A front-end that leaves, breaks the protocol
// or is killed is forgotten wholly (port, rings, mappings, fds); the others do not notice. While the
// network has no room, front-ends wait in the socket's backlog.
//
// Threads: open() and run() by one thread (run() may be another than open()); counters by any.
// Cost: everything is allocated when a front-end comes and its rings start. A round costs one look
// at each guest's rings; control sockets are looked at together, every 64 rounds.
// Spec: TM-73..TM-79, TM-86, TM-87; virtio.md 11..14; C067, C113, C119.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "backend/connection.hpp"
#include "backend/counters.hpp"
#include "backend/listener.hpp"
#include "backend/network.hpp"
#include "backend/session.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/peer_event.hpp"
#include "netdev/impair_options.hpp"
#include "nobounce/address.hpp"

namespace nobounce::backend {

struct BackendOptions {
  std::vector<std::string> sockets;                      // paths of vhost-user sockets
  Role role = Role::server;                              // of all of them
  IpPrefix address{IpAddress::v4(10, 77, 0, 1), 24};     // of the peer
  MacAddress mac{{0x02, 0x6e, 0x62, 0x00, 0x00, 0x01}};  // of the peer
  MacAddress guest_mac{
      {0x02, 0x6e, 0x62, 0x00, 0x00, 0x02}};  // offered to the first guest, then upwards
  std::optional<uint16_t> mtu;  // offered to guests, and a TAP's; else the TAP's, else 1500
  uint16_t queue_pairs = 1;
  uint16_t queue_size_limit = 1024;  // power of two
  uint64_t feature_mask = ~uint64_t{0};
  std::string net = "peer";             // what is behind the device: peer, link, tap:NAME
  std::optional<ImpairOptions> impair;  // of the wire to each guest
  std::string netns;                    // of the TAP: a name below /run/netns, or a path
  bool once = false;                    // end when the first front-end has left
  uint64_t spin_ns = 8'000;
  bool isolate = false;  // no capabilities, not dumpable, system-call filter
  std::string counters;  // publish under this name ("" = not at all)
};

class Backend {
 public:
  static constexpr uint16_t kQueuePairsMax = 8;
  static constexpr size_t kGuestsMax = 64;

  // Checks the options, opens the sockets, makes the network and, with `isolate`, gives up what only
  // that needed; threads that are there already keep theirs. run() adds the system-call filter, under
  // which no thread can be started any more.
  static Result<std::unique_ptr<Backend>> open(const BackendOptions& options,
                                               NetworkFactory network);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Serves until stopped, or until the first front-end has left when `once`. An error ends it only
  // when nobody can ever be served.
  Result<void> run(std::stop_token stop);

  [[nodiscard]] CounterRegistry& registry() noexcept { return *registry_; }

 private:
  struct Guest;
  struct Door;

  Backend(const BackendOptions& options, std::unique_ptr<CounterRegistry> registry);

  [[nodiscard]] Result<void> open_doors();
  // New front-ends, control messages, the stop request. An error: nobody can ever be served.
  [[nodiscard]] Result<void> serve_control();
  [[nodiscard]] Result<void> look_at_doors();
  void watch_doors() noexcept;
  void meet(Door& door, UniqueFd socket);
  void part(Guest& guest, const std::string& why);
  void forget_parted();
  void read_messages(Guest& guest);
  void answer(Guest& guest);
  void serve_rings();
  void check_stay(Guest& guest);
  [[nodiscard]] uint64_t sleep_limit_ns();
  [[nodiscard]] size_t free_slot() const noexcept;

  const BackendOptions options_;
  std::unique_ptr<CounterRegistry> registry_;
  BackendCounters counters_;
  std::optional<SignalWatchdog> watchdog_;  // a thread: made when privileges are given up
  UniqueFd stop_event_;
  UniqueFd control_;  // epoll: stop event, doors, control sockets
  std::vector<Door> doors_;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<Guest>> guests_;  // in no order
  MonotonicClock clock_;
  LogLimit connect_limit_, part_limit_, refused_limit_, join_limit_;
  bool doors_watched_ = false;
  uint64_t rounds_ = 0;
  uint64_t idle_since_ns_ = 0;
};

// What `nobounce backend` does: `options.net` says what is behind the device.
Result<std::unique_ptr<Backend>> open_backend(const BackendOptions& options);

}  // namespace nobounce::backend
