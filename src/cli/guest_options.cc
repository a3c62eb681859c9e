#include "cli/guest_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "base/counters.hpp"
#include "base/log.hpp"
#include "cli/program.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

constexpr uint64_t kPoolMin = 4 << 20;
constexpr uint64_t kPoolMax = uint64_t{64} << 30;

std::optional<std::string> parse_net(std::string_view text) {
  constexpr std::string_view kKind = "vhost-user:";
  if (!text.starts_with(kKind) || text.size() == kKind.size()) return {};
  return std::string(text);
}

std::optional<OnDisconnect> parse_on_disconnect(std::string_view text) {
  if (text == "wait") return OnDisconnect::wait;
  if (text == "fail") return OnDisconnect::fail;
  return {};
}

std::optional<std::string> parse_text(std::string_view text) {
  if (text.empty()) return {};
  return std::string(text);
}

}  // namespace

void add_guest_options(CLI::App& command, GuestOptions& options) {
  StackOptions& stack = options.stack;
  add_value(command, "--net", stack.net, parse_net, "a device, e.g. vhost-user:/tmp/nb.sock",
            "vhost-user:PATH", "the device: socket of a vhost-user back-end");
  add_values(command, "--ip", options.addresses, parse_host_prefix,
             "an address a host can have with its prefix length, e.g. 10.77.0.2/24", "A/B",
             "address of this side; may be given several times, the first is the primary one");
  add_value(command, "--gateway", stack.gateway, &IpAddress::parse, "an address, e.g. 10.77.0.1",
            "A", "default route");
  add_values(
      command, "--route", stack.routes, &Route::parse,
      "a prefix and its gateway, e.g. 10.88.0.0/16=10.77.0.9", "PREFIX=GATEWAY",
      "a route besides the default one; may be given several times, the longest prefix wins");
  add_value(command, "--mac", stack.mac, parse_unicast_mac,
            "a unicast MAC address, e.g. 02:00:00:00:00:02", "MAC",
            "Ethernet address (default: the device's)");
  add_value(command, "--mtu", stack.mtu, parse_mtu, right_mtu(), "BYTES",
            "largest IP packet (default: the device's)");
  add_value(
      command, "--pool-size", stack.pool_bytes,
      [](std::string_view text) -> std::optional<uint64_t> {
        const auto bytes = parse_bytes(text);
        if (!bytes || *bytes < kPoolMin || *bytes > kPoolMax) return {};
        return bytes;
      },
      "a size from 4M to 64G, e.g. 64M", "SIZE", "shared memory of this stack (default 64M)");
  add_value(command, "--queue-size", stack.queue_size, parse_queue_size, right_queue_size(), "N",
            "descriptors a virtqueue (default 1024)");
  add_value(command, "--mode", stack.mode, parse_mode, "one of the two modes, bounce or nocopy",
            "bounce|nocopy", "payload born in shared memory, or copied through swiotlb");
  add_value(command, "--capture", stack.capture, parse_text, "the name of a file", "FILE",
            "write all frames to a pcapng file, from private copies");
  add_value(command, "--on-disconnect", stack.on_disconnect, parse_on_disconnect,
            "one of wait, fail", "wait|fail",
            "when the back-end goes: wait for it and keep all connections, or fail (default)");
  add_config(command, options.config);
}

void finish_guest_options(CLI::App& command, GuestOptions& options) {
  apply_config(command, options.config);
  if (options.stack.net.empty()) {
    usage_error("--net", "missing: the device, e.g. --net vhost-user:/tmp/nb.sock");
  }
  if (command.get_option("--ip")->count() == 0) {
    usage_error("--ip", "missing: this side's address, e.g. --ip 10.77.0.2/24");
  }
  options.stack.address = options.addresses.front();
  options.stack.more_addresses.assign(options.addresses.begin() + 1, options.addresses.end());
}

Result<std::unique_ptr<Stack>> open_stack(const GuestOptions& options, const std::string& command) {
  StackOptions stack = options.stack;
  if (const auto directory = runtime_directory(); directory) {
    stack.counters = fmt::format("{}-{}", command, getpid());
  } else {
    log_warning("counters are not published: " + directory.error().to_string());
  }
  return Stack::open(stack);
}

Error socket_error(const Stack& stack, std::string operation, std::errc code) {
  if (const auto failure = stack.failure()) {
    return Error{std::errc::network_down, std::move(operation), *failure, {}};
  }
  const char* text = strerrordesc_np(static_cast<int>(code));
  std::string hint;
  if (code == std::errc::timed_out || code == std::errc::host_unreachable) {
    hint = "is the far end's address right, and is it on this side's subnet?";
  } else if (code == std::errc::connection_refused) {
    hint = "nothing listens there";
  }
  return Error{code, std::move(operation), text != nullptr ? text : "unknown error",
               std::move(hint)};
}

}  // namespace nobounce::cli
