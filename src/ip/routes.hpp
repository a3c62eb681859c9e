// Our own addresses, and where packets go: the longest prefix wins.
//
//   prefix           gateway      source        from
//   10.77.0.2/24     -            10.77.0.2     an own address: its network is on the link
//   10.88.0.0/16     10.77.0.9    10.77.0.2     --route: the address on the gateway's network
//   0.0.0.0/0        10.77.0.1    10.77.0.2     --gateway
//
// Before all of them: an own address goes to ourselves and from itself (RFC 6724 rule 1), and a group is
// on the link, from our address on its network.
// Of equally long prefixes the one on the link wins, then the one that was given first.
// Threads: any, it never changes. Cost: O(addresses + routes), at most kEntriesMax; a handful as a rule.
// Nothing allocates after construction. Spec: tcp.md N-1, N-5, N-9 (IPv4).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "nobounce/address.hpp"

namespace nobounce::ip {

struct RouteOptions {
  std::span<const IpPrefix> addresses;  // the first is the primary one
  std::optional<IpAddress> gateway;
  std::span<const Route> routes;
};

class Routes {
 public:
  static constexpr size_t kAddressesMax = 16;
  static constexpr size_t kRoutesMax = 64;
  static constexpr size_t kEntriesMax = kAddressesMax + kRoutesMax + 1;

  struct Hop {
    IpAddress neighbour;  // whom the frame is for
    IpAddress source;     // our address, unless the sender has chosen another
  };

  // Asserts what set-up has checked: 1 to kAddressesMax addresses, every gateway on the link.
  explicit Routes(const RouteOptions& options);

  // Nothing when there is no route; also for what is not IPv4, "any" and loopback addresses.
  [[nodiscard]] std::optional<Hop> find(const IpAddress& destination) const noexcept;
  [[nodiscard]] bool is_ours(const IpAddress& address) const noexcept;
  // Multicast, or the broadcast address of the link or of one of its networks.
  [[nodiscard]] bool is_group(const IpAddress& address) const noexcept;
  // An address that a neighbour on the link can have.
  [[nodiscard]] bool is_neighbour(const IpAddress& address) const noexcept;
  // Our address on the narrowest network that has `neighbour`; the primary one when none has.
  [[nodiscard]] const IpAddress& source_on_link(const IpAddress& neighbour) const noexcept;
  [[nodiscard]] std::span<const IpPrefix> addresses() const noexcept { return addresses_; }

 private:
  struct Entry {
    IpPrefix prefix;
    std::optional<IpAddress> gateway;
    IpAddress source;
  };
  [[nodiscard]] const IpPrefix* network_of(const IpAddress& address) const noexcept;

  std::vector<IpPrefix> addresses_;
  std::vector<IpAddress> broadcasts_;
  std::vector<Entry> entries_;  // longest prefix first
};

}  // namespace nobounce::ip
