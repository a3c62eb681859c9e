// What is behind the device, by its name on the command line.
#include <fmt/format.h>

#include "backend/backend.hpp"
#include "backend/peer.hpp"
#include "backend/switch.hpp"

namespace nobounce::backend {
namespace {

NetworkFactory link(const BackendOptions& options) {
  const SwitchOptions made{.guests_max = Backend::kGuestsMax, .mac = options.mac};
  return [made](const NetworkPlace& place) { return Switch::open(made, place); };
}

NetworkFactory peer(const BackendOptions& options) {
  const PeerOptions made{
      .address = options.address, .mac = options.mac, .queue_size = options.queue_size_limit};
  return one_guest([made](const ServicePlace& place) { return Peer::open(place, made); });
}

Result<NetworkFactory> network_of(const BackendOptions& options) {
  if (options.net == "peer") return peer(options);
  if (options.net == "link") return link(options);
  return fail(std::errc::invalid_argument, "start the back-end",
              fmt::format("no network is called '{}'", options.net), "give peer or link");
}

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(const BackendOptions& options) {
  auto network = network_of(options);
  if (!network) return std::unexpected(network.error());
  return Backend::open(options, std::move(*network));
}

}  // namespace nobounce::backend
