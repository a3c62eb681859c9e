// Named 64-bit counters in a mapped file that tools only read.
//
// A registry is a fixed table of 64-byte entries (one cache line each: counters never share a line)
// after a header page. It lives on memory-backed storage only (TM-88: in a confidential VM the disk
// is the host's), mode 0600; or in anonymous memory when no name is given.
//
// Life of a file: its process holds a lock on it (flock) and removes it in the end. What a killed
// process left is not locked any more: the next one to publish removes it. A child that was forked
// and lives on without exec counts as its process.
//
// Threads: counter() takes a lock and is for set-up. Counter::add is for one writing thread;
// SharedCounter::add for many. Reading is allowed from anywhere, also from another process.
// Cost: add is a plain load and store (Counter) or one locked add (SharedCounter).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace nobounce {

class Counter {
 public:
  Counter() noexcept;  // counts into a sink until assigned
  explicit Counter(std::atomic<uint64_t>* cell) noexcept : cell_(cell) {}
  void add(uint64_t n = 1) noexcept {
    cell_->store(cell_->load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void set(uint64_t n) noexcept { cell_->store(n, std::memory_order_relaxed); }
  void raise_to(uint64_t n) noexcept {
    if (cell_->load(std::memory_order_relaxed) < n) set(n);
  }
  [[nodiscard]] uint64_t value() const noexcept { return cell_->load(std::memory_order_relaxed); }

 protected:
  std::atomic<uint64_t>* cell_;
};

class SharedCounter : public Counter {
 public:
  SharedCounter() noexcept = default;
  SharedCounter(const Counter& counter) noexcept : Counter(counter) {}
  void add(uint64_t n = 1) noexcept { cell_->fetch_add(n, std::memory_order_relaxed); }
  void subtract(uint64_t n) noexcept { cell_->fetch_sub(n, std::memory_order_relaxed); }
};

struct CounterSample {
  std::string name;
  uint64_t value = 0;
};

class CounterRegistry {
 public:
  static constexpr size_t kCountersMax = 1023;
  static constexpr size_t kNameMax = 55;

  // Anonymous memory: for tests and for programs that publish nothing.
  CounterRegistry();
  // A file named `name` in runtime_directory(); removed when the registry goes. Files of killed
  // processes are removed on the way.
  static Result<std::unique_ptr<CounterRegistry>> publish(const std::string& name);
  ~CounterRegistry();
  CounterRegistry(const CounterRegistry&) = delete;
  CounterRegistry& operator=(const CounterRegistry&) = delete;

  // The counter of that name, made on first use. A full table counts into one "counters.overflow".
  [[nodiscard]] Counter counter(std::string_view name);

  [[nodiscard]] std::vector<CounterSample> samples() const;
  [[nodiscard]] uint64_t value(std::string_view name) const;  // 0 when there is none

 private:
  struct Table;
  CounterRegistry(Table* table, std::string path, UniqueFd file);
  static void sweep(int directory);
  static Result<std::unique_ptr<CounterRegistry>> make(std::string path);

  Table* table_;
  std::string path_;  // empty: anonymous
  UniqueFd file_;     // locked
};

// Where counter and control files live: $XDG_RUNTIME_DIR/nobounce, else /dev/shm/nobounce-UID.
// Made with mode 0700; refused when it is not on memory-backed storage.
Result<std::string> runtime_directory();

// Reads a file published by another process. The file is checked before it is believed.
Result<std::vector<CounterSample>> read_counters(const std::string& path);

}  // namespace nobounce
