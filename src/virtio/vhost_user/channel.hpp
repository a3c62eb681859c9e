// Messages over the front-end's socket: one request, one reply, never more than one outstanding.
//
// Header, payload and fds leave in one sendmsg (back-ends read the payload with one read). A reply
// is believed only when its request, flags and size are exactly those expected; anything else ends
// the connection (V3). Received fds are closed and refused (TM-77).
// Threads: one at a time. Blocks up to the budget. Allocates only for errors.
#pragma once

#include <span>
#include <string>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "virtio/vhost_user/wait_budget.hpp"
#include "wire/vhost_user.hpp"

namespace nobounce::virtio::vhost_user {

// tell(): the peer understood the message and does not want what it says. The talk may go on.
inline constexpr std::errc kRefused = std::errc::operation_not_permitted;

enum class Acknowledge : uint8_t { no, yes };  // need_reply: REPLY_ACK was negotiated

class Channel {
 public:
  Channel(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // No more messages; the peer sees the end. The fd stays valid until destruction.
  void shut_down() noexcept;

  // A request without a reply of its own; with `acknowledge` the peer's verdict is awaited.
  Result<void> tell(wire::VhostUserRequest request, Bytes payload, std::span<const int> fds,
                    Acknowledge acknowledge, WaitBudget& budget);
  // A request whose reply has the size of `reply`, which is filled.
  Result<void> ask(wire::VhostUserRequest request, Bytes payload, MutableBytes reply,
                   WaitBudget& budget);

 private:
  Result<void> send(const wire::VhostUserHeader& header, Bytes payload, std::span<const int> fds,
                    WaitBudget& budget);
  Result<void> receive_reply(wire::VhostUserRequest request, MutableBytes payload,
                             WaitBudget& budget);
  Result<void> receive_exactly(wire::VhostUserRequest request, MutableBytes to, WaitBudget& budget);
  [[nodiscard]] std::unexpected<Error> broken(wire::VhostUserRequest request, std::errc code,
                                              std::string cause, std::string hint = {}) const;

  UniqueFd socket_;
  std::string path_;
};

}  // namespace nobounce::virtio::vhost_user
