// Sleeping on one descriptor.
#pragma once

#include <cstdint>

namespace nobounce::backend {

inline constexpr uint64_t kForever = UINT64_MAX;

// Until `fd` is readable or `limit_ns` are over; a signal ends it too. True: readable.
bool wait_readable(int fd, uint64_t limit_ns) noexcept;

}  // namespace nobounce::backend
