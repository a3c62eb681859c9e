// A stack on virtio-net behind a vhost-user back-end: what Stack::open() makes.
#include <fmt/format.h>

#include "socket/composition.hpp"
#include "virtio/vhost_user/front_end.hpp"
#include "virtio/virtio_net.hpp"

namespace nobounce {
namespace {

// The shared region and who maps from it.
Result<void> make_shared_memory(StackCore& core, const virtio::VirtioNetOptions& net) {
  const StackOptions& options = core.options;
  SharedRegionOptions region;
  region.bytes = round_up(options.pool_bytes, kSlotSet * kSlotSize) +
                 virtio::VirtioNet::carve_bytes(net) + (2 << 20);
  region.huge_pages = options.huge_pages ? HugePages::prefer : HugePages::off;
  auto made = SharedRegion::create(region);
  if (!made) return std::unexpected(made.error());
  core.region = std::move(*made);
  return {};
}

Result<void> make_pool(StackCore& core) {
  const StackOptions& options = core.options;
  SwiotlbOptions swiotlb;
  const bool nocopy = options.mode == Mode::nocopy;
  swiotlb.quotas.tx_percent = nocopy ? options.nocopy_tx_percent : 0;
  swiotlb.quotas.rx_percent = nocopy ? options.nocopy_rx_percent : 0;
  // The pool first, aligned to its slot sets; the device carves its rings from what is left.
  const SharedBytes pool = core.region->carve(options.pool_bytes, kSlotSet * kSlotSize);
  if (pool.empty()) {
    return invalid_option(
        fmt::format("a pool of {} bytes does not fit its region", options.pool_bytes),
        "choose another pool size");
  }
  auto made = Swiotlb::create(pool, static_cast<DmaAddr>(core.region->iova_of(pool)), swiotlb,
                              *core.counters, *core.copies);
  if (!made) return std::unexpected(made.error());
  core.swiotlb = std::move(*made);
  core.dma = std::make_unique<DmaDevice>(*core.swiotlb, DmaLimits{}, *core.counters);
  return {};
}

Result<virtio::vhost_user::FrontEndOptions> parse_net(const std::string& net) {
  constexpr std::string_view kPrefix = "vhost-user:";
  if (!net.starts_with(kPrefix) || net.size() == kPrefix.size()) {
    return invalid_option(
        fmt::format("network \"{}\" is not known", net),
        "give vhost-user:PATH, the socket of a back-end such as `nobounce backend`");
  }
  virtio::vhost_user::FrontEndOptions options;
  options.path = net.substr(kPrefix.size());
  constexpr std::string_view kServer = ",server";
  if (options.path.ends_with(kServer)) {
    options.path.resize(options.path.size() - kServer.size());
    options.role = virtio::vhost_user::Role::server;
  }
  return options;
}

}  // namespace

Result<std::unique_ptr<Stack>> Stack::open(const StackOptions& options) {
  auto front_end = parse_net(options.net);
  if (!front_end) return std::unexpected(front_end.error());
  front_end->mtu = options.mtu;
  auto made = make_core(options, {});
  if (!made) return std::unexpected(made.error());
  StackCore& core = **made;
  front_end->kicks_rescued = core.counters->counter("virtio.kicks_rescued");

  virtio::VirtioNetOptions net;
  net.queue_size = options.queue_size;
  net.mac = options.mac;
  net.mtu = options.mtu;
  if (auto memory = make_shared_memory(core, net); !memory) return std::unexpected(memory.error());
  if (auto pool = make_pool(core); !pool) return std::unexpected(pool.error());
  // The device last: a wrong set-up is told without touching the back-end.
  DeviceFactory factory =
      [&](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
    auto transport = virtio::vhost_user::connect(*front_end);
    if (!transport) return std::unexpected(transport.error());
    auto device =
        virtio::VirtioNet::open(std::move(*transport), *core.region, *core.dma, contexts, net);
    if (!device) return std::unexpected(device.error());
    return std::unique_ptr<NetDevice>(std::move(*device));
  };
  if (auto started = start(core, factory); !started) return std::unexpected(started.error());
  return std::unique_ptr<Stack>(new Stack(std::move(*made)));
}

}  // namespace nobounce
