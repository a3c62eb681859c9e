#include "backend/connection.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace nobounce::backend {

void Connection::begin_message() noexcept {
  for (UniqueFd& fd : message_.fds) fd.reset();
  message_.fd_count = 0;
  header_bytes_ = payload_bytes_ = 0;
  header_done_ = message_done_ = false;
}

ReadResult Connection::fail(std::string reason) {
  begin_message();
  fault_ = std::move(reason);
  return ReadResult::fault;
}

ReadResult Connection::read() {
  if (message_done_) begin_message();
  if (!header_done_) {
    if (const ReadResult result = read_header(); result != ReadResult::message) return result;
  }
  return read_payload();
}

ReadResult Connection::read_header() {
  while (header_bytes_ < header_.size()) {
    const ReadResult result = receive(MutableBytes(header_).subspan(header_bytes_));
    if (result != ReadResult::message) return result;
  }
  const auto header = wire::VhostUserHeader::parse(header_);
  if (!header) return fail(to_string(header.error()));
  if (const auto rule = wire::check_request(*header, message_.fd_count); !rule) {
    return fail(std::string(to_string(header->request)) + ": " + to_string(rule.error()));
  }
  message_.header = *header;
  header_done_ = true;
  return ReadResult::message;
}

ReadResult Connection::read_payload() {
  while (payload_bytes_ < message_.header.size) {
    const ReadResult result =
        receive(MutableBytes(message_.payload).first(message_.header.size).subspan(payload_bytes_));
    if (result != ReadResult::message) return result;
  }
  message_done_ = true;
  return ReadResult::message;
}

// One recvmsg of at most `to.size()` bytes; advances the part that is being read. `message` means
// that something came.
ReadResult Connection::receive(MutableBytes to) {
  // Room for one more than any message may carry: the kernel closes what does not fit and says so.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (wire::kVhostUserFdsMax + 1))];
  iovec data{to.data(), to.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? ReadResult::nothing : ReadResult::closed;
  }
  const bool first = !header_done_ && header_bytes_ == 0;
  bool surplus = false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      UniqueFd fd(number);
      if (first && message_.fd_count < message_.fds.size()) {
        message_.fds[message_.fd_count++] = std::move(fd);
      } else {
        surplus = true;  // and closed here
      }
    }
  }
  if (surplus || (message.msg_flags & MSG_CTRUNC) != 0) return fail("too many file descriptors");
  if (got == 0) return ReadResult::closed;
  (header_done_ ? payload_bytes_ : header_bytes_) += static_cast<size_t>(got);
  return ReadResult::message;
}

bool Connection::send(const Reply& reply) noexcept {
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), reply.bytes.data(), reply.size, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(reply.size);
}

}  // namespace nobounce::backend
