// A veth pair of the Linux kernel, by netlink: two interfaces that are each other's wire. It goes
// with either end, and so with either end's namespace.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"

namespace nobounce::cli {

struct VethOptions {
  std::string here;   // name in the namespace of the calling thread
  std::string there;  // name in the other one
  std::string netns;  // the other's path, e.g. /proc/PID/task/TID/ns/net
  uint16_t mtu = 1500;
};

// Both ends are down and have no address yet. Needs CAP_NET_ADMIN in both namespaces.
[[nodiscard]] Result<void> make_veth(const VethOptions& options);

}  // namespace nobounce::cli
