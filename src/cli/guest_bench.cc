#include "cli/guest_bench.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/stop.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {

Result<GuestBench> GuestBench::open(const std::string& socket, const Place& place) {
  const auto program = this_program();
  if (!program) return std::unexpected(program.error());
  std::vector<std::string> words{*program, "backend", "--socket", socket};
  words.insert(words.end(), place.device.begin(), place.device.end());
  auto device = Process::start(words);
  if (!device) return std::unexpected(device.error());
  GuestBench bench(*std::move(device), *program, socket, place);
  for (int i = 0; i < 500; ++i) {
    if (std::filesystem::exists(socket)) return bench;
    if (stop_requested()) {
      return fail(std::errc::interrupted, "start the back-end", "interrupted");
    }
    if (!bench.device_.is_running()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fail(std::errc::no_such_process, "start the back-end", bench.device_words());
}

Result<nlohmann::json> GuestBench::guest(Mode mode, const std::vector<std::string>& job,
                                         std::chrono::nanoseconds limit) {
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
  if (json.is_discarded()) return fail(std::errc::bad_message, operation, "its result is no JSON");
  return json;
}

// What the device said last, when it is gone.
std::string GuestBench::device_words() {
  std::string text = device_.error_text();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t line = text.rfind('\n');
  return text.empty()                ? "it said nothing"
         : line == std::string::npos ? text
                                     : text.substr(line + 1);
}

}  // namespace nobounce::cli
