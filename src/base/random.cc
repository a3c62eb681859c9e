#include "base/random.hpp"

#include <sys/random.h>

#include <algorithm>

#include "base/assert.hpp"

namespace nobounce {

void Random::fill(MutableBytes bytes) noexcept {
  for (size_t done = 0; done < bytes.size(); done += sizeof(uint64_t)) {
    const uint64_t value = next_u64();
    std::memcpy(bytes.data() + done, &value, std::min(sizeof value, bytes.size() - done));
  }
}

uint64_t SystemRandom::next_u64() noexcept {
  if (left_ == 0) {
    // 256 bytes are always returned whole once the pool is initialised (getrandom(2)).
    const ssize_t got = getrandom(buffer_.data(), sizeof buffer_, 0);
    NB_ASSERT(got == static_cast<ssize_t>(sizeof buffer_));
    left_ = buffer_.size();
  }
  const uint64_t value = buffer_[--left_];
  buffer_[left_] = 0;
  return value;
}

}  // namespace nobounce
