// The Linux kernel's TCP/IP on a TAP as the far end: a namespace of its own, our back-end in a thread,
// one guest's stack. Kernel sockets are made by the test's body, which runs inside the namespace.
#pragma once

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "nobounce/stack.hpp"
#include "support/namespace.hpp"
#include "support/wire_link.hpp"

namespace nobounce::test {

using namespace std::chrono_literals;

inline constexpr const char* kTapName = "nbk0";
inline constexpr IpAddress kKernel = IpAddress::v4(10, 9, 0, 1);
inline constexpr IpAddress kGuest = IpAddress::v4(10, 9, 0, 2);

// Every byte follows from its place.
inline std::byte byte_at(uint64_t seed, size_t at) {
  return static_cast<std::byte>((seed * 131 + at * 7 + (at >> 8) * 13 + (at >> 16) * 5) & 0xff);
}
inline void fill(uint64_t seed, size_t at, MutableBytes to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = byte_at(seed, at + i);
}
[[nodiscard]] inline bool is_right(uint64_t seed, size_t at, Bytes bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != byte_at(seed, at + i)) return false;
  }
  return true;
}

// ---- the kernel's sockets -----------------------------------------------------------------------

inline void limit_waiting(const UniqueFd& fd) {
  const timeval limit{20, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}
[[nodiscard]] inline UniqueFd kernel_listen(uint16_t port, int backlog = 128) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = Host::inet(Host::kAddress, port);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), backlog), 0);
  limit_waiting(fd);
  return fd;
}
[[nodiscard]] inline UniqueFd kernel_accept(const UniqueFd& listener) {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(fd.is_open()) << std::strerror(errno);
  if (fd.is_open()) limit_waiting(fd);
  return fd;
}
[[nodiscard]] inline UniqueFd kernel_connect(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_waiting(fd);
  const sockaddr_in to = Host::inet(Host::kPeer, port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fd.reset();
  return fd;
}
inline void kernel_send(const UniqueFd& fd, uint64_t seed, size_t bytes, size_t piece = 1 << 16) {
  ByteVector out(piece);
  for (size_t at = 0; at < bytes;) {
    const size_t part = std::min(piece, bytes - at);
    fill(seed, at, MutableBytes(out).first(part));
    const ssize_t sent = ::send(fd.get(), out.data(), part, MSG_NOSIGNAL);
    ASSERT_GT(sent, 0) << "after " << at << ": " << std::strerror(errno);
    at += static_cast<size_t>(sent);
  }
}
// To the end of the stream; returns how many bytes.
inline size_t kernel_receive(const UniqueFd& fd, uint64_t seed) {
  ByteVector in(1 << 16);
  for (size_t at = 0;;) {
    const ssize_t got = ::recv(fd.get(), in.data(), in.size(), 0);
    EXPECT_GE(got, 0) << "after " << at << ": " << std::strerror(errno);
    if (got <= 0) return at;
    EXPECT_TRUE(is_right(seed, at, Bytes(in).first(static_cast<size_t>(got)))) << "from " << at;
    at += static_cast<size_t>(got);
  }
}

// ---- ours ---------------------------------------------------------------------------------------

inline void limit_waiting(TcpSocket& socket) {
  socket.set_send_timeout(20s);
  socket.set_receive_timeout(20s);
}
inline void guest_send(TcpSocket& socket, uint64_t seed, size_t bytes, size_t piece = 1 << 16) {
  ByteVector out(piece);
  for (size_t at = 0; at < bytes;) {
    const size_t part = std::min(piece, bytes - at);
    fill(seed, at, MutableBytes(out).first(part));
    const auto sent = socket.send(Bytes(out).first(part));
    ASSERT_TRUE(sent) << "after " << at << ": " << static_cast<int>(sent.error());
    at += *sent;
  }
}
inline size_t guest_receive(TcpSocket& socket, uint64_t seed) {
  ByteVector in(1 << 16);
  for (size_t at = 0;;) {
    const auto got = socket.recv(in);
    EXPECT_TRUE(got) << "after " << at << ": " << static_cast<int>(got.error());
    if (!got || *got == 0) return at;
    EXPECT_TRUE(is_right(seed, at, Bytes(in).first(*got))) << "from " << at;
    at += *got;
  }
}

struct KernelOptions {
  Mode mode = Mode::nocopy;
  std::optional<uint16_t> mtu = {};
  uint64_t feature_mask = ~uint64_t{0};  // of the device that the guest sees
  std::optional<ImpairOptions> impair = {};
  uint32_t receive_buffer = 1 << 20;
};

class KernelFixture {
 public:
  explicit KernelFixture(Host& host, const KernelOptions& options = {}) {
    set_log_level(LogLevel::quiet);
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
    backend::BackendOptions device;
    device.sockets = {directory_ + "/vhost.sock"};
    device.net = std::string("tap:") + kTapName;
    device.mtu = options.mtu;
    device.feature_mask = options.feature_mask;
    device.impair = options.impair;
    auto opened = backend::open_backend(device);
    EXPECT_TRUE(opened) << opened.error().to_string();
    backend_ = std::move(*opened);
    thread_ = std::jthread([this](std::stop_token token) { result_ = backend_->run(token); });
    host.set_address(kTapName);
    host.bring_up(kTapName);

    StackOptions guest;
    guest.net = "vhost-user:" + device.sockets[0];
    guest.address = {kGuest, 24};
    guest.mode = options.mode;
    guest.pool_bytes = 32 << 20;
    guest.private_bytes = 32 << 20;
    guest.queue_size = 256;
    guest.connections_max = 1024;
    guest.send_buffer = 1 << 20;
    guest.receive_buffer = options.receive_buffer;
    auto made = Stack::open(guest);
    EXPECT_TRUE(made) << made.error().to_string();
    if (made) stack = std::move(*made);
  }
  ~KernelFixture() {
    stack.reset();
    thread_.request_stop();
    thread_.join();
    EXPECT_TRUE(result_);
    backend_.reset();
    set_log_level(LogLevel::info);
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] uint64_t device_count(const std::string& name) const {
    return backend_->registry().value(name);
  }
  [[nodiscard]] TcpSocket connect(uint16_t port, Timeout timeout = 10s) const {
    auto socket = stack->tcp_connect({kKernel, port}, timeout);
    EXPECT_TRUE(socket) << static_cast<int>(socket.error());
    if (!socket) return {};
    limit_waiting(*socket);
    return std::move(*socket);
  }

  std::unique_ptr<Stack> stack;

 private:
  std::string directory_;
  std::unique_ptr<backend::Backend> backend_;
  std::jthread thread_;
  Result<void> result_;
};

// Both directions at once on one connection, ours first: we send, half-close and read to the end.
inline void exchange(TcpSocket& ours, const UniqueFd& theirs, size_t bytes) {
  std::jthread kernel_sender([&] {
    kernel_send(theirs, 2, bytes);
    EXPECT_EQ(::shutdown(theirs.get(), SHUT_WR), 0);
  });
  std::jthread kernel_receiver([&] { EXPECT_EQ(kernel_receive(theirs, 1), bytes); });
  std::jthread sender([&] {
    guest_send(ours, 1, bytes);
    EXPECT_TRUE(ours.shutdown(Shutdown::send));
  });
  EXPECT_EQ(guest_receive(ours, 2), bytes);
}

// One transfer each way with each end as the server.
inline void exchange_both_roles(KernelFixture& fixture, size_t bytes) {
  {
    const UniqueFd listener = kernel_listen(7001);
    TcpSocket ours = fixture.connect(7001);
    ASSERT_TRUE(ours.is_open());
    const UniqueFd theirs = kernel_accept(listener);
    exchange(ours, theirs, bytes);
  }
  auto listener = fixture.stack->tcp_listen({kGuest, 7002});
  ASSERT_TRUE(listener);
  const UniqueFd theirs = kernel_connect(7002);
  ASSERT_TRUE(theirs.is_open()) << std::strerror(errno);
  auto ours = listener->accept(10s);
  ASSERT_TRUE(ours);
  limit_waiting(*ours);
  exchange(*ours, theirs, bytes);
}

}  // namespace nobounce::test
