// A stack on virtio-net behind a vhost-user back-end: what Stack::open() makes.
#include <fmt/format.h>

#include "socket/composition.hpp"
#include "virtio/reconnecting_device.hpp"
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

// What it takes to open the device, the first time and again. Regions, pools and contexts outlive it.
struct DeviceMaker {
  virtio::vhost_user::FrontEndOptions front_end;
  virtio::VirtioNetOptions net;
  SharedRegion& region;
  DmaDevice& dma;
  ShardContext& context;
  virtio::RingMemory memory{};  // of all that are opened one after the other

  Result<std::unique_ptr<virtio::VirtioNet>> open(virtio::RingMemory* keep) {
    auto transport = virtio::vhost_user::connect(front_end);
    if (!transport) return std::unexpected(transport.error());
    ShardContext* const contexts[] = {&context};
    return virtio::VirtioNet::open(std::move(*transport), region, dma, contexts, net, keep);
  }
};

Result<std::unique_ptr<NetDevice>> open_waiting(std::unique_ptr<DeviceMaker> maker) {
  maker->net.when_gone = "waiting for it to come back";
  auto first = maker->open(&maker->memory);
  if (!first) return std::unexpected(first.error());
  // A server listens while it waits; a client looks whether somebody is there, at the given pace.
  const bool listens = maker->front_end.role == virtio::vhost_user::Role::server;
  maker->front_end.connect_max_ns = listens ? 3 * kNsPerSecond : 0;
  maker->front_end.mtu = (*first)->mtu();
  maker->net.in_use = (*first)->in_use();
  maker->net.name = (*first)->name();
  ShardContext& context = maker->context;
  auto reconnector = virtio::Reconnector::create(
      [maker = std::move(maker)](int cancel_fd) {
        maker->front_end.cancel_fd = cancel_fd;
        return maker->open(&maker->memory);
      },
      (*first)->name(), context.clock, context.counters);
  if (!reconnector) return std::unexpected(reconnector.error());
  auto device = virtio::ReconnectingDevice::create(std::move(*first), std::move(*reconnector),
                                                   context.clock, context.counters);
  if (!device) return std::unexpected(device.error());
  return std::unique_ptr<NetDevice>(std::move(*device));
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
    DeviceMaker maker{*front_end, net, *core.region, *core.dma, *contexts[0]};
    if (options.on_disconnect == OnDisconnect::wait) {
      return open_waiting(std::make_unique<DeviceMaker>(std::move(maker)));
    }
    auto device = maker.open(nullptr);
    if (!device) return std::unexpected(device.error());
    return std::unique_ptr<NetDevice>(std::move(*device));
  };
  if (auto started = start(core, factory); !started) return std::unexpected(started.error());
  return std::unique_ptr<Stack>(new Stack(std::move(*made)));
}

}  // namespace nobounce
