#include "socket/set_up.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "ip/routes.hpp"
#include "netdev/capture.hpp"
#include "socket/composition.hpp"
#include "socket/stack_core.hpp"

namespace nobounce {

std::unexpected<Error> invalid_option(std::string cause, std::string hint) {
  return fail(std::errc::invalid_argument, "open the stack", std::move(cause), std::move(hint));
}

namespace {

bool is_same_network(const IpPrefix& a, const IpPrefix& b) {
  return a.length == b.length && a.contains(b.address);
}

bool is_host_address(const IpPrefix& own) {
  const IpAddress& address = own.address;
  return address.is_v4() && own.length > 0 && !address.is_any() && !address.is_multicast() &&
         !address.is_loopback() && !address.is_limited_broadcast();
}

// Every address can be a host's, and means one thing: none is given twice or is the broadcast address
// of its own or of another one's network.
Result<void> check_addresses(std::span<const IpPrefix> addresses) {
  if (addresses.size() > ip::Routes::kAddressesMax) {
    return invalid_option(fmt::format("{} addresses", addresses.size()),
                          fmt::format("at most {}", ip::Routes::kAddressesMax));
  }
  for (const IpPrefix& own : addresses) {
    if (!is_host_address(own)) {
      return invalid_option(fmt::format("{} is no address to have", own.to_string()),
                            "give IPv4 addresses with their prefix length, like 10.78.0.2/24");
    }
  }
  for (const IpPrefix& own : addresses) {
    if (std::ranges::count(addresses, own.address, &IpPrefix::address) > 1) {
      return invalid_option(fmt::format("address {} is given twice", own.address.to_string()),
                            "once is enough");
    }
    for (const IpPrefix& other : addresses) {
      if (other.length <= 30 && own.address == other.broadcast()) {
        return invalid_option(fmt::format("{} is the broadcast address of {}",
                                          own.address.to_string(), other.to_string()),
                              "choose another one of that network");
      }
    }
  }
  return {};
}

// Every gateway is a neighbour, and of each prefix it is clear where it goes.
Result<void> check_routes(const StackOptions& options, std::span<const IpPrefix> addresses) {
  if (options.routes.size() > ip::Routes::kRoutesMax) {
    return invalid_option(fmt::format("{} routes", options.routes.size()),
                          fmt::format("at most {}", ip::Routes::kRoutesMax));
  }
  const ip::Routes links({.addresses = addresses, .gateway = {}, .routes = {}});
  const auto check_gateway = [&links](const IpAddress& gateway, const std::string& what) {
    if (links.is_neighbour(gateway)) return Result<void>{};
    return Result<void>(invalid_option(
        fmt::format("{} {} is on none of this side's networks", what, gateway.to_string()),
        "a gateway is a neighbour: choose one on the network of an own address"));
  };
  std::vector<IpPrefix> known(addresses.begin(), addresses.end());
  if (options.gateway) known.push_back({IpAddress(), 0});
  for (const Route& route : options.routes) {
    if (!route.prefix.address.is_v4()) {
      return invalid_option(fmt::format("route {} is not IPv4", route.to_string()),
                            "IPv6 is not there yet");
    }
    if (auto checked = check_gateway(route.gateway, "the route's gateway"); !checked) {
      return checked;
    }
    if (std::ranges::any_of(known,
                            [&](const IpPrefix& k) { return is_same_network(k, route.prefix); })) {
      return invalid_option(
          fmt::format("{} has a route before {}", route.prefix.to_string(), route.to_string()),
          "a prefix goes one way: own networks are on the link, --gateway is 0.0.0.0/0");
    }
    known.push_back(route.prefix);
  }
  return options.gateway ? check_gateway(*options.gateway, "the gateway") : Result<void>{};
}

Result<void> check_network(const StackOptions& options) {
  std::vector<IpPrefix> addresses{options.address};
  addresses.insert(addresses.end(), options.more_addresses.begin(), options.more_addresses.end());
  if (auto checked = check_addresses(addresses); !checked) return checked;
  return check_routes(options, addresses);
}

// What can be wrong with the options, said before anything is made.
Result<void> check(const StackOptions& options) {
  if (options.address.length == 0 || options.address.address.is_any()) {
    return invalid_option("no address was given",
                          "give one with its prefix length, like 10.77.0.2/24");
  }
  if (!options.address.address.is_v4()) {
    return invalid_option(fmt::format("{} is not an IPv4 address", options.address.to_string()),
                          "IPv6 is not there yet");
  }
  if (auto checked = check_network(options); !checked) return checked;
  if (options.nocopy_tx_percent > 90 || options.nocopy_rx_percent > 90 ||
      options.nocopy_tx_percent + options.nocopy_rx_percent > 90) {
    return invalid_option(fmt::format("nocopy percentages {} and {} exceed 90 together",
                                      options.nocopy_tx_percent, options.nocopy_rx_percent),
                          "10 % of the pool stay for bounces: choose 0 to 90, a sum of at most 90");
  }
  if (!is_power_of_two(options.queue_size) || options.queue_size < kQueueSizeMin ||
      options.queue_size > kQueueSizeMax) {
    return invalid_option(
        fmt::format("queue size {}", options.queue_size),
        fmt::format("it must be a power of two from {} to {}", kQueueSizeMin, kQueueSizeMax));
  }
  if (options.mtu && *options.mtu < kMtuMin) {
    return invalid_option(fmt::format("MTU {}", *options.mtu),
                          fmt::format("it must be {} to {}", kMtuMin, kMtuMax));
  }
  if (options.pool_bytes < (1 << 20) || options.private_bytes < (1 << 20)) {
    return invalid_option("less than 1 MiB of memory",
                          "the pool and private memory need 1 MiB at least");
  }
  if (options.connections_max < 1 || options.connections_max > 1'000'000) {
    return invalid_option(fmt::format("{} connections", options.connections_max),
                          "choose 1 to 1000000");
  }
  if (options.send_buffer < 4096 || options.receive_buffer < 4096 ||
      options.send_buffer > (1u << 30) || options.receive_buffer > (1u << 30)) {
    return invalid_option("a socket buffer outside 4 KiB to 1 GiB", "choose one inside");
  }
  return {};
}

// A sixteenth of the pool for fragments of incomplete datagrams: 4 MiB of the default 64, which is
// what other stacks allow; at least one datagram of 64 KiB in pieces of 576 bytes.
size_t reassembly_pages(const StackOptions& options) {
  return std::clamp<size_t>(options.pool_bytes / kPageSize / 16, 128, 1024);
}

// Packets of the shard, a sum:
//   what the device holds in both directions          2 * queue_size
//   one burst in each direction                       2 * kBurstMax
//   send queues: a packet is up to 64 KiB of payload, but small writes are small packets
//   receive queues: likewise; out-of-order data is bounded by tcp/
//   fragments of incomplete datagrams: a page at least each
//   what is on its way to ourselves                   ip::kLocalMax
// The queues share 8192; when they have used them up, senders wait and receivers drop (counted).
size_t packets_of(const StackOptions& options) {
  return 2u * options.queue_size + 2 * kBurstMax + 8192 + options.connections_max +
         reassembly_pages(options) + ip::kLocalMax;
}

ShardOptions shard_options(const StackOptions& options) {
  ShardOptions shard;
  shard.connections_max = options.connections_max;
  shard.packets = packets_of(options);
  shard.spin_ns = options.spin_ns;
  shard.send_buffer = options.send_buffer;
  shard.connection.receive_buffer = options.receive_buffer;
  shard.linger_ns = options.linger_ns;
  shard.inline_drive = options.drive == Drive::inline_drive;
  return shard;
}

// Memory believed shared must be (C126). A device that maps other memory than ours, or none, cannot
// be told from a slow one later on; so the first frame, the announcement of our address, must come
// back from it before anything else is tried. Seen by the driver alone: the ring's used index moves.
Result<void> prove_device(StackCore& core) {
  Shard& shard = *core.shard;
  NetDevice& device = shard.device();
  shard.ip().flush();
  MonotonicClock clock;  // the wait is for another process, whatever clock the stack has
  const uint64_t end_ns = clock.now_ns() + core.options.first_frame_ns;
  while (!device.is_idle(0)) {
    const uint64_t now_ns = clock.now_ns();
    if (now_ns >= end_ns) {
      const std::string region =
          core.region != nullptr ? fmt::format("the shared region of {} MiB at guest address {:#x}",
                                               core.region->size() >> 20, core.region->iova_base())
                                 : "its memory";
      return fail(std::errc::timed_out, fmt::format("start device {}", device.name()),
                  fmt::format("it has taken no frame out of {} in {:.1f} s", region,
                              static_cast<double>(core.options.first_frame_ns) / 1e9),
                  "does the back-end map the file descriptor it was given with MAP_SHARED, and has "
                  "it begun to serve its rings?");
    }
    shard.sleep(std::min(end_ns - now_ns, kNsPerMs));
    device.reclaim(0);
  }
  if (!device.is_broken()) return {};
  return fail(std::errc::network_down, fmt::format("start device {}", device.name()),
              "it broke the rules, or went away, before the first frame was taken",
              "its own log, and the warning above, may say why");
}

}  // namespace

Result<std::shared_ptr<StackCore>> make_core(const StackOptions& options,
                                             const Surroundings& surroundings) {
  if (auto checked = check(options); !checked) return std::unexpected(checked.error());
  auto core = StackCore::make();
  core->options = options;
  if (options.counters.empty()) {
    core->counters = std::make_unique<CounterRegistry>();
  } else {
    auto published = CounterRegistry::publish(options.counters);
    if (!published) return std::unexpected(published.error());
    core->counters = std::move(*published);
  }
  core->copies = std::make_unique<CopyLedger>(*core->counters);
  if (surroundings.clock == nullptr) core->own_clock = std::make_unique<MonotonicClock>();
  if (surroundings.random == nullptr) core->own_random = std::make_unique<SystemRandom>();
  auto arena = PrivateArena::create(options.private_bytes, *core->counters);
  if (!arena) return std::unexpected(arena.error());
  core->arena = std::move(*arena);
  UniqueFd doorbell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!doorbell.is_open()) {
    return fail_errno("make the stack's event", "raise the limit of open files (ulimit -n)");
  }
  core->shard = std::make_unique<Shard>(
      shard_options(options),
      surroundings.clock != nullptr ? *surroundings.clock : *core->own_clock,
      surroundings.random != nullptr ? *surroundings.random : *core->own_random, *core->arena,
      *core->counters, *core->copies, std::move(doorbell));
  return core;
}

Result<void> start(StackCore& core, DeviceFactory& factory) {
  ShardContext* const contexts[] = {&core.shard->context()};
  auto device = factory(contexts);
  if (!device) return std::unexpected(device.error());
  if (!core.options.capture.empty()) {
    const CaptureOptions capture{.path = core.options.capture};
    auto captured =
        CaptureDevice::open(std::move(*device), capture, contexts[0]->clock, *core.counters);
    if (!captured) return std::unexpected(captured.error());
    device = std::move(*captured);
  }
  core.mac = (*device)->mac();
  core.mtu = (*device)->mtu();
  ip::Options ip_options;
  ip_options.address = core.options.address;
  ip_options.gateway = core.options.gateway;
  ip_options.more_addresses = core.options.more_addresses;
  ip_options.routes = core.options.routes;
  ip_options.reassembly_pages_max = reassembly_pages(core.options);
  core.shard->attach(std::move(*device), ip_options);
  if (core.options.first_frame_ns > 0) {
    if (auto proven = prove_device(core); !proven) return proven;
  }
  if (core.options.drive == Drive::io_thread) {
    core.io_thread = std::thread([shard = core.shard.get()] { shard->run(); });
    pthread_setname_np(core.io_thread.native_handle(), "nobounce-io-0");
  }
  return {};
}

Result<std::unique_ptr<Stack>> StackSetUp::open_on(const StackOptions& options,
                                                   DeviceFactory factory,
                                                   const Surroundings& surroundings) {
  auto core = make_core(options, surroundings);
  if (!core) return std::unexpected(core.error());
  if (auto started = start(**core, factory); !started) return std::unexpected(started.error());
  return std::unique_ptr<Stack>(new Stack(std::move(*core)));
}

Shard& StackSetUp::shard(Stack& stack) noexcept { return *stack.core_->shard; }
StackCore& StackSetUp::core(Stack& stack) noexcept { return *stack.core_; }
TcpCore& StackSetUp::core(TcpSocket& socket) noexcept {
  NB_ASSERT(socket.core_ != nullptr);
  return *socket.core_;
}

}  // namespace nobounce
