// A file written by a thread of its own from a bounded queue of bytes.
//
//   append() --> [ filling buffer ]  swap  [ draining buffer ] --> write(2) in the writer's thread
//
// Two buffers of fixed size: append() copies into the one, the writer writes the other. What does
// not fit is refused, never waited for: a slow disk costs captured frames, not traffic.
// Threads: append() any; open and destruction by one. Cost of append: a copy under a short lock.
// After a write error everything is refused, the error is counted and logged once.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/bytes.hpp"
#include "base/counters.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace nobounce {

class CaptureWriter {
 public:
  // Creates or empties the file, mode 0600.
  static Result<std::unique_ptr<CaptureWriter>> open(const std::string& path, size_t buffer_bytes,
                                                     CounterRegistry& counters);
  ~CaptureWriter();  // writes what is queued

  // All or nothing.
  [[nodiscard]] bool append(Bytes bytes) noexcept;
  // Waits until all that was appended is written. For tests and the end.
  void drain() noexcept;

 private:
  CaptureWriter(UniqueFd fd, std::string path, size_t buffer_bytes, CounterRegistry& counters);
  void run() noexcept;
  [[nodiscard]] bool write_all(Bytes bytes) noexcept;

  UniqueFd fd_;
  std::string path_;
  size_t capacity_;
  std::unique_ptr<std::byte[]> filling_;
  std::unique_ptr<std::byte[]> draining_;
  size_t filled_ = 0;
  bool is_writing_ = false;
  bool is_stopping_ = false;
  bool has_failed_ = false;
  Counter write_errors_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace nobounce
