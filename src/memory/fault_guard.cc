#include "memory/fault_guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace nobounce {
namespace {

// One watched range. Written under the lock, `begin` last; read by the handler without it.
struct Watch {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<uintptr_t> page_bytes{0};
  std::atomic<std::atomic<bool>*> broken{nullptr};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

Watch watches[FaultGuard::kRangesMax];
std::mutex watch_lock;
struct sigaction previous_action;

// A thread that faults in a range keeps the range's owner alive, so its own entry is stable.
// Another entry may be torn (being reused as we look): the second look at both ends rejects it.
Watch* find(uintptr_t address) noexcept {
  for (Watch& watch : watches) {
    const uintptr_t begin = watch.begin.load(std::memory_order_acquire);  // pairs with [watch]
    if (begin == 0 || address < begin) continue;
    const uintptr_t end = watch.end.load(std::memory_order_acquire);
    if (address >= end) continue;
    if (watch.begin.load(std::memory_order_acquire) == begin &&
        watch.end.load(std::memory_order_acquire) == end) {
      return &watch;
    }
  }
  return nullptr;
}

// mmap by number: sanitizers wrap the library's, and their wrappers may not run in a handler.
bool map_zero_page(uintptr_t address, size_t page_bytes) noexcept {
  const uintptr_t page = address & ~(uintptr_t{page_bytes} - 1);
  const long mapped = syscall(SYS_mmap, page, page_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return mapped == static_cast<long>(page);
}

void pass_on(int number, siginfo_t* info, void* context) noexcept {
  const bool from_kernel = info->si_code > 0;
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler == SIG_IGN && !from_kernel) {
    return;
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
  } else {
    // The default: the access runs again, or the signal is sent again, and ends the process as it
    // would have without us.
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &action, nullptr);
    if (!from_kernel) raise(SIGBUS);  // held back until this handler returns
  }
}

void on_fault(int number, siginfo_t* info, void* context) noexcept {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  // Only what the kernel sends for an access carries an address.
  Watch* watch = info->si_code > 0 ? find(address) : nullptr;
  if (watch != nullptr) {
    std::atomic<bool>* broken = watch->broken.load(std::memory_order_acquire);
    if (map_zero_page(address, watch->page_bytes.load(std::memory_order_acquire))) {
      broken->store(true, std::memory_order_relaxed);
      errno = saved_errno;
      return;
    }
  }
  pass_on(number, info, context);
  errno = saved_errno;
}

void install_once() noexcept {
  static const bool installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    // The old action first: the handler may run as soon as it stands.
    if (sigaction(SIGBUS, nullptr, &previous_action) == 0 &&
        sigaction(SIGBUS, &action, nullptr) == 0) {
      return true;
    }
    log_warning("no SIGBUS handler: a peer that truncates shared memory can end this process");
    return false;
  }();
  static_cast<void>(installed);
}

}  // namespace

bool FaultGuard::watch(std::byte* base, size_t bytes, size_t page_bytes,
                       std::atomic<bool>& broken) noexcept {
  install_once();
  const auto begin = reinterpret_cast<uintptr_t>(base);
  NB_ASSERT(begin != 0);
  NB_ASSERT(begin % page_bytes == 0);
  const std::lock_guard guard(watch_lock);
  for (Watch& watch : watches) {
    if (watch.begin.load(std::memory_order_relaxed) != 0) continue;
    watch.broken.store(&broken, std::memory_order_release);
    watch.page_bytes.store(page_bytes, std::memory_order_release);
    watch.end.store(begin + bytes, std::memory_order_release);
    watch.begin.store(begin, std::memory_order_release);  // [watch]
    return true;
  }
  return false;
}

void FaultGuard::unwatch(std::byte* base) noexcept {
  const std::lock_guard guard(watch_lock);
  for (Watch& watch : watches) {
    if (watch.begin.load(std::memory_order_relaxed) != reinterpret_cast<uintptr_t>(base)) continue;
    watch.begin.store(0, std::memory_order_release);
    watch.end.store(0, std::memory_order_release);
    return;
  }
}

}  // namespace nobounce
