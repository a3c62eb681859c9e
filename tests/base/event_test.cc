#include "base/event.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.hpp"

namespace nobounce {
namespace {

// What every waiter does: looks, and sleeps unless it was signalled after that.
template <class Ready>
void wait_until(Event& event, Ready ready) {
  for (;;) {
    const uint32_t seen = event.prepare();
    if (ready()) return;
    event.wait(seen);
  }
}

TEST(Event, a_signal_after_prepare_is_never_waited_for) {  // C120
  Event event;
  const uint32_t seen = event.prepare();
  EXPECT_FALSE(event.signal()) << "nobody sleeps: no system call";
  EXPECT_TRUE(event.wait(seen));
  EXPECT_TRUE(event.wait(seen, 0)) << "it stays so for who looked before the signal";
  const uint32_t later = event.prepare();
  EXPECT_NE(later, seen);
  EXPECT_FALSE(event.wait(later, 0));
}

TEST(Event, a_wait_ends_with_its_time_and_says_so) {
  Event event;
  MonotonicClock clock;
  for (const uint64_t timeout_ns : {uint64_t{0}, uint64_t{1}, uint64_t{2} * kNsPerMs}) {
    const uint64_t start_ns = clock.now_ns();
    bool woken = true;
    while (woken) woken = event.wait(event.prepare(), timeout_ns);  // else spurious
    EXPECT_GE(clock.now_ns() - start_ns, timeout_ns);
  }
}

TEST(Event, the_count_wraps_and_old_looks_stay_old) {
  Event event;
  const uint32_t seen = event.prepare();
  for (int i = 0; i < 100'000; ++i) (void)event.signal();
  EXPECT_EQ(event.prepare(), seen + 100'000);
  EXPECT_TRUE(event.wait(seen, 0));
}

// A hand-over of one number, each side waiting for the other at every step: a wake-up that is lost
// hangs the test (C120).
TEST(Event, C120_hand_overs_between_two_threads_lose_no_wake_up) {
  constexpr uint32_t kRounds = 20'000;
  Event event;
  std::atomic<uint32_t> turn{0};
  const auto play = [&](uint32_t mine) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      wait_until(event, [&] { return turn.load(std::memory_order_acquire) == 2 * round + mine; });
      turn.store(2 * round + mine + 1, std::memory_order_release);
      event.signal();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(turn.load(), 2 * kRounds);
}

TEST(Event, one_signal_wakes_all_who_wait) {
  Event event;
  std::atomic<bool> ready{false};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back(
        [&] { wait_until(event, [&] { return ready.load(std::memory_order_acquire); }); });
  }
  ready.store(true, std::memory_order_release);
  event.signal();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(Event, says_whether_anybody_slept) {
  Event event;
  std::atomic<bool> ready{false};
  std::thread waiter(
      [&] { wait_until(event, [&] { return ready.load(std::memory_order_acquire); }); });
  // The waiter sleeps sooner or later; until then a signal finds nobody, and costs no system call.
  while (!event.signal()) std::this_thread::yield();
  ready.store(true, std::memory_order_release);
  event.signal();
  waiter.join();
  EXPECT_FALSE(event.signal()) << "it has gone";
}

}  // namespace
}  // namespace nobounce
