#include "base/fork_mark.hpp"

#include <pthread.h>

namespace nobounce {
namespace {

std::atomic<uint32_t> fork_count{0};

void in_child() { fork_count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

ForkMark::ForkMark() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  forks_ = forks().load(std::memory_order_relaxed);
}

std::atomic<uint32_t>& ForkMark::forks() noexcept { return fork_count; }

}  // namespace nobounce
