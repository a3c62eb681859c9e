// The bulk accessors of shared memory. Each passes over its range once; what is summed after a read
// is the private copy, what is summed on the way in is the private source (TM-1, TM-3, TM-53).
#include "memory/shared.hpp"

#include <algorithm>
#include <array>

namespace nobounce {

#ifdef NOBOUNCE_SHARED_LOAD_HOOK
namespace {
// Set by a test before its threads start; atomics so that a late thread sees a whole pair.
std::atomic<SharedLoadHook> load_hook{nullptr};
std::atomic<void*> load_hook_context{nullptr};
}  // namespace

void set_shared_load_hook(SharedLoadHook hook, void* context) noexcept {
  load_hook.store(nullptr, std::memory_order_relaxed);
  load_hook_context.store(context, std::memory_order_relaxed);
  load_hook.store(hook, std::memory_order_release);  // [hook]
}

void run_shared_load_hook(std::byte* address, size_t size) noexcept {
  if (SharedLoadHook hook = load_hook.load(std::memory_order_acquire)) {  // pairs with [hook]
    hook(load_hook_context.load(std::memory_order_relaxed), address, size);
  }
}
#endif

void SharedBytes::copy_in(size_t offset, Bytes from) const noexcept {
  check(offset, from.size());
  if (from.empty()) return;
  std::memcpy(base_ + offset, from.data(), from.size());
}

void SharedBytes::copy_out(size_t offset, MutableBytes to) const noexcept {
  check(offset, to.size());
  if (to.empty()) return;
  run_shared_load_hook(base_ + offset, to.size());
  std::memcpy(to.data(), base_ + offset, to.size());
  compiler_fence();  // the copy is what is used from here on, never the source again
}

void SharedBytes::zero(size_t offset, size_t size) const noexcept {
  check(offset, size);
  if (size == 0) return;
  std::memset(base_ + offset, 0, size);
}

void SharedBytes::copy_from(size_t offset, const SharedBytes& from) const noexcept {
  check(offset, from.size_);
  if (from.size_ == 0) return;
  run_shared_load_hook(from.base_, from.size_);
  std::memmove(base_ + offset, from.base_, from.size_);
  compiler_fence();
}

uint64_t SharedBytes::copy_in_summed(size_t offset, Bytes from, uint64_t sum) const noexcept {
  check(offset, from.size());
  if (from.empty()) return sum;
  return checksum_copy(sum, MutableBytes(base_ + offset, from.size()), from);
}

uint64_t SharedBytes::copy_out_summed(size_t offset, MutableBytes to, uint64_t sum) const noexcept {
  copy_out(offset, to);
  return checksum_add(sum, to);
}

uint64_t SharedBytes::sum(size_t offset, size_t size, uint64_t sum) const noexcept {
  check(offset, size);
  // Through a private window that stays in the first-level cache: one read of shared memory a byte,
  // whatever the optimiser makes of the summing loop. Even, so that every window starts on a word.
  std::array<std::byte, 1024> window;
  static_assert(window.size() % 2 == 0);
  while (size > 0) {
    const MutableBytes piece(window.data(), std::min(size, window.size()));
    copy_out(offset, piece);
    sum = checksum_add(sum, piece);
    offset += piece.size();
    size -= piece.size();
  }
  return sum;
}

}  // namespace nobounce
