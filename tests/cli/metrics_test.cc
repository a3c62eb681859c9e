#include "cli/metrics.hpp"

#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "cli/table.hpp"

namespace nobounce::cli {
namespace {

TEST(Metrics, only_what_moved_forward_counts) {
  const CounterMap before{{"a", 1}, {"gauge", 9}, {"same", 4}};
  const CounterMap after{{"a", 3}, {"gauge", 2}, {"same", 4}, {"new", 5}};
  EXPECT_EQ(difference(before, after), (CounterMap{{"a", 2}, {"new", 5}}));
}

TEST(Metrics, computed_from_counters_alone) {
  const Metrics metrics = measure(1'000'000, 2.0,
                                  {{"copy.application.send_bytes", 1'000'000},
                                   {"copy.io.bounce_bytes", 1'000'000},
                                   {"copy.io.local_bytes", 500'000},
                                   {"copy.io.header_bytes", 50'000},
                                   {"shard.0.cpu_ns", 2'000'000},
                                   {"shard.0.spin_ns", 500'000},
                                   {"virtio0.q0.tx_packets", 900},
                                   {"virtio0.q0.rx_packets", 100},
                                   {"virtio0.q0.tx_kicks", 20},
                                   {"virtio0.q0.rx_kicks", 5},
                                   {"shard.0.sleeps", 7},
                                   {"shard.0.wakes_of_application", 3},
                                   {"backend.kicks", 999}});
  EXPECT_DOUBLE_EQ(metrics.gbit_per_s, 0.004);
  EXPECT_DOUBLE_EQ(metrics.application_copies, 1.0);
  EXPECT_DOUBLE_EQ(metrics.io_copies, 1.5);
  EXPECT_DOUBLE_EQ(metrics.io_header_bytes, 0.05);
  EXPECT_DOUBLE_EQ(metrics.io_cpu_ns_per_kib, 2048.0);
  EXPECT_DOUBLE_EQ(metrics.io_spin_ns_per_kib, 512.0);
  EXPECT_EQ(metrics.frames, 1000u);
  EXPECT_DOUBLE_EQ(metrics.kicks_per_1000, 25.0);
  EXPECT_DOUBLE_EQ(metrics.io_wakes_per_1000, 7.0);
  EXPECT_DOUBLE_EQ(metrics.application_wakes_per_1000, 3.0);
  const auto json = to_json(metrics);
  EXPECT_EQ(json.at("bytes"), 1'000'000);
  EXPECT_EQ(json.at("counters").at("virtio0.q0.tx_kicks"), 20);
}

TEST(Metrics, nothing_moved_divides_by_nothing) {
  const Metrics metrics = measure(0, 0, {});
  EXPECT_EQ(metrics.gbit_per_s, 0);
  EXPECT_EQ(metrics.io_copies, 0);
  EXPECT_EQ(metrics.kicks_per_1000, 0);
  EXPECT_FALSE(to_text(metrics).empty());
}

TEST(Metrics, the_table_says_both_modes_and_their_ratio) {
  ResultTable table;
  table.cell[0][0].gbit_per_s = 10;
  table.cell[0][1].gbit_per_s = 15;
  table.cell[0][0].io_copies = 1;
  table.cell[1][0].gbit_per_s = 8;
  table.cell[1][1].gbit_per_s = 4;
  const std::string text = to_text(table);
  const auto line = [&](const std::string& name) {
    const size_t start = text.find(name);
    return text.substr(start, text.find('\n', start) - start);
  };
  for (const char* part : {"10.00", "15.00", "1.50", "8.00", "4.00", "0.50"}) {
    EXPECT_NE(line("Gbit/s").find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_NE(line("payload copies per byte, I/O thread").find("-"), std::string::npos);
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    EXPECT_LE(end - start, 110u) << text;
    start = end + 1;
  }
}

TEST(Metrics, the_table_beside_the_kernel_says_what_we_are_to_it) {
  BesideKernel usual{.mtu = 1500, .cell = {}};
  usual.cell[0] = {{{10, 800}, {12, 700}, {24, 350}}};
  usual.cell[1] = {{{5, 900}, {6, 600}, {0, 0}}};  // the kernel has moved nothing
  BesideKernel largest = usual;
  largest.mtu = 65521;
  const std::string text = to_text(std::array{usual, largest});
  for (const char* row : {"\nMTU 1500: Gbit/s ", "\nMTU 1500: CPU of both ends, ns per KiB ",
                          "\nMTU 65521: Gbit/s ", "\nMTU 65521: CPU of both ends, ns per KiB "}) {
    EXPECT_NE(text.find(row), std::string::npos) << row << "\n" << text;
  }
  const size_t start = text.find("MTU 1500: Gbit/s");
  const std::string line = text.substr(start, text.find('\n', start) - start);
  std::istringstream words(line.substr(line.find("bit/s") + 5));
  const std::vector<std::string> values{std::istream_iterator<std::string>(words), {}};
  EXPECT_EQ(values, (std::vector<std::string>{"10.00", "12.00", "24.00", "0.50", "5.00", "6.00",
                                              "0.00", "-"}));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    EXPECT_LE(end - at, 110u) << text;
    at = end + 1;
  }
}

}  // namespace
}  // namespace nobounce::cli
