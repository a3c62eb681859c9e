// The demo's table: both directions, both modes, and what nocopy is to bounce.
#pragma once

#include <array>
#include <string>

#include "cli/metrics.hpp"

namespace nobounce::cli {

struct ResultTable {
  // [0] transmit, [1] receive; in each [0] bounce, [1] nocopy.
  std::array<std::array<Metrics, 2>, 2> cell;
};

[[nodiscard]] std::string to_text(const ResultTable& table);

}  // namespace nobounce::cli
