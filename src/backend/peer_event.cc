#include "backend/peer_event.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace nobounce::backend {
namespace {

constexpr auto kWatchPeriod = std::chrono::milliseconds(100);

// An eventfd has no file type and takes eight zero bytes at any time, also when it is full; nothing
// else that an fd can be does both (epoll, timerfd, signalfd refuse the write; pipes, sockets and
// files have a type).
bool is_eventfd(int fd) noexcept {
  struct stat status{};
  if (::fstat(fd, &status) != 0 || (status.st_mode & S_IFMT) != 0) return false;
  constexpr uint64_t kNothing = 0;
  return ::write(fd, &kNothing, sizeof kNothing) == sizeof kNothing;
}

}  // namespace

// ---- watchdog ---------------------------------------------------------------------------------

SignalWatchdog::SignalWatchdog(BackendCounters& counters)
    : counters_(counters), thread_([this] { run(); }) {}

SignalWatchdog::~SignalWatchdog() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SignalWatchdog::set_active(bool active) noexcept {
  {
    const std::lock_guard guard(lock_);
    active_ = active;
  }
  wake_.notify_one();
}

void SignalWatchdog::close(UniqueFd fd) noexcept {
  const std::lock_guard guard(lock_);
  fd.reset();
}

void SignalWatchdog::run() noexcept {
  std::unique_lock guard(lock_);
  uint64_t seen = 0;
  while (!stopping_) {
    if (active_) {
      wake_.wait_for(guard, kWatchPeriod);
      look(seen);
    } else {
      wake_.wait(guard);
    }
  }
}

// With the lock held: no watched fd is closed meanwhile.
void SignalWatchdog::look(uint64_t& seen) noexcept {
  const int fd = fd_.load(std::memory_order_acquire);  // pairs with enter()
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
  if (fd >= 0 && sequence == seen) {
    uint64_t count = 0;
    const iovec target{&count, sizeof count};
    // Never waits: an emptied counter means that the writer is free already.
    if (::preadv2(fd, &target, 1, -1, RWF_NOWAIT) > 0) counters_.calls_rescued.add();
  }
  seen = sequence;
}

// ---- event ------------------------------------------------------------------------------------

std::optional<PeerEvent> PeerEvent::adopt(UniqueFd fd, SignalWatchdog* watchdog) {
  if (!fd.is_open() || !is_eventfd(fd.get())) return std::nullopt;
  PeerEvent event;
  event.fd_ = std::move(fd);
  event.watchdog_ = watchdog;
  return event;
}

PeerEvent& PeerEvent::operator=(PeerEvent&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
    watchdog_ = other.watchdog_;
  }
  return *this;
}

void PeerEvent::reset() noexcept {
  if (!fd_.is_open()) return;
  if (watchdog_ != nullptr) {
    watchdog_->close(std::move(fd_));
  } else {
    fd_.reset();
  }
}

Signalled PeerEvent::signal() noexcept {
  NB_ASSERT(is_open());
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0) return Signalled::failed;
  if ((flags & O_NONBLOCK) == 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return Signalled::failed;
  }
  constexpr uint64_t kOne = 1;
  if (watchdog_ != nullptr) watchdog_->enter(fd_.get());
  const ssize_t written = ::write(fd_.get(), &kOne, sizeof kOne);
  const int cause = errno;
  if (watchdog_ != nullptr) watchdog_->leave();
  if (written == sizeof kOne) return Signalled::done;
  return cause == EAGAIN ? Signalled::saturated : Signalled::failed;
}

}  // namespace nobounce::backend
