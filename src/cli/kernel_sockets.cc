#include "cli/kernel_sockets.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <fstream>

namespace nobounce::cli {
namespace {

constexpr int kBacklog = 16;
constexpr std::chrono::seconds kConnectTimeout{5};
const std::string kOperation = "use the kernel's TCP";

sockaddr_in inet(const std::string& address, uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

}  // namespace

Result<UniqueFd> kernel_listen(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in local = inet("0.0.0.0", port);
  if (!fd.is_open() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return fail_errno(fmt::format("{}: listen on port {}", kOperation, port));
  }
  return fd;
}

Result<UniqueFd> kernel_connect(const std::string& address, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.is_open()) limit_blocking(fd, kConnectTimeout);
  const sockaddr_in remote = inet(address, port);
  if (!fd.is_open() ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&remote), sizeof remote) != 0) {
    return fail_errno(fmt::format("{}: connect to {}:{}", kOperation, address, port));
  }
  return fd;
}

void limit_blocking(const UniqueFd& socket, std::chrono::milliseconds time) {
  const timeval limit{.tv_sec = time.count() / 1000, .tv_usec = time.count() % 1000 * 1000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bool kernel_send_all(int fd, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

std::string congestion_control(const UniqueFd& socket) {
  std::array<char, 17> name{};
  socklen_t size = name.size() - 1;
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return "?";
  return name.data();
}

std::string kernel_congestion_control() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  return file >> name ? name : "unknown congestion control";
}

Result<void> bring_up(const std::string& interface, const std::string& address) {
  const UniqueFd control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  const auto set = [&](unsigned long what, const std::string& value) {
    const sockaddr_in in = inet(value, 0);
    std::memcpy(&request.ifr_addr, &in, sizeof in);
    return ::ioctl(control.get(), what, &request) == 0;
  };
  if (!set(SIOCSIFADDR, address) || !set(SIOCSIFNETMASK, "255.255.255.0") ||
      ::ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) {
    return fail_errno(fmt::format("{}: set up {}", kOperation, interface));
  }
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (::ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) {
    return fail_errno(fmt::format("{}: bring up {}", kOperation, interface));
  }
  return {};
}

}  // namespace nobounce::cli
