#include "backend/backend.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <ranges>

#include "base/counters.hpp"
#include "base/log.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

struct BackendCommand {
  backend::BackendOptions backend;
  std::string impair;
  std::string config;
  bool no_isolation = false;
  bool client = false;
};

Result<int> run(BackendCommand& options) {
  hold_stop_signals();
  if (const auto directory = runtime_directory(); directory) {
    options.backend.counters = fmt::format("backend-{}", getpid());
  } else {
    log_warning("counters are not published: " + directory.error().to_string());
  }
  options.backend.isolate = !options.no_isolation;
  options.backend.role = options.client ? backend::Role::client : backend::Role::server;
  auto backend = backend::open_backend(options.backend);
  if (!backend) return std::unexpected(backend.error());
  // Its thread is made without the privileges that were given up, and before the filter.
  auto done = (*backend)->run(catch_stop_signals());
  if (!done) return std::unexpected(done.error());
  return 0;
}

std::optional<std::vector<std::string>> parse_paths(std::string_view text) {
  std::vector<std::string> paths;
  for (const auto part : std::views::split(text, ',')) {
    paths.emplace_back(part.begin(), part.end());
    if (paths.back().empty()) return std::nullopt;
  }
  return paths;
}

}  // namespace

void define_backend(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand(
      "backend", "Be the device: a vhost-user back-end in a process of its own");
  static BackendCommand options;
  add_value(*command, "--socket", options.backend.sockets, parse_paths,
            "a path, or several with commas between them", "PATH[,PATH]",
            "the vhost-user socket; several guests may come on one");
  add_value(
      *command, "--net", options.backend.net,
      [](std::string_view value) -> std::optional<std::string> {
        const bool tap = value.starts_with("tap:") && value.size() > 4;
        if (value != "peer" && value != "link" && !tap) return {};
        return std::string(value);
      },
      "a network of the device; there are: peer, link, tap:NAME", "peer|link|tap:NAME",
      "what is behind the device: 'peer' answers on a stack in this process (default), 'link' "
      "joins all guests like a switch, 'tap:NAME' joins them with a TAP interface of the kernel");
  add_value(
      *command, "--netns", options.backend.netns,
      [](std::string_view value) -> std::optional<std::string> {
        if (value.empty()) return {};
        return std::string(value);
      },
      "a name below /run/netns or a path", "NAME|PATH", "network namespace of the TAP interface");
  add_value(
      *command, "--impair", options.impair,
      [](std::string_view value) { return std::optional<std::string>(value); }, "", "LIST",
      "damage what passes between guests and network, e.g. loss=1%,reorder=2%,duplicate=1%,"
      "corrupt=0.1%,delay=10ms,rate=100M,seed=7");
  add_value(*command, "--ip", options.backend.address, parse_host_prefix,
            "an address a host can have with its prefix length, e.g. 10.77.0.1/24", "A/B",
            "address of the peer (default 10.77.0.1/24)");
  add_value(*command, "--mac", options.backend.mac, parse_unicast_mac,
            "a unicast MAC address, e.g. 02:00:00:00:00:01", "MAC", "of the peer");
  add_value(*command, "--guest-mac", options.backend.guest_mac, parse_unicast_mac,
            "a unicast MAC address, e.g. 02:00:00:00:00:02", "MAC", "offered to the guest");
  add_value(*command, "--mtu", options.backend.mtu, parse_mtu, right_mtu(), "BYTES",
            "offered to guests (default 1500, or what the TAP has; given, it is set there too)");
  add_value(*command, "--queue-size", options.backend.queue_size_limit, parse_queue_size,
            right_queue_size(), "N", "largest virtqueue (default 1024)");
  command->add_flag("--once", options.backend.once, "end when the first guest has left");
  command->add_flag("--client", options.client, "connect to the socket instead of making it");
  command->add_flag("--no-isolation", options.no_isolation,
                    "no system-call filter (for debuggers)");
  add_config(*command, options.config);
  command->footer(
      "The process maps the guest's shared region and nothing else of it, and by default locks "
      "itself\n"
      "into the system calls it needs. It serves guests as they come and go until it is stopped: "
      "the\n"
      "peer one at a time, a link or TAP up to 64 at once. A TAP is made when it is not there "
      "(for\n"
      "that the process needs CAP_NET_ADMIN), and goes when the process ends unless it is "
      "persistent.\n\n"
      "Examples:\n"
      "  nobounce backend --socket /tmp/nb.sock --net peer --ip 10.77.0.1/24\n"
      "  nobounce backend --socket /tmp/nb.sock --net link --impair loss=1%,delay=5ms\n"
      "  nobounce backend --socket /tmp/nb.sock --net tap:nb0 --netns test\n");
  command->callback([command, &action] {
    // A file may be shared with commands that need an address.
    const bool names_peer = command->count("--ip") + command->count("--mac") > 0;
    apply_config(*command, options.config);
    if (options.backend.sockets.empty()) {
      usage_error("--socket", "missing: where the guest finds it, e.g. --socket /tmp/nb.sock");
    }
    if (!options.impair.empty()) {
      auto impair = parse_impairments(options.impair);
      if (!impair) usage_error("--impair", impair.error().to_string());
      options.backend.impair = *impair;
    }
    if (!options.backend.netns.empty() && !options.backend.net.starts_with("tap:")) {
      usage_error("--netns", "only with --net tap:NAME");
    }
    if (names_peer && options.backend.net != "peer") {
      usage_error(command->count("--ip") > 0 ? "--ip" : "--mac", "only with --net peer");
    }
    action = [] { return run(options); };
  });
}

}  // namespace nobounce::cli
