// One TCP stream of the Linux kernel's own, as `nobounce perf` makes one of ours: to the discard
// service or from the source service, payload turning in the same 256 MiB, for a time. What it is
// beside ours: the same job on the same cores by the stack that every program has.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "cli/payload.hpp"
#include "cli/perf.hpp"

namespace nobounce::cli {

struct KernelStreamResult {
  uint64_t bytes = 0;
  double seconds = 0;
  // Of all threads of this process: the client's, the services', and what the kernel does for
  // packets within them. Not what it leaves to ksoftirqd.
  uint64_t cpu_ns = 0;
  std::string congestion_control;  // the client's
};

class KernelStream {
 public:
  // Makes the payload: 256 MiB, touched.
  explicit KernelStream(uint64_t seed) : payload_(Rotation::seeded(kRotationBytes, seed)) {}

  // In the network namespace of the calling thread. Ctrl-C ends it with an error.
  [[nodiscard]] Result<KernelStreamResult> run(const std::string& address, PerfJob job,
                                               std::chrono::nanoseconds time);

 private:
  Rotation payload_;
};

}  // namespace nobounce::cli
