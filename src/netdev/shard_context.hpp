// What every floor above the device needs of its shard, in one place: time, randomness, timers,
// packets, private pages, counters. Owned by the shard, passed by reference, one per I/O thread.
//
// now_ns is read from the clock once a round of the shard's loop; code that runs inside a round uses
// it and never asks the clock.
#pragma once

#include "base/clock.hpp"
#include "base/copies.hpp"
#include "base/counters.hpp"
#include "base/random.hpp"
#include "base/timer.hpp"
#include "memory/private_arena.hpp"
#include "skb/packet.hpp"

namespace nobounce {

struct ShardContext {
  Clock& clock;
  Random& random;
  TimerQueue& timers;
  PacketPool& packets;
  PrivateArena& arena;
  CounterRegistry& counters;
  CopyLedger& copies;
  uint64_t now_ns = 0;
};

}  // namespace nobounce
