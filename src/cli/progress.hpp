// Progress of long work on standard error: one line that renews itself on a terminal, else a line a
// second.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.hpp"

namespace nobounce::cli {

class Progress {
 public:
  // `total_bytes` 0: not known. `total_ns` 0: not limited by time.
  Progress(std::string label, uint64_t total_bytes, uint64_t total_ns);
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap when nothing is due.
  void update(uint64_t bytes, uint64_t now_ns);

 private:
  std::string label_;
  uint64_t total_bytes_;
  uint64_t total_ns_;
  MonotonicClock clock_;
  uint64_t start_ns_;
  uint64_t next_ns_;
  uint64_t last_ns_;
  uint64_t last_bytes_ = 0;
  bool on_terminal_;
  bool open_line_ = false;
};

}  // namespace nobounce::cli
