// One-line messages to standard error: "nobounce: text". Set-up and rare events only; the data path
// counts instead. warn_limited() prints a reason at most once a second and says how many were held
// back (TM-71).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace nobounce {

enum class LogLevel : uint8_t { quiet, warning, info, debug };

void set_log_level(LogLevel level) noexcept;
[[nodiscard]] LogLevel log_level() noexcept;

void log_info(std::string_view message) noexcept;
void log_warning(std::string_view message) noexcept;
void log_debug(std::string_view message) noexcept;

class LogLimit {
 public:
  // True when the caller may print now; `held_back` is then how many were suppressed before it.
  [[nodiscard]] bool admit(uint64_t now_ns, uint64_t& held_back) noexcept;

 private:
  std::atomic<uint64_t> next_ns_{0};
  std::atomic<uint64_t> suppressed_{0};
};

void warn_limited(LogLimit& limit, uint64_t now_ns, std::string_view message) noexcept;

}  // namespace nobounce
