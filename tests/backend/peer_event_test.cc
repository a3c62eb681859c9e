#include "backend/peer_event.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

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
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(::write(guest.get(), &most, sizeof most), 8);
  EXPECT_EQ(event->signal(), Signalled::saturated);
  // The guest takes the flag away: it is put back before the write.
  ASSERT_EQ(::fcntl(guest.get(), F_SETFL, 0), 0);
  EXPECT_EQ(event->signal(), Signalled::saturated);
  EXPECT_NE(::fcntl(guest.get(), F_GETFL) & O_NONBLOCK, 0);
}

// The window between the check and the write, forced: a blocking write to a full counter.
TEST(SignalWatchdog, TM86_ends_a_write_that_blocks) {
  CounterRegistry registry;
  BackendCounters counters(registry);
  SignalWatchdog watchdog(counters);
  watchdog.set_active(true);
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(::write(event.get(), &most, sizeof most), 8);
  const uint64_t one = 1;
  watchdog.enter(event.get());
  ASSERT_EQ(::write(event.get(), &one, sizeof one), 8);  // returns
  watchdog.leave();
  EXPECT_EQ(registry.value("backend.calls_rescued"), 1u);
  watchdog.set_active(false);
}

// A guest that fills the counter and clears the flag as fast as it can.
TEST(SignalWatchdog, TM86_a_racing_guest_cannot_stop_the_thread) {
  CounterRegistry registry;
  BackendCounters counters(registry);
  SignalWatchdog watchdog(counters);
  watchdog.set_active(true);
  const UniqueFd guest = make_event();
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    const uint64_t most = UINT64_MAX - 1;
    while (!stop.load(std::memory_order_relaxed)) {
      ::fcntl(guest.get(), F_SETFL, O_NONBLOCK);
      static_cast<void>(::write(guest.get(), &most, sizeof most));
      ::fcntl(guest.get(), F_SETFL, 0);
    }
    ::fcntl(guest.get(), F_SETFL, O_NONBLOCK);
  });
  {
    auto event = PeerEvent::adopt(duplicate(guest.get()), &watchdog);
    // Rare blocks cost 100 ms each; the bound below is on work, the test's time-out on blocking.
    for (int i = 0; i < 2000 && registry.value("backend.calls_rescued") < 5; ++i) {
      static_cast<void>(event->signal());
    }
  }
  stop.store(true);
  attacker.join();
}

}  // namespace
}  // namespace nobounce::backend::test
