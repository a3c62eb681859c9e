// One front-end's control socket: bytes to messages and replies to bytes, nothing of their meaning.
//
// A message is read in two steps, each of which takes exactly what it needs: 12 bytes of header, then
// the payload the header announces, after header and fds were found sound (TM-73). Fds may come with
// the first byte only; too many, at another place, or cut off by the kernel is a fault, and every one
// that arrived is closed (TM-74). Nothing blocks: a front-end that sends half a message waits alone.
//
// Threads: one. Cost: two system calls a message.
// Spec: TM-73, TM-74; virtio.md 11, 14.1.
#pragma once

#include <cstdint>
#include <string>

#include "backend/session.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::backend {

enum class ReadResult : uint8_t {
  nothing,  // no complete message yet
  message,
  closed,  // the front-end left
  fault,   // fault() says what
};

class Connection {
 public:
  explicit Connection(UniqueFd socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  // On `message`, message() holds it until the next read().
  [[nodiscard]] ReadResult read();
  [[nodiscard]] Message& message() noexcept { return message_; }
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }
  // In one piece, without waiting. False: the front-end does not take its replies.
  [[nodiscard]] bool send(const Reply& reply) noexcept;

 private:
  [[nodiscard]] ReadResult read_header();
  [[nodiscard]] ReadResult read_payload();
  [[nodiscard]] ReadResult receive(MutableBytes to);
  [[nodiscard]] ReadResult fail(std::string reason);
  void begin_message() noexcept;

  UniqueFd socket_;
  Message message_;
  std::array<std::byte, wire::kVhostUserHeaderBytes> header_;
  size_t header_bytes_ = 0;   // so far
  size_t payload_bytes_ = 0;  // so far
  bool header_done_ = false;
  bool message_done_ = false;
  std::string fault_;
};

}  // namespace nobounce::backend
