#include "cli/metrics.hpp"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/clock.hpp"
#include "cli/values.hpp"

namespace nobounce::cli {
namespace {

uint64_t at(const CounterMap& counters, const std::string& name) {
  const auto found = counters.find(name);
  return found == counters.end() ? 0 : found->second;
}

// Sum over all queues or shards: "virtio0.q0.tx_kicks", "shard.0.sleeps".
uint64_t sum(const CounterMap& counters, std::string_view prefix, std::string_view ending) {
  uint64_t total = 0;
  for (const auto& [name, value] : counters) {
    if (name.starts_with(prefix) && name.ends_with(ending)) total += value;
  }
  return total;
}

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

CounterMap snapshot(const Stack& stack) {
  CounterMap map;
  for (auto& counter : stack.counters()) map[counter.name] = counter.value;
  return map;
}

CounterMap difference(const CounterMap& before, const CounterMap& after) {
  CounterMap moved;
  for (const auto& [name, value] : after) {
    // A gauge may have gone down: nothing a transfer costs, so it is left out.
    if (value > at(before, name)) moved[name] = value - at(before, name);
  }
  return moved;
}

Metrics measure(uint64_t bytes, double seconds, CounterMap moved) {
  Metrics metrics;
  metrics.bytes = bytes;
  metrics.seconds = seconds;
  metrics.gbit_per_s = seconds > 0 ? static_cast<double>(bytes) * 8 / seconds / 1e9 : 0;
  const auto payload = [&](const std::string& thread) {
    return at(moved, "copy." + thread + ".send_bytes") +
           at(moved, "copy." + thread + ".receive_bytes") +
           at(moved, "copy." + thread + ".bounce_bytes") +
           at(moved, "copy." + thread + ".local_bytes");
  };
  metrics.application_copies = ratio(payload("application"), bytes);
  metrics.io_copies = ratio(payload("io"), bytes);
  metrics.io_header_bytes = ratio(at(moved, "copy.io.header_bytes"), bytes);
  metrics.io_cpu_ns_per_kib = ratio(sum(moved, "shard.", ".cpu_ns"), bytes) * 1024;
  metrics.io_spin_ns_per_kib = ratio(sum(moved, "shard.", ".spin_ns"), bytes) * 1024;
  metrics.frames = sum(moved, "virtio", ".tx_packets") + sum(moved, "virtio", ".rx_packets");
  const auto per_1000 = [&](uint64_t events) { return ratio(events, metrics.frames) * 1000; };
  metrics.kicks_per_1000 =
      per_1000(sum(moved, "virtio", ".tx_kicks") + sum(moved, "virtio", ".rx_kicks"));
  metrics.io_wakes_per_1000 = per_1000(sum(moved, "shard.", ".sleeps"));
  metrics.application_wakes_per_1000 = per_1000(sum(moved, "shard.", ".wakes_of_application"));
  metrics.moved = std::move(moved);
  return metrics;
}

uint64_t process_cpu_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * kNsPerSecond + static_cast<uint64_t>(time.tv_nsec);
}

Meter::Meter(const Stack& stack) : stack_(stack), before_(snapshot(stack)) { begin(); }

void Meter::begin() noexcept {
  cpu_ns_ = process_cpu_ns();
  start_ns_ = MonotonicClock().now_ns();
}

Metrics Meter::stop(uint64_t bytes) const {
  const uint64_t taken_ns = MonotonicClock().now_ns() - start_ns_;
  const uint64_t cpu_ns = process_cpu_ns() - cpu_ns_;
  Metrics metrics =
      measure(bytes, static_cast<double>(taken_ns) / 1e9, difference(before_, snapshot(stack_)));
  metrics.process_cpu_ns = cpu_ns;
  return metrics;
}

nlohmann::ordered_json to_json(const Metrics& metrics) {
  return {{"bytes", metrics.bytes},
          {"seconds", metrics.seconds},
          {"gbit_per_s", metrics.gbit_per_s},
          {"application_copies_per_byte", metrics.application_copies},
          {"io_copies_per_byte", metrics.io_copies},
          {"io_header_bytes_per_byte", metrics.io_header_bytes},
          {"io_cpu_ns_per_kib", metrics.io_cpu_ns_per_kib},
          {"io_spin_ns_per_kib", metrics.io_spin_ns_per_kib},
          {"process_cpu_ns", metrics.process_cpu_ns},
          {"frames", metrics.frames},
          {"kicks_per_1000_frames", metrics.kicks_per_1000},
          {"io_wakes_per_1000_frames", metrics.io_wakes_per_1000},
          {"application_wakes_per_1000_frames", metrics.application_wakes_per_1000},
          {"counters", metrics.moved}};
}

std::string to_text(const Metrics& metrics) {
  return fmt::format(
      "{} in {:.2f} s: {:.2f} Gbit/s\n"
      "payload copied per byte:  application {:.3f}, I/O thread {:.3f} (headers {:.4f})\n"
      "I/O thread:               {:.1f} ns CPU per KiB, at most {:.1f} of them polling without "
      "work\n"
      "per 1000 of {} frames:  {:.1f} kicks, {:.1f} wake-ups of the I/O thread, {:.1f} of the "
      "application\n",
      format_bytes(metrics.bytes), metrics.seconds, metrics.gbit_per_s, metrics.application_copies,
      metrics.io_copies, metrics.io_header_bytes, metrics.io_cpu_ns_per_kib,
      metrics.io_spin_ns_per_kib, metrics.frames, metrics.kicks_per_1000, metrics.io_wakes_per_1000,
      metrics.application_wakes_per_1000);
}

}  // namespace nobounce::cli
