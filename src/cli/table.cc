#include "cli/table.hpp"

#include <fmt/format.h>

namespace nobounce::cli {
namespace {

struct Row {
  const char* name;
  double Metrics::* value;
  int decimals;
};

constexpr Row kRows[] = {
    {"Gbit/s", &Metrics::gbit_per_s, 2},
    {"payload copies per byte, application thread", &Metrics::application_copies, 3},
    {"payload copies per byte, I/O thread", &Metrics::io_copies, 3},
    {"header bytes copied per byte, I/O thread", &Metrics::io_header_bytes, 4},
    {"I/O thread, CPU ns per KiB", &Metrics::io_cpu_ns_per_kib, 1},
    {"  of them at most, polling without work", &Metrics::io_spin_ns_per_kib, 1},
    {"kicks per 1000 frames", &Metrics::kicks_per_1000, 1},
    {"I/O thread wake-ups per 1000 frames", &Metrics::io_wakes_per_1000, 1},
    {"application wake-ups per 1000 frames", &Metrics::application_wakes_per_1000, 1},
};

// A dash where there is nothing to divide by.
std::string ratio(double part, double whole) {
  return whole > 0 ? fmt::format("{:.2f}", part / whole) : "-";
}

struct BesideRow {
  const char* name;
  double BesideKernel::Cell::* value;
  int decimals;
};
constexpr BesideRow kBesideRows[] = {
    {"Gbit/s", &BesideKernel::Cell::gbit_per_s, 2},
    {"CPU of both ends, ns per KiB", &BesideKernel::Cell::cpu_ns_per_kib, 1},
};

std::string trimmed(std::string line) {
  while (line.ends_with(' ')) line.pop_back();
  return line + '\n';
}

}  // namespace

std::string to_text(const ResultTable& table) {
  std::string text = fmt::format("{:<45}{:>30}{:>31}\n", "", "transmit", "receive");
  text += fmt::format("{:<45}{:>10}{:>10}{:>10} {:>10}{:>10}{:>10}\n", "", "bounce", "nocopy",
                      "ratio", "bounce", "nocopy", "ratio");
  for (const Row& row : kRows) {
    text += fmt::format("{:<45}", row.name);
    for (const auto& direction : table.cell) {
      const double bounce = direction[0].*row.value;
      const double nocopy = direction[1].*row.value;
      text += fmt::format("{:>10.{}f}{:>10.{}f}{:>10} ", bounce, row.decimals, nocopy, row.decimals,
                          ratio(nocopy, bounce));
    }
    text = trimmed(std::move(text));
  }
  text += "ratio: nocopy / bounce";
  return text;
}

std::string to_text(std::span<const BesideKernel> rows) {
  std::string text = fmt::format("{:<42}{:>32} {:>32}\n", "", "transmit", "receive");
  text += fmt::format("{:<42}", "");
  for (int direction = 0; direction < 2; ++direction) {
    text += fmt::format("{:>8}{:>8}{:>8}{:>8} ", "bounce", "nocopy", "kernel", "ratio");
  }
  text = trimmed(std::move(text));
  for (const BesideKernel& at : rows) {
    for (const BesideRow& row : kBesideRows) {
      std::string line = fmt::format("{:<42}", fmt::format("MTU {}: {}", at.mtu, row.name));
      for (const auto& direction : at.cell) {
        for (const BesideKernel::Cell& cell : direction) {
          line += fmt::format("{:>8.{}f}", cell.*row.value, row.decimals);
        }
        line += fmt::format("{:>8} ", ratio(direction[1].*row.value, direction[2].*row.value));
      }
      text += trimmed(std::move(line));
    }
  }
  text += "ratio: nocopy / kernel";
  return text;
}

}  // namespace nobounce::cli
