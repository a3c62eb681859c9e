// A back-end that answers by the book, except where a test tells it otherwise. Its thread ends when
// the socket does.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.hpp"
#include "base/unique_fd.hpp"
#include "wire/vhost_user.hpp"
#include "wire/vring.hpp"

namespace nobounce::test {

inline sockaddr_un socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

struct ReceivedMessage {
  wire::VhostUserHeader header;
  std::vector<std::byte> payload;
  std::vector<int> fds;  // the back-end's to close
};

class ScriptedBackEnd {
 public:
  // What to send instead of the reply that would be right: bytes, fds to attach.
  struct Answer {
    std::vector<std::byte> bytes;
    int fd = -1;
    bool hang_up = false;
  };
  // Looks at each message that has an answer, and may change it. An empty answer is silence.
  using Script = std::function<void(const ReceivedMessage&, Answer&)>;

  uint64_t features = wire::kVersion1 | wire::kRingEventIdx | wire::kNetMrgRxbuf | wire::kNetCsum |
                      wire::kNetGuestCsum | wire::kNetMq | wire::kVhostUserProtocolFeatures |
                      wire::kVhostLogAll;
  uint64_t protocol = wire::kProtocolMq | wire::kProtocolReplyAck | wire::kProtocolLogShmfd;
  uint64_t queue_pairs = 4;
  std::array<std::byte, wire::kNetConfigBytes> config{};
  Script script;

  ~ScriptedBackEnd() { end(); }

  void listen(const std::string& path) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = socket_address(path);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread([this] {
      socket_ = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      connected_fd_ = socket_.get();
      serve();
    });
  }
  // As a client: tries until the server is there.
  void connect(const std::string& path) {
    thread_ = std::thread([this, path] {
      const sockaddr_un address = socket_address(path);
      for (int i = 0; i < 500; ++i) {
        socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0) {
          connected_fd_ = socket_.get();
          serve();
          return;
        }
        ::poll(nullptr, 0, 10);
      }
    });
  }
  // The connection is cut from this end.
  void hang_up() {
    if (const int fd = connected_fd_; fd >= 0) ::shutdown(fd, SHUT_RDWR);
  }
  void end() {
    if (listener_.is_open()) ::shutdown(listener_.get(), SHUT_RDWR);
    hang_up();
    if (thread_.joinable()) thread_.join();
    connected_fd_ = -1;
    socket_.reset();
    for (const ReceivedMessage& message : messages()) {
      for (const int fd : message.fds) ::close(fd);
    }
    messages_.clear();
  }
  void send_raw(Bytes bytes) { (void)!::write(socket_.get(), bytes.data(), bytes.size()); }

  [[nodiscard]] std::vector<ReceivedMessage> messages() {
    const std::lock_guard guard(lock_);
    return messages_;
  }
  [[nodiscard]] std::vector<ReceivedMessage> messages(wire::VhostUserRequest request) {
    std::vector<ReceivedMessage> found;
    for (const ReceivedMessage& message : messages()) {
      if (message.header.request == request) found.push_back(message);
    }
    return found;
  }

 private:
  void serve() {
    ReceivedMessage message;
    while (receive(message)) {
      {
        const std::lock_guard guard(lock_);
        messages_.push_back(message);
      }
      Answer answer{.bytes = right_answer(message)};
      if (script && !answer.bytes.empty()) script(message, answer);
      if (!answer.bytes.empty()) send(answer);
      if (answer.hang_up) hang_up();
    }
  }

  bool receive(ReceivedMessage& message) {
    message = {};
    std::array<std::byte, wire::kVhostUserHeaderBytes> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr received{};
    received.msg_iov = &part;
    received.msg_iovlen = 1;
    received.msg_control = control.data();
    received.msg_controllen = control.size();
    if (::recvmsg(socket_.get(), &received, MSG_WAITALL | MSG_CMSG_CLOEXEC) !=
        static_cast<ssize_t>(bytes.size())) {
      return false;
    }
    for (cmsghdr* rights = CMSG_FIRSTHDR(&received); rights != nullptr;
         rights = CMSG_NXTHDR(&received, rights)) {
      const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      message.fds.resize(count);
      std::memcpy(message.fds.data(), CMSG_DATA(rights), count * sizeof(int));
    }
    const auto header = wire::VhostUserHeader::parse(bytes);
    if (!header || !wire::check_request(*header, message.fds.size())) {
      ADD_FAILURE() << "the front-end broke the protocol";
      return false;
    }
    message.header = *header;
    message.payload.resize(header->size);
    return header->size == 0 || ::recv(socket_.get(), message.payload.data(), header->size,
                                       MSG_WAITALL) == static_cast<ssize_t>(header->size);
  }

  std::vector<std::byte> right_answer(const ReceivedMessage& message) {
    using enum wire::VhostUserRequest;
    switch (message.header.request) {
      case get_features:
        return reply(message, number(features));
      case get_protocol_features:
        return reply(message, number(protocol));
      case get_queue_num:
        return reply(message, number(queue_pairs));
      case get_status:
        return reply(message, number(status_));
      case set_status:
        status_ = static_cast<uint8_t>(wire::VhostUserU64::parse(message.payload)->value);
        break;
      case get_vring_base:
        return reply(message, message.payload);
      case get_config: {
        auto space = *wire::ConfigSpace::parse(message.payload);
        std::memcpy(space.content.data(), config.data(), config.size());
        std::vector<std::byte> bytes(space.bytes());
        space.emit(bytes);
        return reply(message, bytes);
      }
      default:
        break;
    }
    return message.header.need_reply ? reply(message, number(0)) : std::vector<std::byte>{};
  }
  static std::vector<std::byte> number(uint64_t value) {
    std::vector<std::byte> bytes(8);
    wire::VhostUserU64{value}.emit(bytes);
    return bytes;
  }
  static std::vector<std::byte> reply(const ReceivedMessage& message, Bytes payload) {
    std::vector<std::byte> bytes(wire::kVhostUserHeaderBytes);
    wire::VhostUserHeader{.request = message.header.request,
                          .reply = true,
                          .need_reply = false,
                          .size = static_cast<uint32_t>(payload.size())}
        .emit(bytes);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
  void send(const Answer& answer) {
    auto bytes = answer.bytes;
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (answer.fd >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &answer.fd, sizeof answer.fd);
    }
    (void)::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  }

  UniqueFd listener_;
  UniqueFd socket_;
  std::atomic<int> connected_fd_{-1};  // socket_'s, once connected: for the other thread
  std::thread thread_;
  std::mutex lock_;
  std::vector<ReceivedMessage> messages_;
  uint8_t status_ = 0;
};

}  // namespace nobounce::test
