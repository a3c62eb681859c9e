#include "base/peer_event.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace nobounce {
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

SignalWatchdog::SignalWatchdog(SharedCounter rescued)
    : rescued_(rescued), thread_([this] { run(); }) {}

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

void SignalWatchdog::add(Watch& watch) {
  const std::lock_guard guard(lock_);
  watches_.push_back(&watch);
}

void SignalWatchdog::remove(Watch& watch, UniqueFd fd) noexcept {
  const std::lock_guard guard(lock_);
  std::erase(watches_, &watch);
  fd.reset();
}

void SignalWatchdog::run() noexcept {
  std::unique_lock guard(lock_);
  while (!stopping_) {
    if (active_) {
      wake_.wait_for(guard, kWatchPeriod);
      for (Watch* watch : watches_) look(*watch);
    } else {
      wake_.wait(guard);
    }
  }
}

// With the lock held: no watched fd is closed meanwhile.
void SignalWatchdog::look(Watch& watch) noexcept {
  const uint64_t sequence = watch.sequence_.load(std::memory_order_relaxed);
  const bool stays = sequence % 2 == 1 && sequence == watch.seen_;
  watch.seen_ = sequence;
  if (!stays) return;
  // A writer that is only slow to be scheduled keeps what it has written: the counter is not full.
  pollfd event{.fd = watch.fd_, .events = POLLOUT, .revents = 0};
  if (::poll(&event, 1, 0) != 0) return;
  uint64_t count = 0;
  const iovec target{&count, sizeof count};
  // Never waits: an emptied counter means that the writer is free already.
  if (::preadv2(watch.fd_, &target, 1, -1, RWF_NOWAIT) > 0) rescued_.add();
}

// ---- event ------------------------------------------------------------------------------------

std::optional<PeerEvent> PeerEvent::adopt(UniqueFd fd, SignalWatchdog* watchdog) {
  if (!fd.is_open() || !is_eventfd(fd.get())) return std::nullopt;
  PeerEvent event;
  event.fd_ = std::move(fd);
  if (watchdog != nullptr) {
    event.watchdog_ = watchdog;
    event.watch_ = std::make_unique<SignalWatchdog::Watch>(event.fd());
    watchdog->add(*event.watch_);
  }
  return event;
}

PeerEvent& PeerEvent::operator=(PeerEvent&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
    watchdog_ = other.watchdog_;
    watch_ = std::move(other.watch_);
  }
  return *this;
}

void PeerEvent::reset() noexcept {
  if (!fd_.is_open()) return;
  if (watch_ != nullptr) {
    watchdog_->remove(*watch_, std::move(fd_));
    watch_.reset();
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
  if (watch_ != nullptr) watch_->enter();
  const ssize_t written = ::write(fd_.get(), &kOne, sizeof kOne);
  const int cause = errno;
  if (watch_ != nullptr) watch_->leave();
  if (written == sizeof kOne) return Signalled::done;
  return cause == EAGAIN ? Signalled::saturated : Signalled::failed;
}

}  // namespace nobounce
