#include "base/peer_event.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

namespace nobounce::test {
namespace {

constexpr uint64_t kFull = UINT64_MAX - 1;

size_t open_fds() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

uint64_t event_count(int fd) {
  uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == sizeof count ? count : 0;
}

UniqueFd make_event() { return UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }
UniqueFd duplicate(int fd) { return UniqueFd(::dup(fd)); }
bool fill(int fd) { return ::write(fd, &kFull, sizeof kFull) == sizeof kFull; }

TEST(PeerEvent, only_eventfds_are_adopted) {
  const size_t before = open_fds();
  EXPECT_TRUE(PeerEvent::adopt(make_event(), nullptr));
  EXPECT_TRUE(PeerEvent::adopt(UniqueFd(::eventfd(5, EFD_SEMAPHORE)), nullptr));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(ends[0]), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(ends[1]), nullptr));
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(ends[0]), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(ends[1]), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(::epoll_create1(0)), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, 0)), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(::memfd_create("file", 0)), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(::open("/dev/null", O_RDWR)), nullptr));
  EXPECT_FALSE(PeerEvent::adopt(UniqueFd(), nullptr));
  EXPECT_EQ(open_fds(), before);  // the refused ones were closed
}

TEST(PeerEvent, TM86_a_full_counter_does_not_block_and_is_no_error) {
  const UniqueFd guest = make_event();
  auto event = PeerEvent::adopt(duplicate(guest.get()), nullptr);
  EXPECT_EQ(event->signal(), Signalled::done);
  EXPECT_EQ(event_count(guest.get()), 1u);
  ASSERT_TRUE(fill(guest.get()));
  EXPECT_EQ(event->signal(), Signalled::saturated);
  // The guest takes the flag away: it is put back before the write.
  ASSERT_EQ(::fcntl(guest.get(), F_SETFL, 0), 0);
  EXPECT_EQ(event->signal(), Signalled::saturated);
  EXPECT_NE(::fcntl(guest.get(), F_GETFL) & O_NONBLOCK, 0);
}

// The window between the check and the write, forced: blocking writes to full counters, by several
// threads at once.
TEST(SignalWatchdog, TM86_ends_every_write_that_blocks) {
  CounterRegistry registry;
  SignalWatchdog watchdog(registry.counter("rescued"));
  watchdog.set_active(true);
  std::array<std::thread, 3> threads;
  std::atomic<unsigned> returned{0};
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      UniqueFd event(::eventfd(0, EFD_CLOEXEC));
      SignalWatchdog::Watch watch(event.get());
      watchdog.add(watch);
      ASSERT_TRUE(fill(event.get()));
      const uint64_t one = 1;
      watch.enter();
      ASSERT_EQ(::write(event.get(), &one, sizeof one), 8);  // returns
      watch.leave();
      EXPECT_EQ(event_count(event.get()), 1u);
      watchdog.remove(watch, std::move(event));
      returned.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(returned.load(), threads.size());
  EXPECT_EQ(registry.value("rescued"), threads.size());
}

// A writer that is preempted, not blocked, keeps its signal: the blocked one beside it shows that the
// watchdog has looked often enough.
TEST(SignalWatchdog, a_slow_writer_keeps_its_signal) {
  CounterRegistry registry;
  SignalWatchdog watchdog(registry.counter("rescued"));
  UniqueFd slow = make_event();
  UniqueFd blocked(::eventfd(0, EFD_CLOEXEC));
  SignalWatchdog::Watch slow_watch(slow.get());
  SignalWatchdog::Watch blocked_watch(blocked.get());
  watchdog.add(slow_watch);
  watchdog.add(blocked_watch);
  const uint64_t one = 1;
  slow_watch.enter();
  ASSERT_EQ(::write(slow.get(), &one, sizeof one), 8);
  ASSERT_TRUE(fill(blocked.get()));
  watchdog.set_active(true);
  blocked_watch.enter();
  ASSERT_EQ(::write(blocked.get(), &one, sizeof one), 8);
  blocked_watch.leave();
  slow_watch.leave();
  EXPECT_EQ(event_count(slow.get()), 1u);
  // Counted by the watchdog's thread after it let the writer go.
  for (int i = 0; i < 2000 && registry.value("rescued") == 0; ++i) ::usleep(1000);
  EXPECT_EQ(registry.value("rescued"), 1u);
  watchdog.remove(slow_watch, std::move(slow));
  watchdog.remove(blocked_watch, std::move(blocked));
}

// A guest that fills the counter and clears the flag as fast as it can.
TEST(SignalWatchdog, TM86_a_racing_guest_cannot_stop_the_thread) {
  CounterRegistry registry;
  SignalWatchdog watchdog(registry.counter("rescued"));
  watchdog.set_active(true);
  const UniqueFd guest = make_event();
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      ::fcntl(guest.get(), F_SETFL, O_NONBLOCK);
      static_cast<void>(fill(guest.get()));
      ::fcntl(guest.get(), F_SETFL, 0);
    }
    ::fcntl(guest.get(), F_SETFL, O_NONBLOCK);
  });
  {
    auto event = PeerEvent::adopt(duplicate(guest.get()), &watchdog);
    // Rare blocks cost 100 ms each; the bound below is on work, the test's time-out on blocking.
    for (int i = 0; i < 2000 && registry.value("rescued") < 5; ++i) {
      static_cast<void>(event->signal());
    }
  }
  stop.store(true);
  attacker.join();
}

}  // namespace
}  // namespace nobounce::test
