#include "base/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/clock.hpp"

namespace nobounce {
namespace {

std::atomic<LogLevel> current_level{LogLevel::info};

void write_line(LogLevel level, std::string_view message) noexcept {
  if (level > current_level.load(std::memory_order_relaxed)) return;
  // One write per line, so that lines of several processes do not mix.
  char line[512];
  const int size = std::snprintf(line, sizeof line, "nobounce: %.*s\n",
                                 static_cast<int>(message.size()), message.data());
  if (size <= 0) return;
  const size_t length = std::min(static_cast<size_t>(size), sizeof line - 1);
  line[length - 1] = '\n';  // also when the message was cut
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length);
}

}  // namespace

void set_log_level(LogLevel level) noexcept {
  current_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() noexcept { return current_level.load(std::memory_order_relaxed); }

void log_info(std::string_view message) noexcept { write_line(LogLevel::info, message); }
void log_warning(std::string_view message) noexcept { write_line(LogLevel::warning, message); }
void log_debug(std::string_view message) noexcept { write_line(LogLevel::debug, message); }

bool LogLimit::admit(uint64_t now_ns, uint64_t& held_back) noexcept {
  uint64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now_ns < next ||
      !next_ns_.compare_exchange_strong(next, now_ns + kNsPerSecond, std::memory_order_relaxed)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  held_back = suppressed_.exchange(0, std::memory_order_relaxed);
  return true;
}

void warn_limited(LogLimit& limit, uint64_t now_ns, std::string_view message) noexcept {
  uint64_t held_back = 0;
  if (!limit.admit(now_ns, held_back)) return;
  if (held_back == 0) {
    log_warning(message);
  } else {
    char text[512];
    const int size = std::snprintf(text, sizeof text, "%.*s (and %llu more like it)",
                                   static_cast<int>(message.size()), message.data(),
                                   static_cast<unsigned long long>(held_back));
    if (size > 0) log_warning({text, std::min(static_cast<size_t>(size), sizeof text - 1)});
  }
}

}  // namespace nobounce
