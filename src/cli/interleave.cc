#include "cli/interleave.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "cli/print.hpp"

namespace nobounce::cli {

const char* to_string(Direction direction) noexcept {
  return direction == Direction::transmit ? "transmit" : "receive";
}

void Sample::add(const Sample& other) {
  bytes += other.bytes;
  seconds += other.seconds;
  cpu_ns += other.cpu_ns;
  for (const auto& [name, value] : other.moved) moved[name] += value;
}

Result<Sums> interleave(const std::vector<Runner>& runners, uint64_t rounds,
                        std::chrono::nanoseconds each) {
  Sums sums;
  for (auto& direction : sums) direction.resize(runners.size());
  for (uint64_t round = 0; round < rounds; ++round) {
    for (const Direction direction : kDirections) {
      for (size_t turn = 0; turn < runners.size(); ++turn) {
        const size_t who = (turn + round) % runners.size();  // who goes first changes
        flush_output();
        fmt::print(stderr, "  round {} of {}: {} {}\n", round + 1, rounds, runners[who].name,
                   to_string(direction));
        const auto sample = runners[who].run(direction, each);
        if (!sample) return std::unexpected(sample.error());
        sums[std::to_underlying(direction)][who].add(*sample);
      }
    }
  }
  return sums;
}

}  // namespace nobounce::cli
