#include "cli/cat.hpp"

#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

std::optional<uint16_t> parse_port(std::string_view text) {
  return parse_number(text, 1, 65535).transform([](uint64_t port) {
    return static_cast<uint16_t>(port);
  });
}

Result<int> run_cat(const CatOptions& options) {
  (void)catch_stop_signals();
  auto stack = open_stack(options.guest, "cat");
  if (!stack) return std::unexpected(stack.error());
  return options.udp ? run_cat_udp(**stack, options) : run_cat_tcp(**stack, options);
}

void check(const CLI::Option& host, const CLI::Option& port, CatOptions& options) {
  const bool client = host.count() > 0;
  if (client == options.listen.has_value()) {
    usage_error("HOST", client ? "it and --listen exclude each other"
                               : "missing: HOST and PORT, or --listen PORT");
  }
  if (client && port.count() == 0) usage_error("PORT", "missing, e.g. cat 10.77.0.1 7000");
}

}  // namespace

void define_cat(CLI::App& program, Action& action) {
  CLI::App* command =
      program.add_subcommand("cat", "Move standard input and output over TCP or UDP");
  static CatOptions options;
  add_guest_options(*command, options.guest);
  CLI::Option* host = add_value(*command, "HOST", options.remote.address, &IpAddress::parse,
                                "an address, e.g. 10.77.0.1", "", "whom to talk to");
  CLI::Option* port = add_value(*command, "PORT", options.remote.port, parse_port,
                                "a port from 1 to 65535", "", "and at which port");
  add_value(*command, "-l,--listen", options.listen, parse_port, "a port from 1 to 65535", "PORT",
            "wait there for the first who comes, instead");
  command->add_flag("-u,--udp", options.udp, "datagrams: each read of the input is one");
  command->add_flag("-v,--verbose", options.verbose, "say who is connected");
  add_value(
      *command, "-w,--wait", options.wait, parse_duration, "a time in seconds, e.g. 5 or 500ms",
      "TIME",
      "give up connecting or listening after this long (default: 10 s, for ever); with -u: end "
      "after this much silence behind the input's end (default 1 s)");
  command->footer(
      "The end of the input ends our direction alone (half-close): the command ends when the far\n"
      "end has ended its own, and exits 0 when both did in order.\n\n"
      "Examples:\n"
      "  nobounce cat --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 10.77.0.1 7000 < file\n"
      "  nobounce cat --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 --listen 7000 > file\n");
  command->callback([command, host, port, &action] {
    finish_guest_options(*command, options.guest);
    check(*host, *port, options);
    action = [] { return run_cat(options); };
  });
}

}  // namespace nobounce::cli
