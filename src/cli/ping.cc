#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include "base/clock.hpp"
#include "cli/guest_options.hpp"
#include "cli/print.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::nanoseconds;

constexpr size_t kPayloadMax = 65507 - 8;

struct PingOptions {
  GuestOptions guest;
  IpAddress to;
  uint64_t count = 4;
  nanoseconds interval{std::chrono::seconds(1)};
  nanoseconds timeout{std::chrono::seconds(1)};
  uint64_t payload_bytes = 56;
};

struct PingSummary {
  uint64_t sent = 0;
  uint64_t received = 0;
  uint64_t least_ns = UINT64_MAX;
  uint64_t most_ns = 0;
  double sum_ns = 0;

  void add(uint64_t rtt_ns) {
    ++received;
    least_ns = std::min(least_ns, rtt_ns);
    most_ns = std::max(most_ns, rtt_ns);
    sum_ns += static_cast<double>(rtt_ns);
  }
};

double ms(double ns) { return ns / 1e6; }

void print_summary(const IpAddress& to, const PingSummary& summary) {
  const uint64_t lost = summary.sent - summary.received;
  print_out("{}: {} sent, {} received, {} % lost", to.to_string(), summary.sent, summary.received,
            summary.sent == 0 ? 0 : 100 * lost / summary.sent);
  if (summary.received > 0) {
    print_out("; rtt min/avg/max {:.3f}/{:.3f}/{:.3f} ms",
              ms(static_cast<double>(summary.least_ns)),
              ms(summary.sum_ns / static_cast<double>(summary.received)),
              ms(static_cast<double>(summary.most_ns)));
  }
  print_out("\n");
}

Result<int> run_ping(const PingOptions& options) {
  (void)catch_stop_signals();
  auto stack = open_stack(options.guest, "ping");
  if (!stack) return std::unexpected(stack.error());
  MonotonicClock clock;
  PingSummary summary;
  for (uint64_t i = 0; i < options.count && !stop_requested(); ++i) {
    const uint64_t next_ns = clock.now_ns() + static_cast<uint64_t>(options.interval.count());
    const auto reply = (*stack)->ping(options.to, static_cast<uint16_t>(i + 1),
                                      options.payload_bytes, options.timeout);
    ++summary.sent;
    if (reply) {
      summary.add(reply->rtt_ns);
      print_out("{} bytes from {}: seq {} ttl {} time {:.3f} ms\n", reply->bytes,
                reply->from.to_string(), i + 1, reply->ttl, ms(static_cast<double>(reply->rtt_ns)));
    } else if (reply.error() == std::errc::timed_out) {
      print_out("no answer to seq {}\n", i + 1);
    } else {
      return std::unexpected(
          socket_error(**stack, "ping " + options.to.to_string(), reply.error()));
    }
    flush_output();
    if (i + 1 == options.count) break;
    while (!stop_requested() && clock.now_ns() < next_ns) {
      const uint64_t left = next_ns - std::min(next_ns, clock.now_ns());
      std::this_thread::sleep_for(nanoseconds(std::min<uint64_t>(left, 50 * kNsPerMs)));
    }
  }
  print_summary(options.to, summary);
  return summary.received > 0 ? 0 : 1;
}

}  // namespace

void define_ping(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("ping", "Send ICMP echo requests");
  static PingOptions options;
  add_guest_options(*command, options.guest);
  CLI::Option* to = add_value(*command, "ADDR", options.to, &IpAddress::parse,
                              "an address, e.g. 10.77.0.1", "", "whom to ask");
  add_value(
      *command, "-c,--count", options.count,
      [](std::string_view text) { return parse_number(text, 1, 65535); },
      "a number from 1 to 65535", "N", "how many (default 4)");
  add_value(*command, "-i,--interval", options.interval, parse_duration,
            "a time in seconds, e.g. 0.2 or 200ms", "TIME", "from one to the next (default 1)");
  add_value(*command, "-W,--timeout", options.timeout, parse_duration,
            "a time in seconds, e.g. 1 or 500ms", "TIME", "wait for each answer (default 1)");
  add_value(
      *command, "-s,--size", options.payload_bytes,
      [](std::string_view text) { return parse_number(text, 0, kPayloadMax); },
      fmt::format("a number of bytes from 0 to {}", kPayloadMax), "BYTES",
      "payload of a request (default 56)");
  command->footer(
      "Exit status 0 when at least one answer came.\n\n"
      "Example:\n"
      "  nobounce ping --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 -c 3 10.77.0.1\n");
  command->callback([command, to, &action] {
    finish_guest_options(*command, options.guest);
    if (to->count() == 0) usage_error("ADDR", "missing: whom to ask, e.g. 10.77.0.1");
    action = [] { return run_ping(options); };
  });
}

}  // namespace nobounce::cli
