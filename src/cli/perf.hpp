// `nobounce perf`: streams and checked transfers over TCP, and the services they talk to.
//
//   client        far end's service     what moves
//   (default)     discard               rotating payload, out
//   --reverse     source                rotating payload, in
//   --echo        echo                  rotating payload, out and in; SHA-256 of both compared
//   --file PATH   echo                  the file, out and in; SHA-256 of both compared
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "cli/guest_options.hpp"
#include "cli/metrics.hpp"

namespace nobounce::cli {

// Ports of the services, those of the back-end's peer and of `perf --server` alike.
inline constexpr uint16_t kEchoPort = 7;
inline constexpr uint16_t kDiscardPort = 9;
inline constexpr uint16_t kSourcePort = 19;

inline constexpr uint64_t kMaxChunk = 16 << 20;

enum class PerfJob : uint8_t { transmit, receive, echo };
[[nodiscard]] const char* to_string(PerfJob job) noexcept;
[[nodiscard]] uint16_t service_port(PerfJob job) noexcept;

struct PerfOptions {
  GuestOptions guest;
  bool server = false;
  Endpoint client;               // port 0: the job's
  std::optional<uint16_t> port;  // server: one service here instead of all three
  PerfJob job = PerfJob::transmit;
  std::string file;
  std::optional<uint64_t> bytes;
  std::optional<std::chrono::nanoseconds> time;
  std::string json;  // "-": standard output
  uint64_t seed = 1;
  uint64_t chunk_bytes = 64 << 10;
};

struct PerfResult {
  Metrics metrics;
  std::string sha256_sent, sha256_received;  // echo jobs
  bool interrupted = false;                  // cut short by a signal: less than was asked for
};

// perf_client.cc: one transfer as the options say.
[[nodiscard]] Result<PerfResult> run_perf_client(Stack& stack, const PerfOptions& options);
// perf_server.cc: serves until stopped.
[[nodiscard]] Result<int> run_perf_server(Stack& stack, const PerfOptions& options);

}  // namespace nobounce::cli
