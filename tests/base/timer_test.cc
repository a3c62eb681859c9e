#include "base/timer.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

struct Fired {
  std::vector<uint64_t> at;
  static void record(void* context, uint64_t now_ns) {
    static_cast<Fired*>(context)->at.push_back(now_ns);
  }
};

TEST(Timer, fires_once_at_or_after_its_deadline) {
  TimerQueue queue(4);
  Fired fired;
  Timer timer(&Fired::record, &fired);
  EXPECT_EQ(queue.next_deadline_ns(), TimerQueue::kNever);
  timer.arm(queue, 100);
  EXPECT_TRUE(timer.is_armed());
  EXPECT_EQ(queue.next_deadline_ns(), 100u);
  EXPECT_EQ(queue.poll(99), 0u);
  EXPECT_EQ(queue.poll(100), 1u);
  EXPECT_FALSE(timer.is_armed());
  EXPECT_EQ(queue.poll(1000), 0u);
  EXPECT_EQ(fired.at, std::vector<uint64_t>{100});
}

TEST(Timer, T64_a_late_poll_fires_once) {
  TimerQueue queue(4);
  Fired fired;
  Timer timer(&Fired::record, &fired);
  timer.arm(queue, 100);
  EXPECT_EQ(queue.poll(1'000'000), 1u);
  EXPECT_EQ(queue.poll(2'000'000), 0u);
  EXPECT_EQ(fired.at.size(), 1u);
}

TEST(Timer, arming_again_moves_the_deadline_both_ways) {
  TimerQueue queue(4);
  Fired fired;
  Timer timer(&Fired::record, &fired);
  timer.arm(queue, 100);
  timer.arm(queue, 200);
  EXPECT_EQ(queue.armed(), 1u);
  EXPECT_EQ(queue.poll(150), 0u);
  timer.arm(queue, 160);
  EXPECT_EQ(queue.next_deadline_ns(), 160u);
  EXPECT_EQ(queue.poll(160), 1u);
  timer.cancel();  // no-op when not armed
}

TEST(Timer, the_budget_holds_and_the_rest_comes_next_time) {
  TimerQueue queue(8);
  Fired fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (uint64_t i = 0; i < 8; ++i) {
    timers.push_back(std::make_unique<Timer>(&Fired::record, &fired));
    timers.back()->arm(queue, 10 + i);
  }
  EXPECT_EQ(queue.poll(100, 3), 3u);
  EXPECT_EQ(queue.armed(), 5u);
  EXPECT_EQ(queue.poll(100), 5u);
}

TEST(Timer, a_callback_may_arm_itself_and_cancel_others) {
  struct Pair {
    TimerQueue queue{4};
    Timer victim{[](void* context, uint64_t) { static_cast<Pair*>(context)->victim_fired = true; },
                 this};
    Timer again{[](void* context, uint64_t now_ns) {
                  auto* self = static_cast<Pair*>(context);
                  self->victim.cancel();
                  ++self->rounds;
                  self->again.arm(self->queue, now_ns + 10);
                },
                this};
    int rounds = 0;
    bool victim_fired = false;
  } pair;
  pair.again.arm(pair.queue, 10);
  pair.victim.arm(pair.queue, 11);
  EXPECT_EQ(pair.queue.poll(20), 1u);  // its new deadline, 30, lies ahead
  EXPECT_EQ(pair.rounds, 1);
  EXPECT_FALSE(pair.victim_fired);
  EXPECT_EQ(pair.queue.poll(30), 1u);
  EXPECT_EQ(pair.rounds, 2);
  pair.again.cancel();
}

TEST(Timer, a_callback_that_arms_in_the_past_cannot_hold_the_loop) {
  struct Greedy {
    TimerQueue queue{1};
    Timer timer{[](void* context, uint64_t) {
                  auto* self = static_cast<Greedy*>(context);
                  self->timer.arm(self->queue, 0);
                },
                this};
  } greedy;
  greedy.timer.arm(greedy.queue, 0);
  EXPECT_EQ(greedy.queue.poll(100, 16), 16u);
  greedy.timer.cancel();
}

TEST(Timer, goes_before_its_queue_or_after_it) {
  Fired fired;
  TimerQueue queue(2);
  {
    Timer timer(&Fired::record, &fired);
    timer.arm(queue, 10);
  }
  EXPECT_EQ(queue.armed(), 0u);
  EXPECT_EQ(queue.poll(100), 0u);
  std::optional<TimerQueue> shorter(std::in_place, 2);
  Timer timer(&Fired::record, &fired);
  timer.arm(*shorter, 10);
  shorter.reset();
  EXPECT_FALSE(timer.is_armed());
}

TEST(Timer, deadlines_at_the_ends_of_time) {
  TimerQueue queue(3);
  Fired fired;
  Timer first(&Fired::record, &fired);
  Timer last(&Fired::record, &fired);
  first.arm(queue, 0);
  last.arm(queue, ~uint64_t{0});
  EXPECT_EQ(queue.poll(0), 1u);
  EXPECT_EQ(queue.poll(~uint64_t{0} - 1), 0u);
  last.cancel();
}

TEST(Timer, arming_beyond_the_capacity_is_our_bug) {
  TimerQueue queue(1);
  Fired fired;
  Timer one(&Fired::record, &fired);
  Timer two(&Fired::record, &fired);
  one.arm(queue, 1);
  EXPECT_DEATH(two.arm(queue, 2), "assertion failed");
  TimerQueue other(1);
  EXPECT_DEATH(one.arm(other, 2), "assertion failed");
}

// Random arming, moving, cancelling and polling against a model that scans all timers.
TEST(Timer, against_a_model) {
  struct Subject {
    std::optional<Timer> timer;
    std::optional<uint64_t> deadline;  // of the model
    uint64_t fired_at = 0;
    static void fire(void* context, uint64_t now_ns) {
      static_cast<Subject*>(context)->fired_at = now_ns;
    }
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    TimerQueue queue(64);
    std::vector<Subject> subjects(64);
    for (Subject& subject : subjects) subject.timer.emplace(&Subject::fire, &subject);
    uint64_t now = 1000;
    for (int step = 0; step < 3000; ++step) {
      Subject& subject = subjects[random.below(64)];
      switch (random.below(4)) {
        case 0:
        case 1: {
          const uint64_t deadline = now + random.below(500);
          subject.timer->arm(queue, deadline);
          subject.deadline = deadline;
          break;
        }
        case 2:
          subject.timer->cancel();
          subject.deadline.reset();
          break;
        default: {
          now += random.below(100);
          size_t due = 0;
          for (Subject& other : subjects) {
            other.fired_at = 0;
            if (other.deadline && *other.deadline <= now) ++due;
          }
          ASSERT_EQ(queue.poll(now), due);
          for (Subject& other : subjects) {
            const bool expected = other.deadline && *other.deadline <= now;
            ASSERT_EQ(other.fired_at, expected ? now : 0);
            if (expected) other.deadline.reset();
          }
        }
      }
      uint64_t earliest = TimerQueue::kNever;
      size_t armed = 0;
      for (const Subject& other : subjects) {
        if (!other.deadline) continue;
        ++armed;
        earliest = std::min(earliest, *other.deadline);
      }
      ASSERT_EQ(queue.armed(), armed);
      ASSERT_EQ(queue.next_deadline_ns(), earliest);
    }
  }
}

}  // namespace
}  // namespace nobounce
