// A network namespace that lives as long as this object and of which nothing is left after it, with
// the Linux kernel's TCP in it: echo, discard and source services on kernel sockets.
//
//   start()                       a thread that has left the process's namespace by unshare(2)
//   netns()                       the path by which others bring interfaces in
//   run(work)                     in that thread: its sockets are the namespace's
//   set_up(interface, address)    gives an interface that is in there its address, brings it up
//   serve()                       opens the services, at every address there
//
// Threads: one calls; one is the resident, one accepts, and one more a connection. For demonstration
// and measurement: blocking sockets, copies like any kernel program's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.hpp"

namespace nobounce::cli {

// What the services, and the client beside ours, read and write at a time.
inline constexpr uint64_t kKernelPieceBytes = 256 << 10;

class KernelSide {
 public:
  // Fails without CAP_SYS_ADMIN.
  static Result<std::unique_ptr<KernelSide>> start();
  ~KernelSide();
  KernelSide(const KernelSide&) = delete;
  KernelSide& operator=(const KernelSide&) = delete;

  [[nodiscard]] const std::string& netns() const noexcept;
  // Returns when the work is done. No exception may leave it.
  void run(const std::function<void()>& work);
  [[nodiscard]] Result<void> set_up(const std::string& interface, const std::string& address);
  [[nodiscard]] Result<void> serve();  // once

 private:
  struct State;
  explicit KernelSide(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nobounce::cli
