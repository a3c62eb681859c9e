#include "ip/routes.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace nobounce::ip {

Routes::Routes(const RouteOptions& options)
    : addresses_(options.addresses.begin(), options.addresses.end()) {
  NB_ASSERT(!addresses_.empty());
  NB_ASSERT(addresses_.size() <= kAddressesMax);
  NB_ASSERT(options.routes.size() <= kRoutesMax);
  // Longest first, and of equally long ones as they come.
  const auto add = [this](const Entry& entry) {
    const auto is_shorter = [&entry](const Entry& other) {
      return other.prefix.length < entry.prefix.length;
    };
    entries_.insert(std::ranges::find_if(entries_, is_shorter), entry);
  };
  for (const IpPrefix& own : addresses_) {
    add({.prefix = own, .gateway = {}, .source = own.address});
    if (own.length <= 30) broadcasts_.push_back(own.broadcast());
  }
  const auto add_by = [&](const IpPrefix& prefix, const IpAddress& gateway) {
    NB_ASSERT(is_neighbour(gateway));
    add({.prefix = prefix, .gateway = gateway, .source = source_on_link(gateway)});
  };
  for (const Route& route : options.routes) add_by(route.prefix, route.gateway);
  if (options.gateway) add_by({IpAddress(), 0}, *options.gateway);
}

std::optional<Routes::Hop> Routes::find(const IpAddress& destination) const noexcept {
  if (!destination.is_v4() || destination.is_any() || destination.is_loopback()) {
    return std::nullopt;
  }
  if (is_ours(destination)) return Hop{destination, destination};  // RFC 6724 rule 1
  if (is_group(destination)) return Hop{destination, source_on_link(destination)};
  for (const Entry& entry : entries_) {
    if (entry.prefix.contains(destination)) {
      return Hop{entry.gateway.value_or(destination), entry.source};
    }
  }
  return std::nullopt;
}

bool Routes::is_ours(const IpAddress& address) const noexcept {
  return std::ranges::any_of(addresses_,
                             [&](const IpPrefix& own) { return own.address == address; });
}

bool Routes::is_group(const IpAddress& address) const noexcept {
  return address.is_multicast() || address.is_limited_broadcast() ||
         std::ranges::find(broadcasts_, address) != broadcasts_.end();
}

bool Routes::is_neighbour(const IpAddress& address) const noexcept {
  return !address.is_any() && !address.is_loopback() && !is_group(address) && !is_ours(address) &&
         network_of(address) != nullptr;
}

const IpPrefix* Routes::network_of(const IpAddress& address) const noexcept {
  const IpPrefix* narrowest = nullptr;
  for (const IpPrefix& own : addresses_) {
    if (own.contains(address) && (narrowest == nullptr || own.length > narrowest->length)) {
      narrowest = &own;
    }
  }
  return narrowest;
}

const IpAddress& Routes::source_on_link(const IpAddress& neighbour) const noexcept {
  const IpPrefix* network = network_of(neighbour);
  return network != nullptr ? network->address : addresses_.front().address;
}

}  // namespace nobounce::ip
