#include "backend/tap_interface.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <thread>

#include "base/assert.hpp"
#include "netdev/net_device.hpp"

namespace nobounce::backend {
namespace {

constexpr const char* kDevice = "/dev/net/tun";
constexpr size_t kNameMax = IFNAMSIZ - 1;
constexpr const char* kMtuHint = "give 68 to 65521, the largest the kernel gives a TAP";

unsigned long offload_bits(const NetOffloads& offloads) noexcept {
  if (!offloads.checksum) return 0;
  return TUN_F_CSUM | (offloads.tso4 ? TUN_F_TSO4 : 0U) | (offloads.tso6 ? TUN_F_TSO6 : 0U);
}

std::unexpected<Error> bad(const TapOptions& options, std::string cause, std::string hint) {
  return fail(std::errc::invalid_argument, fmt::format("open tap {}", options.name),
              std::move(cause), std::move(hint));
}

Result<void> check(const TapOptions& options) {
  if (options.name.empty()) return bad(options, "no interface name", "give one such as nb0");
  if (options.name.size() > kNameMax) {
    return bad(options, fmt::format("the name has {} characters", options.name.size()),
               fmt::format("give at most {}", kNameMax));
  }
  const bool is_plain = std::ranges::none_of(options.name, [](unsigned char c) {
    return c == '/' || c == ':' || std::isspace(c) != 0 || std::iscntrl(c) != 0;
  });
  if (!is_plain || options.name == "." || options.name == "..") {
    return bad(options, "not a name an interface can have", "give one such as nb0");
  }
  if (options.queue_pairs == 0 || options.queue_pairs > TapInterface::kQueuePairsMax) {
    return bad(options, fmt::format("{} queue pairs", options.queue_pairs),
               fmt::format("give 1 to {}", TapInterface::kQueuePairsMax));
  }
  if (options.mtu && *options.mtu < kLinkMtuMin) {
    return bad(options, fmt::format("MTU {}", *options.mtu), kMtuHint);
  }
  if (options.send_buffer_bytes < 0) {
    return bad(options, "a send buffer below 0 bytes", "give 0 for no bound");
  }
  return {};
}

ifreq request_for(const std::string& name) noexcept {
  ifreq request{};
  NB_ASSERT(name.size() <= kNameMax);
  std::memcpy(request.ifr_name, name.data(), name.size());
  return request;
}

// ---- opening, in the namespace ----------------------------------------------------------------

class Opener {
 public:
  explicit Opener(const TapOptions& options)
      : options_(options), operation_(fmt::format("open tap {}", options.name)) {}

  Result<TapInterface> open() {
    control_ = UniqueFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!control_.is_open()) return fail_errno(operation_);
    ifreq probe = request_for(options_.name);
    existed_ = ::ioctl(control_.get(), SIOCGIFINDEX, &probe) == 0;
    facts_.name = options_.name;
    facts_.vnet_header = options_.vnet_header;
    if (!options_.vnet_header) facts_.offloads = {};
    for (uint16_t i = 0; i < options_.queue_pairs; ++i) {
      if (auto added = add_queue(); !added) return std::unexpected(added.error());
    }
    if (auto ready = set_up_link(); !ready) return std::unexpected(ready.error());
    return TapInterface(std::move(queues_), std::move(facts_));
  }

 private:
  Result<void> add_queue() {
    UniqueFd fd(::open(kDevice, O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fd.is_open()) return fail_device();
    ifreq request = request_for(facts_.name);
    const int flags = IFF_TAP | IFF_NO_PI | (options_.vnet_header ? IFF_VNET_HDR : 0) |
                      (options_.queue_pairs > 1 ? IFF_MULTI_QUEUE : 0);
    request.ifr_flags = static_cast<short>(flags);
    if (::ioctl(fd.get(), TUNSETIFF, &request) != 0) return fail_attach();
    facts_.name.assign(request.ifr_name, ::strnlen(request.ifr_name, kNameMax));
    if (options_.vnet_header) {
      const int bytes = wire::kNetHeaderBytes;
      const int little_endian = 1;
      if (::ioctl(fd.get(), TUNSETVNETHDRSZ, &bytes) != 0 ||
          ::ioctl(fd.get(), TUNSETVNETLE, &little_endian) != 0 ||
          ::ioctl(fd.get(), TUNSETOFFLOAD, offload_bits(facts_.offloads)) != 0) {
        return fail_errno(operation_, "the kernel's TAP has no virtio-net header");
      }
    }
    if (options_.send_buffer_bytes > 0 &&
        ::ioctl(fd.get(), TUNSETSNDBUF, &options_.send_buffer_bytes) != 0) {
      return fail_errno(operation_);
    }
    queues_.push_back(std::move(fd));
    return {};
  }

  Result<void> set_up_link() {
    ifreq request = request_for(facts_.name);
    if (::ioctl(control_.get(), SIOCGIFMTU, &request) != 0) return fail_errno(operation_);
    if (options_.mtu && request.ifr_mtu != *options_.mtu) {
      request.ifr_mtu = *options_.mtu;
      if (::ioctl(control_.get(), SIOCSIFMTU, &request) != 0) {
        return fail_errno(
            fmt::format("set the MTU of {} to {}", facts_.name, *options_.mtu),
            errno == EINVAL
                ? kMtuHint
                : "that takes CAP_NET_ADMIN; leave the MTU out to keep the interface's");
      }
    }
    facts_.mtu = static_cast<uint16_t>(std::clamp<int>(request.ifr_mtu, kLinkMtuMin, UINT16_MAX));
    if (::ioctl(control_.get(), SIOCGIFHWADDR, &request) != 0) return fail_errno(operation_);
    std::memcpy(facts_.mac.bytes.data(), request.ifr_hwaddr.sa_data, facts_.mac.bytes.size());
    return existed_ ? Result<void>{} : bring_up();  // one that exists is its owner's
  }

  Result<void> bring_up() {
    ifreq request = request_for(facts_.name);
    if (::ioctl(control_.get(), SIOCGIFFLAGS, &request) != 0) return fail_errno(operation_);
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    if (::ioctl(control_.get(), SIOCSIFFLAGS, &request) != 0) {
      return fail_errno(fmt::format("bring {} up", facts_.name));
    }
    return {};
  }

  [[nodiscard]] std::unexpected<Error> fail_device() const {
    const std::string operation = fmt::format("open {}", kDevice);
    if (errno == ENOENT || errno == ENODEV || errno == ENXIO) {
      return fail_errno(operation, "load the kernel's tun module: modprobe tun");
    }
    return fail_errno(operation, "the user must be able to read and write it");
  }

  [[nodiscard]] std::unexpected<Error> fail_attach() const {
    const char* multi_queue = options_.queue_pairs > 1 ? " multi_queue" : "";
    switch (errno) {
      case EPERM:
        return fail_errno(operation_,
                          fmt::format("that takes CAP_NET_ADMIN, or a tap that is this user's: ip "
                                      "tuntap add {} mode tap{} user USER",
                                      options_.name, multi_queue));
      case EBUSY:
        return fail_errno(operation_, "another process has it open; stop that or take another tap");
      case E2BIG:
        return fail_errno(operation_, "all its queues are in use; ask for fewer queue pairs");
      case EINVAL:
        if (!existed_) break;
        return fail_errno(
            operation_,
            fmt::format("it is no tap, or was made {} multi_queue: remove it, or ip tuntap add {} "
                        "mode tap{} vnet_hdr",
                        options_.queue_pairs > 1 ? "without" : "with", options_.name, multi_queue));
      default:
        break;
    }
    return fail_errno(operation_);
  }

  const TapOptions& options_;
  const std::string operation_;
  UniqueFd control_;
  bool existed_ = false;
  std::vector<UniqueFd> queues_;
  TapInterface::Facts facts_;
};

// ---- the namespace ----------------------------------------------------------------------------

Result<UniqueFd> open_namespace(const std::string& netns) {
  const bool is_path = netns.find('/') != std::string::npos;
  const std::string path = is_path ? netns : "/run/netns/" + netns;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) {
    return fail_errno(fmt::format("open network namespace {}", path),
                      is_path ? "give a path such as /proc/PID/ns/net"
                              : fmt::format("make it with: ip netns add {}", netns));
  }
  return fd;
}

Result<TapInterface> open_in_namespace(const TapOptions& options) {
  const auto fd = open_namespace(options.netns);
  if (!fd) return std::unexpected(fd.error());
  Result<TapInterface> result = fail(std::errc::operation_canceled, "open tap", "not tried");
  std::thread([&] {
    if (::setns(fd->get(), CLONE_NEWNET) != 0) {
      result = fail_errno(
          fmt::format("enter network namespace {}", options.netns),
          errno == EINVAL ? "that file is no network namespace" : "that takes CAP_SYS_ADMIN");
      return;
    }
    result = Opener(options).open();
  }).join();
  return result;
}

}  // namespace

Result<TapInterface> TapInterface::open(const TapOptions& options) {
  if (auto checked = check(options); !checked) return std::unexpected(checked.error());
  return options.netns.empty() ? Opener(options).open() : open_in_namespace(options);
}

TapInterface::TapInterface(std::vector<UniqueFd> queues, Facts facts)
    : queues_(std::move(queues)), facts_(std::move(facts)) {
  NB_ASSERT(!queues_.empty());
}

Result<void> TapInterface::set_offloads(const NetOffloads& offloads) {
  const std::string operation = fmt::format("set the offloads of tap {}", facts_.name);
  if (!facts_.vnet_header) {
    if (offload_bits(offloads) == 0) return {};
    return fail(std::errc::not_supported, operation, "it carries no virtio-net header",
                "open it with the header");
  }
  for (const UniqueFd& queue : queues_) {
    if (::ioctl(queue.get(), TUNSETOFFLOAD, offload_bits(offloads)) != 0) {
      return fail_errno(operation);
    }
  }
  facts_.offloads = offloads;
  facts_.offloads.data_valid = true;
  return {};
}

}  // namespace nobounce::backend
