// What a transfer cost: copies by thread kind, CPU time of the I/O thread, kicks and wake-ups, all
// computed from the stack's counters; and beside them the CPU time of the whole process.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nobounce/stack.hpp"

namespace nobounce::cli {

using CounterMap = std::map<std::string, uint64_t>;

[[nodiscard]] CounterMap snapshot(const Stack& stack);
// after - before, counters that did not move left out.
[[nodiscard]] CounterMap difference(const CounterMap& before, const CounterMap& after);

struct Metrics {
  uint64_t bytes = 0;  // delivered to, or taken from, the application
  double seconds = 0;
  double gbit_per_s = 0;
  // Payload bytes copied per byte delivered, by thread kind.
  double application_copies = 0;
  double io_copies = 0;
  double io_header_bytes = 0;  // header bytes copied per byte delivered
  double io_cpu_ns_per_kib = 0;
  double io_spin_ns_per_kib = 0;  // of it at most: polling without work
  uint64_t process_cpu_ns = 0;    // all threads, between begin and end of the transfer
  uint64_t frames = 0;            // over the device, both directions
  double kicks_per_1000 = 0;
  double io_wakes_per_1000 = 0;           // I/O thread, out of its sleep
  double application_wakes_per_1000 = 0;  // threads that waited in a socket call
  CounterMap moved;
};

[[nodiscard]] Metrics measure(uint64_t bytes, double seconds, CounterMap moved);

// CPU time of all threads of this process so far.
[[nodiscard]] uint64_t process_cpu_ns() noexcept;

// One transfer. Counters count from its making, before the connection is: a source begins at once, and
// what it sends is no less copied. The clocks run from begin() to stop().
class Meter {
 public:
  explicit Meter(const Stack& stack);
  void begin() noexcept;
  [[nodiscard]] Metrics stop(uint64_t bytes) const;

 private:
  const Stack& stack_;
  CounterMap before_;
  uint64_t cpu_ns_ = 0;
  uint64_t start_ns_ = 0;
};

[[nodiscard]] nlohmann::ordered_json to_json(const Metrics& metrics);
// Several lines for people.
[[nodiscard]] std::string to_text(const Metrics& metrics);

}  // namespace nobounce::cli
