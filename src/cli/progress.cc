#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

constexpr uint64_t kTerminalStepNs = 200 * kNsPerMs;

}  // namespace

Progress::Progress(std::string label, uint64_t total_bytes, uint64_t total_ns)
    : label_(std::move(label)),
      total_bytes_(total_bytes),
      total_ns_(total_ns),
      start_ns_(clock_.now_ns()),
      last_ns_(start_ns_),
      on_terminal_(isatty(STDERR_FILENO) == 1) {
  next_ns_ = start_ns_ + (on_terminal_ ? kTerminalStepNs : kNsPerSecond);
}

Progress::~Progress() {
  if (open_line_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(uint64_t bytes, uint64_t now_ns) {
  if (now_ns < next_ns_) return;
  const double seconds = static_cast<double>(now_ns - last_ns_) / 1e9;
  const double gbit = static_cast<double>(bytes - last_bytes_) * 8 / 1e9 / seconds;
  std::string line = fmt::format("{}: {}", label_, format_bytes(bytes));
  if (total_bytes_ > 0) {
    line += fmt::format(" of {} ({} %)", format_bytes(total_bytes_), 100 * bytes / total_bytes_);
  } else if (total_ns_ > 0) {
    line += fmt::format(", {:.0f} of {:.0f} s", static_cast<double>(now_ns - start_ns_) / 1e9,
                        static_cast<double>(total_ns_) / 1e9);
  }
  line += fmt::format(", {:.2f} Gbit/s", gbit);
  if (on_terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", line);
    std::fflush(stderr);
    open_line_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  last_bytes_ = bytes;
  last_ns_ = now_ns;
  next_ns_ = now_ns + (on_terminal_ ? kTerminalStepNs : kNsPerSecond);
}

}  // namespace nobounce::cli
