// A network namespace for one test: the body runs in a thread of its own that has left the process's
// namespace by unshare(2), so nothing has to be installed and nothing is left when the thread is gone.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "nobounce/address.hpp"

namespace nobounce::test {

// Why no TAP can be made here; nothing: it can.
inline std::optional<std::string> why_no_tap() {
  const UniqueFd tun(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  if (!tun.is_open()) return std::string("/dev/net/tun: ") + std::strerror(errno);
  std::optional<std::string> reason;
  std::thread([&reason] {
    if (::unshare(CLONE_NEWNET) != 0) {
      reason = std::string("no network namespace of its own: ") + std::strerror(errno);
    }
  }).join();
  return reason;
}

inline ifreq request_for(const std::string& name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  return request;
}

// The kernel's side, in the namespace of the calling thread.
class Host {
 public:
  Host() : control_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    // No neighbour discovery between the frames of a test.
    std::ofstream("/proc/sys/net/ipv6/conf/all/disable_ipv6") << 1;
    std::ofstream("/proc/sys/net/ipv6/conf/default/disable_ipv6") << 1;
  }

  void bring_up(const std::string& name) {
    ifreq request = request_for(name);
    ASSERT_EQ(::ioctl(control_.get(), SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    ASSERT_EQ(::ioctl(control_.get(), SIOCSIFFLAGS, &request), 0);
  }
  void bring_down(const std::string& name) {
    ifreq request = request_for(name);
    ASSERT_EQ(::ioctl(control_.get(), SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = static_cast<short>(request.ifr_flags & ~IFF_UP);
    ASSERT_EQ(::ioctl(control_.get(), SIOCSIFFLAGS, &request), 0);
  }
  [[nodiscard]] bool is_up(const std::string& name) {
    ifreq request = request_for(name);
    return ::ioctl(control_.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP);
  }
  [[nodiscard]] int mtu(const std::string& name) {
    ifreq request = request_for(name);
    return ::ioctl(control_.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : -1;
  }
  void set_queue_length(const std::string& name, int frames) {
    ifreq request = request_for(name);
    request.ifr_qlen = frames;
    ASSERT_EQ(::ioctl(control_.get(), SIOCSIFTXQLEN, &request), 0);
  }
  // 10.9.0.1/24.
  void set_address(const std::string& name) {
    ifreq request = request_for(name);
    sockaddr_in address = inet(kAddress, 0);
    std::memcpy(&request.ifr_addr, &address, sizeof address);
    ASSERT_EQ(::ioctl(control_.get(), SIOCSIFADDR, &request), 0);
    address = inet("255.255.255.0", 0);
    std::memcpy(&request.ifr_netmask, &address, sizeof address);
    ASSERT_EQ(::ioctl(control_.get(), SIOCSIFNETMASK, &request), 0);
  }
  // The same, with 10.9.0.2 at `peer`.
  void set_addresses(const std::string& name, const MacAddress& peer) {
    set_address(name);
    arpreq neighbour{};
    const sockaddr_in address = inet(kPeer, 0);
    std::memcpy(&neighbour.arp_pa, &address, sizeof address);
    neighbour.arp_ha.sa_family = ARPHRD_ETHER;
    std::memcpy(neighbour.arp_ha.sa_data, peer.bytes.data(), 6);
    neighbour.arp_flags = ATF_COM | ATF_PERM;
    std::strncpy(neighbour.arp_dev, name.c_str(), sizeof neighbour.arp_dev - 1);
    ASSERT_EQ(::ioctl(control_.get(), SIOCSARP, &neighbour), 0);
  }
  // Forgets what it knows of 10.9.0.2.
  void forget_neighbour(const std::string& name) {
    arpreq neighbour{};
    const sockaddr_in address = inet(kPeer, 0);
    std::memcpy(&neighbour.arp_pa, &address, sizeof address);
    std::strncpy(neighbour.arp_dev, name.c_str(), sizeof neighbour.arp_dev - 1);
    ::ioctl(control_.get(), SIOCDARP, &neighbour);
  }
  static void set_sysctl(const std::string& name, const std::string& value) {
    std::ofstream file("/proc/sys/net/" + name);
    file << value << std::flush;
    ASSERT_TRUE(file) << name;
  }
  void remove(const std::string& name) {
    const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    struct {
      nlmsghdr header;
      ifinfomsg link;
    } message{};
    message.header = {.nlmsg_len = sizeof message,
                      .nlmsg_type = RTM_DELLINK,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
                      .nlmsg_seq = 1,
                      .nlmsg_pid = 0};
    message.link.ifi_index = static_cast<int>(::if_nametoindex(name.c_str()));
    ASSERT_EQ(::send(netlink.get(), &message, sizeof message, 0),
              static_cast<ssize_t>(sizeof message));
    char answer[256];
    ASSERT_GT(::recv(netlink.get(), answer, sizeof answer, 0), 0);
  }
  // Frames the kernel dropped on their way out of the interface.
  [[nodiscard]] static uint64_t dropped(const std::string& name) {
    std::ifstream file("/proc/thread-self/net/dev");
    for (std::string line; std::getline(file, line);) {
      const size_t colon = line.find(name + ":");
      if (colon == std::string::npos) continue;
      std::istringstream numbers(line.substr(colon + name.size() + 1));
      uint64_t value = 0;
      for (int i = 0; i < 12; ++i) numbers >> value;  // the fourth of transmit
      return value;
    }
    return 0;
  }

  static constexpr const char* kAddress = "10.9.0.1";
  static constexpr const char* kPeer = "10.9.0.2";

  static sockaddr_in inet(const char* address, uint16_t port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    ::inet_pton(AF_INET, address, &result.sin_addr);
    return result;
  }
  [[nodiscard]] static UniqueFd bound(int type, uint16_t port) {
    UniqueFd fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
    const sockaddr_in address = inet(kAddress, port);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static void send_to(const UniqueFd& fd, uint16_t port, const void* data, size_t size) {
    const sockaddr_in to = inet(kPeer, port);
    EXPECT_EQ(::sendto(fd.get(), data, size, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(size));
  }

 private:
  UniqueFd control_;
};

inline bool wait_readable(int fd, int timeout_ms = 2000) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, timeout_ms) == 1;
}

inline void in_namespace(const std::function<void(Host&)>& body) {
  if (const auto reason = why_no_tap()) GTEST_SKIP() << *reason;
  std::thread([&body] {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    Host host;
    body(host);
  }).join();
}

}  // namespace nobounce::test
