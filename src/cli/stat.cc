// Reads what running processes publish; changes nothing.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/counters.hpp"
#include "cli/print.hpp"
#include "cli/program.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

struct StatOptions {
  std::string which;  // name, pid or nothing for all
  bool json = false;
  bool zeros = false;
};

struct Published {
  std::string name;  // "perf-1234"
  uint64_t pid = 0;  // 0: the name has none
  std::vector<CounterSample> samples;
};

// A file outlives its process only when that was killed.
bool is_running(uint64_t pid) {
  return pid == 0 || kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
}

bool is_wanted(const std::string& which, const std::string& name, uint64_t pid) {
  return which.empty() || which == name || (pid != 0 && which == std::to_string(pid));
}

Result<std::vector<Published>> find(const StatOptions& options) {
  const auto directory = runtime_directory();
  if (!directory) return std::unexpected(directory.error());
  std::vector<Published> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(*directory, error)) {
    Published process;
    process.name = entry.path().filename().string();
    const size_t dash = process.name.rfind('-');
    if (dash != std::string::npos) {
      process.pid =
          parse_number(std::string_view(process.name).substr(dash + 1), 1, INT32_MAX).value_or(0);
    }
    if (!is_wanted(options.which, process.name, process.pid) || !is_running(process.pid)) continue;
    auto samples = read_counters(entry.path().string());
    if (!samples) continue;  // other files may lie here too
    process.samples = *std::move(samples);
    found.push_back(std::move(process));
  }
  std::ranges::sort(found, {}, &Published::name);
  return found;
}

// Non-zero first, both parts by name.
void print_table(std::vector<Published>& found, bool zeros) {
  for (Published& process : found) {
    print_out("{}\n", process.name);
    std::ranges::sort(process.samples, [](const CounterSample& a, const CounterSample& b) {
      return std::pair(a.value == 0, a.name) < std::pair(b.value == 0, b.name);
    });
    size_t hidden = 0;
    for (const CounterSample& sample : process.samples) {
      if (sample.value == 0 && !zeros) {
        ++hidden;
        continue;
      }
      print_out("  {:<52} {:>20}\n", sample.name, sample.value);
    }
    if (hidden > 0) print_out("  {} more are zero (--zeros shows them)\n", hidden);
  }
}

void print_json(const std::vector<Published>& found) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Published& process : found) {
    nlohmann::ordered_json counters = nlohmann::ordered_json::object();
    for (const CounterSample& sample : process.samples) counters[sample.name] = sample.value;
    all.push_back({{"name", process.name}, {"pid", process.pid}, {"counters", counters}});
  }
  print_out("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

Result<int> run_stat(const StatOptions& options) {
  auto found = find(options);
  if (!found) return std::unexpected(found.error());
  if (options.json) {
    print_json(*found);
  } else {
    print_table(*found, options.zeros);
  }
  if (!found->empty() || (options.which.empty() && options.json)) return 0;
  return fail(std::errc::no_such_process,
              options.which.empty() ? "find a running process"
                                    : "find a running process '" + options.which + "'",
              "none publishes counters",
              "start one of this user's, e.g. nobounce backend; 'nobounce stat' lists them all");
}

}  // namespace

void define_stat(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("stat", "Show the counters of running processes");
  static StatOptions options;
  command->add_option("WHICH", options.which, "a process by name or pid (default: all)");
  command->add_flag("--json", options.json, "as JSON, zeros included");
  command->add_flag("--zeros", options.zeros, "also counters that are zero");
  command->footer(
      "Examples:\n"
      "  nobounce stat\n"
      "  nobounce stat --json\n"
      "  nobounce stat perf-1234\n");
  command->callback([&action] { action = [] { return run_stat(options); }; });
}

}  // namespace nobounce::cli
