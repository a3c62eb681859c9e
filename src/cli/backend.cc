#include "backend/backend.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/counters.hpp"
#include "base/log.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

struct BackendCommand {
  backend::BackendOptions backend;
  std::string net = "peer";
  std::string config;
  bool no_isolation = false;
  bool client = false;
};

Result<int> run(BackendCommand& options) {
  const std::stop_token stop = catch_stop_signals();
  if (const auto directory = runtime_directory(); directory) {
    options.backend.counters = fmt::format("backend-{}", getpid());
  } else {
    log_warning("counters are not published: " + directory.error().to_string());
  }
  options.backend.isolate = !options.no_isolation;
  options.backend.role = options.client ? backend::Role::client : backend::Role::server;
  auto done = backend::run_backend(options.backend, stop);
  if (!done) return std::unexpected(done.error());
  return 0;
}

}  // namespace

void define_backend(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand(
      "backend", "Be the device: a vhost-user back-end in a process of its own");
  static BackendCommand options;
  const auto text = [](std::string_view value) -> std::optional<std::string> {
    if (value.empty()) return {};
    return std::string(value);
  };
  add_value(*command, "--socket", options.backend.socket, text, "a path", "PATH",
            "the vhost-user socket");
  add_value(
      *command, "--net", options.net,
      [](std::string_view value) -> std::optional<std::string> {
        if (value != "peer") return {};
        return std::string(value);
      },
      "a network of the device; there is: peer", "peer",
      "what is behind the device: 'peer' answers on a stack in this process (default)");
  add_value(*command, "--ip", options.backend.address, parse_host_prefix,
            "an address a host can have with its prefix length, e.g. 10.77.0.1/24", "A/B",
            "address of the peer (default 10.77.0.1/24)");
  add_value(*command, "--mac", options.backend.mac, parse_unicast_mac,
            "a unicast MAC address, e.g. 02:00:00:00:00:01", "MAC", "of the peer");
  add_value(*command, "--guest-mac", options.backend.guest_mac, parse_unicast_mac,
            "a unicast MAC address, e.g. 02:00:00:00:00:02", "MAC", "offered to the guest");
  add_value(
      *command, "--mtu", options.backend.mtu,
      [](std::string_view value) {
        return parse_number(value, 576, 65520).transform([](uint64_t mtu) {
          return static_cast<uint16_t>(mtu);
        });
      },
      "a number of bytes from 576 to 65520", "BYTES", "offered to the guest (default 1500)");
  add_value(*command, "--queue-size", options.backend.queue_size_limit, parse_queue_size,
            "a power of two from 64 to 32768", "N", "largest virtqueue (default 1024)");
  command->add_flag("--once", options.backend.once, "end when the first guest has left");
  command->add_flag("--client", options.client, "connect to the socket instead of making it");
  command->add_flag("--no-isolation", options.no_isolation,
                    "no system-call filter (for debuggers)");
  add_config(*command, options.config);
  command->footer(
      "The process maps the guest's shared region and nothing else of it, and by default locks "
      "itself\n"
      "into the system calls it needs. It serves one guest after the other until it is stopped.\n\n"
      "Example:\n"
      "  nobounce backend --socket /tmp/nb.sock --net peer --ip 10.77.0.1/24\n");
  command->callback([command, &action] {
    apply_config(*command, options.config);
    if (options.backend.socket.empty()) {
      usage_error("--socket", "missing: where the guest finds it, e.g. --socket /tmp/nb.sock");
    }
    action = [] { return run(options); };
  });
}

}  // namespace nobounce::cli
