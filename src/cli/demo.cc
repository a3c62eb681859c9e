// `nobounce demo`: the main job, from nothing, in processes of its own.
//
//   this process            nobounce backend (device)        nobounce perf (guest)
//   makes or takes a file
//   starts the device  -->  socket in a private directory
//   starts guests, one after the other ----------------->  the file out and back, both modes
//                                                          streams, both modes and directions
//   with root: the same once more, with the kernel's TCP behind a TAP as the far end
//   adds up their results, prints the tables, ends everything, removes the directory
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.hpp"
#include "base/unique_fd.hpp"
#include "cli/kernel_side.hpp"
#include "cli/metrics.hpp"
#include "cli/payload.hpp"
#include "cli/print.hpp"
#include "cli/process.hpp"
#include "cli/program.hpp"
#include "cli/progress.hpp"
#include "cli/sha256.hpp"
#include "cli/stop.hpp"
#include "cli/table.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

// Who is at the far end.
struct Place {
  const char* peer;
  const char* guest;
  std::vector<std::string> device;  // the back-end's words for it
};
const Place kBuiltIn{"10.77.0.1", "10.77.0.2/24", {"--net", "peer", "--ip", "10.77.0.1/24"}};
constexpr const char* kTap = "nb0";
constexpr const char* kKernel = "10.78.0.1";
constexpr uint64_t kFileBytes = uint64_t{256} << 20;
constexpr std::array<Mode, 2> kModes{Mode::bounce, Mode::nocopy};
constexpr std::array<const char*, 2> kDirections{"transmit", "receive"};

struct DemoOptions {
  std::string file;
  uint64_t file_bytes = kFileBytes;
  nanoseconds time{seconds(3)};
  uint64_t rounds = 2;
  uint64_t seed = 1;
};

// A private directory that goes with its handle.
class Directory {
 public:
  static Result<Directory> make() {
    const char* base = std::getenv("TMPDIR");
    std::string name =
        std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/nobounce-demo-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) return fail_errno("make a directory " + name);
    return Directory(std::move(name));
  }
  Directory(Directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Directory& operator=(Directory&&) = delete;
  ~Directory() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  explicit Directory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

std::unexpected<Error> interrupted() {
  return fail(std::errc::interrupted, "run the demo", "interrupted");
}

Result<void> make_file(const std::string& path, const DemoOptions& options) {
  print_out("making a file of {} from seed {}\n", format_bytes(options.file_bytes), options.seed);
  flush_output();
  const std::string operation = "write " + path;
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return fail_errno(operation);
  SeededRandom random(options.seed);
  std::vector<std::byte> block(1 << 20);
  for (uint64_t done = 0; done < options.file_bytes && !stop_requested();) {
    random.fill(block);
    Bytes rest = Bytes(block).first(std::min<uint64_t>(block.size(), options.file_bytes - done));
    done += rest.size();
    while (!rest.empty()) {
      const ssize_t written = ::write(fd.get(), rest.data(), rest.size());
      if (written < 0) return fail_errno(operation, "TMPDIR can name a place with more room");
      rest = rest.subspan(static_cast<size_t>(written));
    }
  }
  return {};
}

Result<std::string> hash_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail_errno("read " + path);
  Sha256 hash;
  std::vector<std::byte> block(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0) return fail_errno("read " + path);
    if (got == 0 || stop_requested()) return hash.hex();
    hash.update(Bytes(block).first(static_cast<size_t>(got)));
  }
}

// The device and the guests that come to it.
class Bench {
 public:
  static Result<Bench> open(const std::string& socket, const Place& place) {
    const auto program = this_program();
    if (!program) return std::unexpected(program.error());
    std::vector<std::string> words{*program, "backend", "--socket", socket};
    words.insert(words.end(), place.device.begin(), place.device.end());
    auto device = Process::start(words);
    if (!device) return std::unexpected(device.error());
    Bench bench(*std::move(device), *program, socket, place);
    for (int i = 0; i < 500; ++i) {
      if (std::filesystem::exists(socket)) return bench;
      if (stop_requested()) return interrupted();
      if (!bench.device_.is_running()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return fail(std::errc::no_such_process, "start the back-end", bench.device_words());
  }

  // One guest process; its result.
  Result<nlohmann::json> guest(Mode mode, const std::vector<std::string>& job, nanoseconds limit) {
    std::vector<std::string> words{program_,   "perf",       "--net",  "vhost-user:" + socket_,
                                   "--ip",     place_.guest, "--mode", to_string(mode),
                                   "--client", place_.peer,  "--json", "-"};
    words.insert(words.end(), job.begin(), job.end());
    const std::string operation = fmt::format("run the guest in {} mode", to_string(mode));
    auto process = Process::start(words);
    if (!process) return std::unexpected(process.error());
    const auto output = process->finish(
        limit,
        [](const std::string& line) {
          if (!line.starts_with("nobounce")) fmt::print(stderr, "  {}\n", line);
        },
        &device_);
    if (!output) return std::unexpected(output.error());
    if (output->status != 0) {
      return fail(std::errc::io_error, operation,
                  output->error.empty() ? fmt::format("it ended with status {}", output->status)
                                        : output->error,
                  device_.is_running() ? "" : "and the back-end is gone: " + device_words());
    }
    auto json = nlohmann::json::parse(output->text, nullptr, false);
    if (json.is_discarded())
      return fail(std::errc::bad_message, operation, "its result is no JSON");
    return json;
  }

 private:
  Bench(Process device, std::string program, std::string socket, Place place)
      : device_(std::move(device)),
        program_(std::move(program)),
        socket_(std::move(socket)),
        place_(std::move(place)) {}

  // What the device said last, when it is gone.
  std::string device_words() {
    std::string text = device_.error_text();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t line = text.rfind('\n');
    return text.empty()                ? "it said nothing"
           : line == std::string::npos ? text
                                       : text.substr(line + 1);
  }

  Process device_;
  std::string program_;
  std::string socket_;
  Place place_;
};

Result<void> transfer_file(Bench& bench, const std::string& path) {
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

// Sums over the rounds of one mode and direction.
struct Total {
  uint64_t bytes = 0;
  double seconds = 0;
  CounterMap moved;

  void add(const nlohmann::json& result) {
    bytes += result.value("bytes", uint64_t{0});
    seconds += result.value("seconds", 0.0);
    for (const auto& [name, value] : result.at("counters").items())
      moved[name] += value.get<uint64_t>();
  }
};

Result<ResultTable> stream(Bench& bench, const DemoOptions& options) {
  const double each = static_cast<double>(options.time.count()) / 1e9;
  print_out("streaming {:.1f} s at a time, modes interleaved, payload turning in {}\n", each,
            format_bytes(kRotationBytes));
  std::array<std::array<Total, 2>, 2> totals;  // direction, mode
  for (uint64_t round = 0; round < options.rounds; ++round) {
    for (size_t direction = 0; direction < 2; ++direction) {
      for (size_t turn = 0; turn < 2; ++turn) {
        const size_t mode = (turn + round) % 2;  // who goes first changes
        flush_output();
        fmt::print(stderr, "  round {} of {}: {} {}\n", round + 1, options.rounds,
                   to_string(kModes[mode]), kDirections[direction]);
        std::vector<std::string> job{"--time", fmt::format("{:.3f}", each)};
        if (direction == 1) job.emplace_back("--reverse");
        const auto result = bench.guest(kModes[mode], job, options.time + seconds(30));
        if (!result) return std::unexpected(result.error());
        totals[direction][mode].add(*result);
      }
    }
  }
  ResultTable table;
  for (size_t direction = 0; direction < 2; ++direction) {
    for (size_t mode = 0; mode < 2; ++mode) {
      Total& total = totals[direction][mode];
      table.cell[direction][mode] = measure(total.bytes, total.seconds, std::move(total.moved));
    }
  }
  return table;
}

Result<ResultTable> run_leg(const std::string& socket, const Place& place, const std::string& path,
                            const DemoOptions& options) {
  auto bench = Bench::open(socket, place);
  if (!bench) return std::unexpected(bench.error());
  if (const auto sent = transfer_file(*bench, path); !sent) return std::unexpected(sent.error());
  return stream(*bench, options);
}

// The same to the kernel, in a namespace that goes with this process. Nothing when it cannot be had.
Result<std::optional<ResultTable>> run_kernel_leg(const std::string& socket,
                                                  const std::string& path,
                                                  const DemoOptions& options) {
  auto side = KernelSide::start();
  if (!side) {
    print_out("the leg to the kernel's TCP is left out: {}\n", side.error().to_string());
    return std::nullopt;
  }
  print_out("the same to the kernel's TCP, over a TAP in a network namespace of its own\n");
  const Place place{
      kKernel, "10.78.0.2/24", {"--net", std::string("tap:") + kTap, "--netns", (*side)->netns()}};
  auto bench = Bench::open(socket, place);  // makes the TAP
  if (!bench) return std::unexpected(bench.error());
  if (auto served = (*side)->serve(kTap, kKernel); !served) return std::unexpected(served.error());
  if (const auto sent = transfer_file(*bench, path); !sent) return std::unexpected(sent.error());
  auto table = stream(*bench, options);
  if (!table) return std::unexpected(table.error());
  return std::optional(std::move(*table));
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
    if (const auto made = make_file(path, options); !made) return std::unexpected(made.error());
  }
  const auto table = run_leg(*directory / "nb.sock", kBuiltIn, path, options);
  if (!table) return std::unexpected(table.error());
  const auto kernel = run_kernel_leg(*directory / "tap.sock", path, options);
  if (!kernel) return std::unexpected(kernel.error());
  utsname system{};
  uname(&system);
  print_out("\nto the built-in peer\n{}", to_text(*table));
  if (*kernel) {
    print_out("\nto the kernel's TCP ({}) over a TAP, MTU 1500 with TSO\n{}\n",
              kernel_congestion_control(), to_text(**kernel));
  }
  print_out("{} CPUs, {} {}, {} x {:.1f} s a cell\n", std::thread::hardware_concurrency(),
            system.sysname, system.release, options.rounds,
            static_cast<double>(options.time.count()) / 1e9);
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
  add_value(*command, "--size", options.file_bytes, parse_bytes, "a size, e.g. 256M", "SIZE",
            "of the file that is made (default 256M)");
  add_value(*command, "--time", options.time, parse_duration, "a time in seconds, e.g. 3 or 500ms",
            "TIME", "of each stream (default 3)");
  add_value(
      *command, "--rounds", options.rounds,
      [](std::string_view text) { return parse_number(text, 1, 100); }, "a number from 1 to 100",
      "N", "streams per mode and direction (default 2)");
  add_value(
      *command, "--seed", options.seed,
      [](std::string_view text) { return parse_number(text, 0, UINT64_MAX); }, "a number", "N",
      "of the file (default 1)");
  command->footer(
      "Examples:\n"
      "  nobounce demo\n"
      "  nobounce demo --file /usr/bin/gdb --time 5\n");
  command->callback([&action] { action = [] { return run_demo(options); }; });
}

}  // namespace nobounce::cli
