#include "cli/perf.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/print.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

struct PerfCommand {
  PerfOptions perf;
  bool reverse = false;
  bool echo = false;
};

nlohmann::ordered_json report(const PerfOptions& options, const PerfResult& result) {
  nlohmann::ordered_json json = {{"command", "perf"},
                                 {"version", NOBOUNCE_VERSION},
                                 {"mode", to_string(options.guest.stack.mode)},
                                 {"job", to_string(options.job)}};
  json["interrupted"] = result.interrupted;
  json.update(to_json(result.metrics));
  if (!result.sha256_sent.empty()) {
    json["sha256_sent"] = result.sha256_sent;
    json["sha256_received"] = result.sha256_received;
  }
  return json;
}

Result<void> write_json(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2) + "\n";
  if (path == "-") {
    print_text(text);
    return {};
  }
  std::ofstream file(path);
  file << text;
  file.flush();
  if (!file) return fail_errno("write " + path);
  return {};
}

Result<int> run_client(const PerfOptions& options) {
  (void)catch_stop_signals();
  auto stack = open_stack(options.guest, "perf");
  if (!stack) return std::unexpected(stack.error());
  const auto result = run_perf_client(**stack, options);
  if (!result) return std::unexpected(result.error());
  if (options.json != "-") {
    print_out("{} {}: {}", to_string(options.guest.stack.mode), to_string(options.job),
              to_text(result->metrics));
    if (!result->sha256_sent.empty()) {
      print_out("SHA-256 sent      {}\nSHA-256 received  {}\n", result->sha256_sent,
                result->sha256_received);
    }
  }
  if (!options.json.empty()) {
    const auto written = write_json(options.json, report(options, *result));
    if (!written) return std::unexpected(written.error());
  }
  if (result->sha256_sent != result->sha256_received) {
    return fail(std::errc::bad_message, "compare what was sent with what came back",
                "the SHA-256 sums differ", "this is a bug: please report it with the command line");
  }
  if (result->interrupted) {
    fmt::print(stderr, "nobounce perf: interrupted; the result is that of the {} until then\n",
               format_bytes(result->metrics.bytes));
    return stop_status();
  }
  return 0;
}

Result<int> run_server(const PerfOptions& options) {
  (void)catch_stop_signals();
  auto stack = open_stack(options.guest, "perf");
  if (!stack) return std::unexpected(stack.error());
  return run_perf_server(**stack, options);
}

void check(CLI::App& command, PerfCommand& options) {
  PerfOptions& perf = options.perf;
  finish_guest_options(command, perf.guest);
  const bool client = command.get_option("--client")->count() != 0;
  if (client == perf.server) {
    usage_error("--client", client ? "it and --server exclude each other"
                                   : "missing: --client ADDR, or --server");
  }
  if (options.reverse && options.echo) {
    usage_error("--reverse", "it and --echo exclude each other");
  }
  if (options.reverse && !perf.file.empty()) {
    usage_error("--reverse", "it and --file exclude each other: a file goes out and back");
  }
  if (!perf.file.empty() && (perf.bytes || perf.time)) {
    usage_error("--file", "the whole file is sent: no --bytes and no --time with it");
  }
  if (perf.server && (perf.bytes || perf.time || !perf.file.empty())) {
    usage_error("--server", "it has no use for --bytes, --time and --file: they are the client's");
  }
  if (options.reverse) perf.job = PerfJob::receive;
  if (options.echo || !perf.file.empty()) perf.job = PerfJob::echo;
  if (perf.client.port == 0) perf.client.port = perf.port.value_or(service_port(perf.job));
  if (client && !perf.bytes && !perf.time && perf.file.empty()) {
    perf.time = std::chrono::seconds(10);
  }
}

}  // namespace

const char* to_string(PerfJob job) noexcept {
  switch (job) {
    case PerfJob::transmit:
      return "transmit";
    case PerfJob::receive:
      return "receive";
    case PerfJob::echo:
      return "echo";
  }
  return "?";
}

uint16_t service_port(PerfJob job) noexcept {
  switch (job) {
    case PerfJob::transmit:
      return kDiscardPort;
    case PerfJob::receive:
      return kSourcePort;
    case PerfJob::echo:
      return kEchoPort;
  }
  return 0;
}

void define_perf(CLI::App& program, Action& action) {
  CLI::App* command =
      program.add_subcommand("perf", "Measure a TCP stream, or send a file and check it");
  static PerfCommand options;
  PerfOptions& perf = options.perf;
  add_guest_options(*command, perf.guest);
  command->add_flag("--server", perf.server, "serve: discard, source and echo, until stopped");
  add_value(*command, "--client", perf.client, parse_endpoint,
            "an address with or without a port, e.g. 10.77.0.1 or 10.77.0.1:9", "ADDR[:PORT]",
            "whom to talk to");
  add_value(
      *command, "--port", perf.port,
      [](std::string_view text) {
        return parse_number(text, 1, 65535).transform([](uint64_t port) {
          return static_cast<uint16_t>(port);
        });
      },
      "a port from 1 to 65535", "PORT",
      "server: only one service here; client: the far end's port");
  command->add_flag("--reverse", options.reverse, "the far end sends");
  command->add_flag("--echo", options.echo, "out and back at once, compared by SHA-256");
  add_value(
      *command, "--file", perf.file,
      [](std::string_view text) -> std::optional<std::string> {
        if (text.empty()) return {};
        return std::string(text);
      },
      "the name of a file", "PATH",
      "send this file to the echo service, compare SHA-256 both ways");
  add_value(*command, "--bytes", perf.bytes, parse_bytes, "a size, e.g. 100M or 4G", "SIZE",
            "stop after this much");
  add_value(*command, "--time", perf.time, parse_duration, "a time in seconds, e.g. 5 or 500ms",
            "TIME", "stop after this long (default 10)");
  add_value(
      *command, "--chunk", perf.chunk_bytes,
      [](std::string_view text) -> std::optional<uint64_t> {
        const auto bytes = parse_bytes(text);
        if (!bytes || *bytes > kMaxChunk) return {};
        return bytes;
      },
      "a size from 1 to 16M, e.g. 64K", "SIZE", "bytes a call (default 64K)");
  add_value(
      *command, "--seed", perf.seed,
      [](std::string_view text) { return parse_number(text, 0, UINT64_MAX); }, "a number", "N",
      "of the payload (default 1)");
  add_value(
      *command, "--json", perf.json,
      [](std::string_view text) -> std::optional<std::string> {
        if (text.empty()) return {};
        return std::string(text);
      },
      "the name of a file, or - for standard output", "FILE",
      "write the result as JSON; - is stdout");
  command->footer(
      "The payload turns in 256 MiB made from the seed, so that no cache holds it.\n\n"
      "Examples:\n"
      "  nobounce perf --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 --client 10.77.0.1 --time "
      "5\n"
      "  nobounce perf ... --client 10.77.0.1 --reverse --mode bounce --json -\n"
      "  nobounce perf ... --client 10.77.0.1 --file /usr/bin/gdb\n"
      "  nobounce perf ... --server\n");
  command->callback([command, &action] {
    check(*command, options);
    action = [] {
      return options.perf.server ? run_server(options.perf) : run_client(options.perf);
    };
  });
}

}  // namespace nobounce::cli
