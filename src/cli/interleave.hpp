// Streams of several runners, one at a time, interleaved: what a shared machine does to one of them in
// a minute it does to all, so that their ratio stands where the rates do not.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/metrics.hpp"

namespace nobounce::cli {

enum class Direction : uint8_t { transmit, receive };
inline constexpr std::array kDirections{Direction::transmit, Direction::receive};
[[nodiscard]] const char* to_string(Direction direction) noexcept;

// One stream, or several added up.
struct Sample {
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t cpu_ns = 0;  // of both ends
  CounterMap moved;     // of our stack

  void add(const Sample& other);
};

// Who can move a stream: a guest in one mode, or the kernel by itself.
struct Runner {
  std::string name;
  std::function<Result<Sample>(Direction, std::chrono::nanoseconds)> run;
};

// [direction][runner]: sums over the rounds. Says on standard error who is at it.
using Sums = std::array<std::vector<Sample>, 2>;
[[nodiscard]] Result<Sums> interleave(const std::vector<Runner>& runners, uint64_t rounds,
                                      std::chrono::nanoseconds each);

}  // namespace nobounce::cli
