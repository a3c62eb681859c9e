// The demo's tables: both directions, both modes, and what nocopy is to bounce; and the same beside
// the kernel, by itself on the same cores.
#pragma once

#include <array>
#include <span>
#include <string>

#include "cli/metrics.hpp"

namespace nobounce::cli {

struct ResultTable {
  // [0] transmit, [1] receive; in each [0] bounce, [1] nocopy.
  std::array<std::array<Metrics, 2>, 2> cell;
};

[[nodiscard]] std::string to_text(const ResultTable& table);

// What was measured at one MTU, ours to the kernel and the kernel to itself.
struct BesideKernel {
  uint16_t mtu = 0;
  struct Cell {
    double gbit_per_s = 0;
    double cpu_ns_per_kib = 0;  // of both ends
  };
  // [0] transmit, [1] receive; in each bounce, nocopy, kernel.
  std::array<std::array<Cell, 3>, 2> cell;
};

[[nodiscard]] std::string to_text(std::span<const BesideKernel> rows);

}  // namespace nobounce::cli
