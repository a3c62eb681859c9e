// `nobounce demo`: the main job, from nothing, in processes of its own.
//
//   this process            nobounce backend (device)        nobounce perf (guest)
//   makes or takes a file
//   starts the device  -->  socket in a private directory
//   starts guests, one after the other ----------------->  the file out and back, both modes
//                                                          streams, both modes and directions
//   with root: the same once more, with the kernel's TCP behind a TAP as the far end, and the
//   kernel's own client in turn with ours, over a veth pair; then both again at the largest MTU
//   adds up their results, prints the tables, ends everything, removes the directory
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/demo_file.hpp"
#include "cli/guest_bench.hpp"
#include "cli/interleave.hpp"
#include "cli/kernel_pair.hpp"
#include "cli/kernel_sockets.hpp"
#include "cli/metrics.hpp"
#include "cli/payload.hpp"
#include "cli/print.hpp"
#include "cli/program.hpp"
#include "cli/stop.hpp"
#include "cli/table.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr std::array<Mode, 2> kModes{Mode::bounce, Mode::nocopy};
// The usual one, and the largest that the kernel gives a TAP: 65535 less an Ethernet header. A veth
// would take 65535; it gets the same.
constexpr uint16_t kMtuUsual = 1500;
constexpr uint16_t kMtuLargest = 65521;

struct DemoOptions {
  std::string file;
  FileOptions made;
  nanoseconds time{seconds(3)};
  uint64_t rounds = 2;
};

double in_seconds(nanoseconds time) { return static_cast<double>(time.count()) / 1e9; }

Result<void> transfer_file(GuestBench& bench, const std::string& path) {
  const auto expected = hash_file(path);
  if (!expected) return std::unexpected(expected.error());
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  print_out("{}, {}, SHA-256 {}\n", path, format_bytes(size), *expected);
  for (const Mode mode : kModes) {
    flush_output();
    const auto result = bench.guest(mode, {"--file", path}, seconds(60) + seconds(size >> 24));
    if (!result) return std::unexpected(result.error());
    const std::string sent = result->value("sha256_sent", "");
    const std::string received = result->value("sha256_received", "");
    if (sent != *expected || received != *expected) {
      return fail(std::errc::bad_message, fmt::format("send the file in {} mode", to_string(mode)),
                  fmt::format("SHA-256 of what left is {}, of what came back {}", sent, received));
    }
    print_out("  {}: out and back in {:.2f} s, SHA-256 equal both ways\n", to_string(mode),
              result->value("seconds", 0.0));
  }
  return {};
}

// A guest in one mode as a runner. The CPU time is its own while it streamed, the device's, and this
// process's, in which the kernel's services run.
Runner guest_runner(GuestBench& bench, Mode mode) {
  return {to_string(mode), [&bench, mode](Direction direction, nanoseconds time) -> Result<Sample> {
            std::vector<std::string> job{"--time", fmt::format("{:.3f}", in_seconds(time)),
                                         "--chunk", std::to_string(kKernelPieceBytes)};
            if (direction == Direction::receive) job.emplace_back("--reverse");
            const uint64_t before_ns = bench.device_cpu_ns() + process_cpu_ns();
            const auto result = bench.guest(mode, job, time + seconds(30));
            if (!result) return std::unexpected(result.error());
            const uint64_t beside_ns = bench.device_cpu_ns() + process_cpu_ns() - before_ns;
            Sample sample{.bytes = result->value("bytes", uint64_t{0}),
                          .seconds = result->value("seconds", 0.0),
                          .cpu_ns = result->value("process_cpu_ns", uint64_t{0}) + beside_ns,
                          .moved = {}};
            for (const auto& [name, value] : result->at("counters").items()) {
              sample.moved[name] = value.get<uint64_t>();
            }
            return sample;
          }};
}

Result<Sums> stream(GuestBench& bench, const std::vector<Runner>& others,
                    const DemoOptions& options) {
  print_out("streaming {:.1f} s at a time, interleaved, in pieces of {} turning in {}\n",
            in_seconds(options.time), format_bytes(kKernelPieceBytes),
            format_bytes(kRotationBytes));
  std::vector<Runner> runners;
  for (const Mode mode : kModes) runners.push_back(guest_runner(bench, mode));
  runners.insert(runners.end(), others.begin(), others.end());
  return interleave(runners, options.rounds, options.time);
}

ResultTable result_table(const Sums& sums) {
  ResultTable table;
  for (size_t direction = 0; direction < 2; ++direction) {
    for (size_t mode = 0; mode < kModes.size(); ++mode) {
      const Sample& sum = sums[direction][mode];
      table.cell[direction][mode] = measure(sum.bytes, sum.seconds, sum.moved);
    }
  }
  return table;
}

BesideKernel beside_kernel(const Sums& sums, uint16_t mtu) {
  BesideKernel row{.mtu = mtu, .cell = {}};
  for (size_t direction = 0; direction < 2; ++direction) {
    for (size_t who = 0; who < row.cell[direction].size(); ++who) {
      const Sample& sum = sums[direction][who];
      if (sum.bytes == 0) continue;
      const auto bytes = static_cast<double>(sum.bytes);
      row.cell[direction][who] = {
          .gbit_per_s = bytes * 8 / sum.seconds / 1e9,
          .cpu_ns_per_kib = static_cast<double>(sum.cpu_ns) / bytes * 1024,
      };
    }
  }
  return row;
}

Result<ResultTable> run_leg(const std::string& socket, const std::string& path,
                            const DemoOptions& options) {
  const Place place{"10.77.0.1", "10.77.0.2/24", {"--net", "peer", "--ip", "10.77.0.1/24"}};
  auto bench = GuestBench::open(socket, place);
  if (!bench) return std::unexpected(bench.error());
  if (const auto sent = transfer_file(*bench, path); !sent) return std::unexpected(sent.error());
  const auto sums = stream(*bench, {}, options);
  if (!sums) return std::unexpected(sums.error());
  return result_table(*sums);
}

// What the kernel's legs gave; no rows: they are left out.
struct KernelLegs {
  std::string control;  // the kernel's congestion control
  ResultTable table;    // of the first MTU
  std::vector<BesideKernel> rows;
};

// Guests and the kernel itself in turn, at one MTU.
Result<void> run_kernel_leg(KernelPair& kernel, KernelStream& payload, GuestBench& bench,
                            uint16_t mtu, const DemoOptions& options, KernelLegs& legs) {
  const Runner itself{"kernel", [&](Direction direction, nanoseconds time) {
                        return kernel.run(payload, direction, time);
                      }};
  const auto sums = stream(bench, {itself}, options);
  if (!sums) return std::unexpected(sums.error());
  if (legs.rows.empty()) legs.table = result_table(*sums);
  legs.rows.push_back(beside_kernel(*sums, mtu));
  legs.control = kernel.congestion_control();
  return {};
}

Result<KernelLegs> run_kernel_legs(const Directory& directory, const std::string& path,
                                   const DemoOptions& options) {
  KernelLegs legs;
  std::optional<KernelStream> payload;
  for (const uint16_t mtu : {kMtuUsual, kMtuLargest}) {
    auto kernel = KernelPair::open(mtu);
    if (!kernel) {
      print_out("the legs to the kernel's TCP are left out: {}\n", kernel.error().to_string());
      break;
    }
    print_out("to the kernel's TCP over a TAP, and the kernel's own over a veth pair, MTU {}\n",
              mtu);
    const Place place{KernelPair::kTapAddress,
                      "10.78.0.2/24",
                      {"--net", std::string("tap:") + KernelPair::kTap, "--netns",
                       (*kernel)->netns(), "--mtu", std::to_string(mtu)}};
    auto bench = GuestBench::open(directory / fmt::format("tap-{}.sock", mtu), place);
    if (!bench) return std::unexpected(bench.error());
    auto done = (*kernel)->set_up_tap();
    if (done && mtu == kMtuUsual) done = transfer_file(*bench, path);
    if (!payload) payload.emplace(options.made.seed);
    if (done) done = run_kernel_leg(**kernel, *payload, *bench, mtu, options, legs);
    if (!done) return std::unexpected(done.error());
  }
  return legs;
}

void print_kernel_legs(const KernelLegs& legs) {
  print_out("\nto the kernel's TCP ({}) over a TAP, MTU {} with TSO\n{}\n", legs.control, kMtuUsual,
            to_text(legs.table));
  print_out(
      "\nour TCP (NewReno) to the kernel's ({0}) over a TAP, beside the kernel's to itself "
      "({0}) over a veth pair\n{1}\n",
      legs.control, to_text(legs.rows));
  print_out(
      "CPU: of the guest while it streams, the back-end and the kernel's side with the packet "
      "work the kernel\ndoes in their threads; without ksoftirqd\n");
}

Result<int> run_demo(const DemoOptions& options) {
  (void)catch_stop_signals();
  if (!options.file.empty() && access(options.file.c_str(), R_OK) != 0) {
    return fail_errno("read " + options.file);
  }
  auto directory = Directory::make();
  if (!directory) return std::unexpected(directory.error());
  std::string path = options.file;
  if (path.empty()) {
    path = *directory / "file";
    print_out("making a file of {} from seed {}\n", format_bytes(options.made.bytes),
              options.made.seed);
    flush_output();
    if (const auto made = make_file(path, options.made); !made) {
      return std::unexpected(made.error());
    }
  }
  const auto table = run_leg(*directory / "nb.sock", path, options);
  if (!table) return std::unexpected(table.error());
  const auto legs = run_kernel_legs(*directory, path, options);
  if (!legs) return std::unexpected(legs.error());
  utsname system{};
  uname(&system);
  print_out("\nto the built-in peer\n{}\n", to_text(*table));
  if (!legs->rows.empty()) print_kernel_legs(*legs);
  print_out("{} CPUs, {} {}, {} x {:.1f} s a cell\n", std::thread::hardware_concurrency(),
            system.sysname, system.release, options.rounds, in_seconds(options.time));
  return 0;
}

}  // namespace

void define_demo(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand(
      "demo", "The main job: a file out and back, then streams, in both modes");
  static DemoOptions options;
  add_value(
      *command, "--file", options.file,
      [](std::string_view text) -> std::optional<std::string> {
        if (text.empty()) return {};
        return std::string(text);
      },
      "the name of a file", "PATH", "the file to send (default: made from the seed)");
  add_value(*command, "--size", options.made.bytes, parse_bytes, "a size, e.g. 256M", "SIZE",
            "of the file that is made (default 256M)");
  add_value(*command, "--time", options.time, parse_duration, "a time in seconds, e.g. 3 or 500ms",
            "TIME", "of each stream (default 3)");
  add_value(
      *command, "--rounds", options.rounds,
      [](std::string_view text) { return parse_number(text, 1, 100); }, "a number from 1 to 100",
      "N", "streams per mode and direction (default 2)");
  add_value(
      *command, "--seed", options.made.seed,
      [](std::string_view text) { return parse_number(text, 0, UINT64_MAX); }, "a number", "N",
      "of the file (default 1)");
  command->footer(
      "Examples:\n"
      "  nobounce demo\n"
      "  nobounce demo --file /usr/bin/gdb --time 5\n");
  command->callback([&action] { action = [] { return run_demo(options); }; });
}

}  // namespace nobounce::cli
