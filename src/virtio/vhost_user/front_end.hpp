// The vhost-user front-end: a Transport whose device is another process.
//
//   connect()          socket, SET_OWNER, features, protocol features, queue number
//   accept_features()  SET_FEATURES (and device status, where the back-end has it)
//   share()            SET_MEM_TABLE: the region's fd, at synthetic addresses
//   set_up_queue()     call, size, base, addresses, kick
//   start()            rings enabled, DRIVER_OK, one kick each
//   stop()             rings disabled, bases fetched (the back-end lets go), socket shut down
//
// With REPLY_ACK every message is acknowledged before the next; each reply is checked for request,
// flags and exact size, and no wait is longer than what is left of the deadline (TM-25, TM-77).
// Guest and user addresses of the memory table are both made up: no address of ours leaves the
// process (TM-63). Fds in replies are never accepted.
// MAC, MTU and link status come from the back-end where it offers CONFIG, else they are emulated
// here and not acknowledged to it.
//
// Kicks: an eventfd that the peer shares and can saturate or make blocking at any time; a saturated
// counter means that a kick is pending. A write that blocks nevertheless is ended by a watchdog
// thread, one a front-end (TM-86, base/peer_event.hpp): notify() of one queue is for one thread at a
// time.
//
// Threads and costs: see transport.hpp. failure() is one poll of the socket.
// Spec: virtio.md 11, 12.1, 14; TM-25, TM-63, TM-73, TM-74, TM-77, TM-86; C119.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/counters.hpp"
#include "virtio/transport.hpp"

namespace nobounce::virtio::vhost_user {

enum class Role : uint8_t { client, server };
[[nodiscard]] constexpr const char* name(Role role) noexcept {
  return role == Role::client ? "client" : "server";
}

struct FrontEndOptions {
  std::string path;
  Role role = Role::client;
  // For the connection; what is left of it, and at least a second, is for the handshake. Together at
  // most 5 s (TM-25).
  uint64_t deadline_ns = 4 * kNsPerSecond;
  // Of the deadline, at most this for the connection; 0: one try.
  uint64_t connect_max_ns = ~uint64_t{0};
  // Once it is readable every wait of set-up ends (those of stop() have a bound of their own); -1:
  // none. The caller's, open until set-up is done.
  int cancel_fd = -1;
  // Told to the back-end (NET_SET_MTU) where it wants to know, and reported as the device's when
  // the back-end has none of its own.
  std::optional<uint16_t> mtu = std::nullopt;
  // The peer made a kick block; the watchdog ended it.
  SharedCounter kicks_rescued = {};
};

[[nodiscard]] Result<std::unique_ptr<Transport>> connect(const FrontEndOptions& options);

}  // namespace nobounce::virtio::vhost_user
