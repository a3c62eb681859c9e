// Where front-ends come from: a socket path that we listen on, or one that we connect to.
//
//   role     the path                                     when the front-end left
//   server   made here; a stale file of a dead process    the next one is accepted from the backlog
//            is replaced, anything else is not touched
//   client   the front-end's; tried once a second         connected again
//
// One front-end at a time: the caller asks for the next when it has none.
//
// Threads: one. Nothing blocks.
// Spec: virtio.md 13; C113, C119.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::backend {

enum class Role : uint8_t { server, client };

class Listener {
 public:
  static constexpr uint64_t kRetryNs = 1'000'000'000;
  // A client that has never reached its front-end gives up after this long (C119).
  static constexpr uint64_t kFirstConnectNs = 4'000'000'000;

  static Result<Listener> open(std::string path, Role role, uint64_t now_ns);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();  // removes the socket file it made, if it is still that one

  // The fd that becomes readable when a front-end is there; -1 in the client's role.
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  // When next() is worth calling again without fd() having said so; UINT64_MAX in the server's role.
  [[nodiscard]] uint64_t next_try_ns() const noexcept { return next_try_ns_; }
  // A connected front-end; not open when there is none now.
  [[nodiscard]] Result<UniqueFd> next(uint64_t now_ns);

 private:
  Listener(std::string path, Role role) : path_(std::move(path)), role_(role) {}
  [[nodiscard]] Result<void> listen();
  [[nodiscard]] Result<UniqueFd> accept();
  [[nodiscard]] Result<UniqueFd> connect(uint64_t now_ns);

  std::string path_;
  Role role_;
  UniqueFd socket_;
  uint64_t device_ = 0;  // of the file we made
  uint64_t inode_ = 0;
  uint64_t next_try_ns_ = UINT64_MAX;
  uint64_t give_up_ns_ = 0;  // client: 0 once connected
  bool told_ = false;        // the user knows that we wait
};

}  // namespace nobounce::backend
