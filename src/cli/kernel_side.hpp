// The Linux kernel's TCP as a far end: echo, discard and source services on kernel sockets, in a
// network namespace that lives as long as this object and of which nothing is left after it.
//
//   start()                a thread that has left the process's namespace by unshare(2)
//   netns()                the path by which another process makes a TAP in there
//   serve(tap, address)    gives that TAP an address, brings it up, opens the services
//
// Threads: one calls; one serves, and one more a connection. For demonstration and measurement:
// blocking sockets, copies like any kernel program's.
#pragma once

#include <memory>
#include <string>

#include "base/error.hpp"

namespace nobounce::cli {

class KernelSide {
 public:
  // Fails without CAP_SYS_ADMIN or /dev/net/tun.
  static Result<std::unique_ptr<KernelSide>> start();
  ~KernelSide();
  KernelSide(const KernelSide&) = delete;
  KernelSide& operator=(const KernelSide&) = delete;

  [[nodiscard]] const std::string& netns() const noexcept;
  [[nodiscard]] Result<void> serve(const std::string& tap, const std::string& address);

 private:
  struct State;
  explicit KernelSide(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// What the kernel's new connections use: "cubic", "bbr".
[[nodiscard]] std::string kernel_congestion_control();

}  // namespace nobounce::cli
