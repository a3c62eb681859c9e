// What is behind the device, by its name on the command line.
#include <fmt/format.h>

#include "backend/backend.hpp"
#include "backend/peer.hpp"
#include "backend/switch.hpp"
#include "backend/tap.hpp"
#include "netdev/impair.hpp"

namespace nobounce::backend {
namespace {

constexpr std::string_view kTap = "tap:";

// A bad wire to each guest, when one is asked for.
PortWrapper wrapper(const BackendOptions& options) {
  if (!options.impair) return {};
  return [impair = *options.impair](std::unique_ptr<NetDevice> port,
                                    ShardContext& context) -> Result<std::unique_ptr<NetDevice>> {
    return ImpairedDevice::open(std::move(port), impair, context, context.counters);
  };
}

NetworkFactory link(const BackendOptions& options) {
  const SwitchOptions made{
      .guests_max = Backend::kGuestsMax, .mac = options.mac, .wrap = wrapper(options)};
  return [made](const NetworkPlace& place) { return Switch::open(made, place); };
}

// The interface is opened here, while there are privileges; `options` learns its MTU.
Result<NetworkFactory> tap(BackendOptions& options) {
  auto opened = TapInterface::open({.name = options.net.substr(kTap.size()),
                                    .queue_pairs = options.queue_pairs,
                                    .mtu = options.mtu,
                                    .netns = options.netns});
  if (!opened) return std::unexpected(opened.error());
  const auto interface = std::make_shared<TapInterface>(std::move(*opened));
  options.mtu = interface->mtu();
  SwitchOptions made{
      .guests_max = Backend::kGuestsMax, .mac = options.mac, .wrap = wrapper(options)};
  made.uplink = [interface,
                 mac = options.mac](ShardContext& context) -> Result<std::unique_ptr<NetDevice>> {
    return TapDevice::open(*interface, context, context.counters, mac);
  };
  return [made](const NetworkPlace& place) { return Switch::open(made, place); };
}

NetworkFactory peer(const BackendOptions& options) {
  const PeerOptions made{.address = options.address,
                         .mac = options.mac,
                         .queue_size = options.queue_size_limit,
                         .wrap = wrapper(options)};
  return one_guest([made](const ServicePlace& place) { return Peer::open(place, made); });
}

Result<NetworkFactory> network_of(BackendOptions& options) {
  if (options.net == "peer") return peer(options);
  if (options.net == "link") return link(options);
  if (options.net.starts_with(kTap)) return tap(options);
  return fail(std::errc::invalid_argument, "start the back-end",
              fmt::format("no network is called '{}'", options.net), "give peer, link or tap:NAME");
}

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(const BackendOptions& options) {
  BackendOptions complete = options;
  auto network = network_of(complete);
  if (!network) return std::unexpected(network.error());
  return Backend::open(complete, std::move(*network));
}

}  // namespace nobounce::backend
