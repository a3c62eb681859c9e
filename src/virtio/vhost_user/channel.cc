#include "virtio/vhost_user/channel.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

namespace nobounce::virtio::vhost_user {
namespace {

constexpr const char* kHintPeer =
    "is the other end a vhost-user back-end, and not busy with another front-end?";

using FdSpace = std::array<std::byte, CMSG_SPACE(wire::kVhostUserFdsMax * sizeof(int))>;

// Closes whatever fds came with a message; true when there were any.
bool close_received_fds(msghdr& message) noexcept {
  bool any = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      ::close(fd);
      any = true;
    }
  }
  return any;
}

}  // namespace

void Channel::shut_down() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

std::unexpected<Error> Channel::broken(wire::VhostUserRequest request, std::errc code,
                                       std::string cause, std::string hint) const {
  return fail(code, fmt::format("vhost-user {} on {}", to_string(request), path_), std::move(cause),
              std::move(hint));
}

Result<void> Channel::tell(wire::VhostUserRequest request, Bytes payload, std::span<const int> fds,
                           Acknowledge acknowledge, WaitBudget& budget) {
  const wire::VhostUserHeader header{.request = request,
                                     .reply = false,
                                     .need_reply = acknowledge == Acknowledge::yes,
                                     .size = static_cast<uint32_t>(payload.size())};
  if (auto sent = send(header, payload, fds, budget); !sent) return sent;
  if (acknowledge == Acknowledge::no) return {};
  std::array<std::byte, wire::VhostUserU64::kBytes> verdict;
  if (auto received = receive_reply(request, verdict, budget); !received) return received;
  if (wire::VhostUserU64::parse(verdict)->value == 0) return {};
  return broken(request, kRefused, "the back-end refused the message", "its own log says why");
}

Result<void> Channel::ask(wire::VhostUserRequest request, Bytes payload, MutableBytes reply,
                          WaitBudget& budget) {
  const wire::VhostUserHeader header{.request = request,
                                     .size = static_cast<uint32_t>(payload.size())};
  if (auto sent = send(header, payload, {}, budget); !sent) return sent;
  return receive_reply(request, reply, budget);
}

Result<void> Channel::send(const wire::VhostUserHeader& header, Bytes payload,
                           std::span<const int> fds, WaitBudget& budget) {
  NB_ASSERT(payload.size() <= wire::kVhostUserPayloadMax);
  NB_ASSERT(fds.size() <= wire::kVhostUserFdsMax);
  std::array<std::byte, wire::kVhostUserHeaderBytes + wire::kVhostUserPayloadMax> bytes;
  header.emit(bytes);
  std::copy(payload.begin(), payload.end(), bytes.begin() + wire::kVhostUserHeaderBytes);
  MutableBytes rest = MutableBytes(bytes).first(wire::kVhostUserHeaderBytes + payload.size());

  alignas(cmsghdr) FdSpace control{};
  while (!rest.empty()) {
    iovec part{rest.data(), rest.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent > 0) {
      rest = rest.subspan(static_cast<size_t>(sent));
      fds = {};  // they went with the first byte
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN && budget.wait(socket_.get(), POLLOUT)) continue;
    if (errno == EAGAIN) {
      return broken(header.request, std::errc::timed_out, "the back-end reads no messages",
                    kHintPeer);
    }
    return broken(header.request, static_cast<std::errc>(errno),
                  fmt::format("the message could not be sent: {}", std::strerror(errno)),
                  kHintPeer);
  }
  return {};
}

Result<void> Channel::receive_reply(wire::VhostUserRequest request, MutableBytes payload,
                                    WaitBudget& budget) {
  std::array<std::byte, wire::kVhostUserHeaderBytes> bytes;
  if (auto received = receive_exactly(request, bytes, budget); !received) return received;
  const auto header = wire::VhostUserHeader::parse(bytes);
  if (!header) {
    return broken(request, std::errc::protocol_error,
                  fmt::format("bad reply: {}", to_string(header.error())), kHintPeer);
  }
  if (header->request != request || !header->reply || header->need_reply) {
    return broken(request, std::errc::protocol_error,
                  fmt::format("the back-end sent something else instead of a reply (message {})",
                              static_cast<uint32_t>(header->request)),
                  kHintPeer);
  }
  if (header->size != payload.size()) {
    return broken(request, std::errc::protocol_error,
                  fmt::format("the reply has {} bytes instead of {}", header->size, payload.size()),
                  kHintPeer);
  }
  return receive_exactly(request, payload, budget);
}

Result<void> Channel::receive_exactly(wire::VhostUserRequest request, MutableBytes to,
                                      WaitBudget& budget) {
  while (!to.empty()) {
    if (!budget.wait(socket_.get(), POLLIN)) {
      return broken(request, std::errc::timed_out, "the back-end did not answer in time",
                    kHintPeer);
    }
    iovec part{to.data(), to.size()};
    alignas(cmsghdr) FdSpace control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) {
      return broken(request, static_cast<std::errc>(errno),
                    fmt::format("the reply could not be read: {}", std::strerror(errno)));
    }
    if (close_received_fds(message)) {
      return broken(request, std::errc::protocol_error,
                    "the reply came with file descriptors that nobody asked for");
    }
    if (got == 0) {
      return broken(request, std::errc::connection_reset, "the back-end closed the connection",
                    "its own log says why");
    }
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace nobounce::virtio::vhost_user
