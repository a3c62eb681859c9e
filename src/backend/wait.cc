#include "backend/wait.hpp"

#include <poll.h>

#include <ctime>

#include "base/clock.hpp"

namespace nobounce::backend {

bool wait_readable(int fd, uint64_t limit_ns) noexcept {
  pollfd entry{fd, POLLIN, 0};
  if (limit_ns == kForever) return ::poll(&entry, 1, -1) > 0;
  const timespec timeout{static_cast<time_t>(limit_ns / kNsPerSecond),
                         static_cast<long>(limit_ns % kNsPerSecond)};
  return ::ppoll(&entry, 1, &timeout, nullptr) > 0;
}

}  // namespace nobounce::backend
