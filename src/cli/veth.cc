#include "cli/veth.hpp"

#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::cli {
namespace {

// A netlink request as it grows: attributes behind the fixed parts, some of them within others.
class Request {
 public:
  explicit Request(uint16_t type) {
    header_.nlmsg_type = type;
    header_.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    bytes_.resize(NLMSG_HDRLEN);
  }

  template <class T>
  void put(const T& value) {
    append(as_bytes(value));
  }
  void attribute(uint16_t type, Bytes value) {
    const size_t start = open(type);
    append(value);
    close(start);
  }
  void attribute(uint16_t type, std::string_view text) {
    attribute(type, std::as_bytes(std::span(text)));
  }
  template <class T>
  void number(uint16_t type, T value) {
    attribute(type, as_bytes(value));
  }
  // Everything up to close() is within it.
  [[nodiscard]] size_t open(uint16_t type) {
    const size_t start = bytes_.size();
    put(nlattr{.nla_len = 0, .nla_type = type});
    return start;
  }
  void close(size_t start) {
    const auto length = static_cast<uint16_t>(bytes_.size() - start);
    std::memcpy(bytes_.data() + start + offsetof(nlattr, nla_len), &length, sizeof length);
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }
  [[nodiscard]] Bytes finish() {
    header_.nlmsg_len = static_cast<uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &header_, sizeof header_);
    return bytes_;
  }

 private:
  template <class T>
  static Bytes as_bytes(const T& value) {
    return std::as_bytes(std::span(&value, 1));
  }
  void append(Bytes value) {
    for (const std::byte byte : value) bytes_.push_back(byte);
  }

  nlmsghdr header_{};
  std::vector<std::byte> bytes_;
};

// Sends it, and waits for the kernel's word.
Result<void> ask(Request& request, const std::string& operation) {
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!netlink.is_open()) return fail_errno(operation);
  const Bytes bytes = request.finish();
  if (::send(netlink.get(), bytes.data(), bytes.size(), 0) < 0) return fail_errno(operation);
  std::array<std::byte, 4096> answer;
  const ssize_t got = ::recv(netlink.get(), answer.data(), answer.size(), 0);
  if (got < 0) return fail_errno(operation);
  nlmsgerr verdict{};
  if (static_cast<size_t>(got) < NLMSG_HDRLEN + sizeof verdict) {
    return fail(std::errc::bad_message, operation, "the kernel's answer is too short");
  }
  std::memcpy(&verdict, answer.data() + NLMSG_HDRLEN, sizeof verdict);
  if (verdict.error == 0) return {};
  errno = -verdict.error;
  return fail_errno(operation, verdict.error == -EOPNOTSUPP
                                   ? "load the kernel's veth module: modprobe veth"
                                   : "");
}

}  // namespace

Result<void> make_veth(const VethOptions& options) {
  const std::string operation = "make a veth pair";
  const UniqueFd other(::open(options.netns.c_str(), O_RDONLY | O_CLOEXEC));
  if (!other.is_open()) return fail_errno(operation + ": open " + options.netns);
  Request request(RTM_NEWLINK);
  request.put(ifinfomsg{});
  request.attribute(IFLA_IFNAME, options.here);
  request.number(IFLA_MTU, uint32_t{options.mtu});
  const size_t info = request.open(IFLA_LINKINFO);
  request.attribute(IFLA_INFO_KIND, "veth");
  const size_t data = request.open(IFLA_INFO_DATA);
  const size_t peer = request.open(VETH_INFO_PEER);
  request.put(ifinfomsg{});
  request.attribute(IFLA_IFNAME, options.there);
  request.number(IFLA_MTU, uint32_t{options.mtu});
  request.number(IFLA_NET_NS_FD, static_cast<uint32_t>(other.get()));
  request.close(peer);
  request.close(data);
  request.close(info);
  return ask(request, operation);
}

}  // namespace nobounce::cli
