#include "backend/device_queue.hpp"

#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

constexpr size_t kBuffers = 1 << 20;  // buffers begin there
constexpr uint64_t kBufferBase = kGuestBase + kBuffers;

struct Options {
  uint16_t size = 8;
  bool event_idx = true;
  QueueDirection direction = QueueDirection::device_reads;
  uint16_t base = 0;
};

class Fixture {
 public:
  explicit Fixture(const Options& options = {})
      : counters(registry),
        memory(ram.map()),
        ring(ram, 0, options.size, options.base),
        queue(options.direction, 32768, counters),
        call(make_event()),
        err(make_event()) {
    queue.call() = *PeerEvent::adopt(duplicate(call.get()), nullptr);
    queue.err() = *PeerEvent::adopt(duplicate(err.get()), nullptr);
    queue.start({.size = options.size,
                 .base = options.base,
                 .event_idx = options.event_idx,
                 .parts = ring.parts(*memory),
                 .memory = memory.get()});
  }
  void offer_simple(uint16_t head, uint32_t length = 64, bool writes = false) {
    ring.set_chain(head, {{kBufferBase + 4096u * head, length}}, writes);
    ring.offer(head);
  }
  // The driver asks for every completion: the first publication always tells.
  void pass_first_call() {
    offer_simple(0);
    Chain chain;
    ASSERT_TRUE(queue.walk(chain));
    queue.complete(chain, 0);
    queue.publish();
    ASSERT_EQ(event_count(call.get()), 1u);
    static_cast<void>(ring.take_used());
  }
  [[nodiscard]] uint64_t broken(RingBreak reason) const {
    return registry.value(std::string("backend.ring_broken.") + to_string(reason));
  }

  CounterRegistry registry;
  BackendCounters counters;
  GuestRam ram;
  std::unique_ptr<GuestMemory> memory;
  DriverRing ring;
  DeviceQueue queue;
  UniqueFd call;
  UniqueFd err;
};

TEST(DeviceQueue, takes_a_chain_and_returns_it) {
  Fixture f;
  Chain chain;
  EXPECT_FALSE(f.queue.walk(chain));
  f.ring.set_chain(3, {{kBufferBase, 10}, {kBufferBase + 4096, 20}, {kBufferBase + 8192, 30}},
                   false);
  f.ring.offer(3);
  ASSERT_TRUE(f.queue.walk(chain));
  EXPECT_EQ(chain.head, 3);
  EXPECT_EQ(chain.bytes, 60u);
  ASSERT_EQ(f.queue.pieces(chain).size(), 3u);
  EXPECT_EQ(f.queue.pieces(chain)[1].size(), 20u);
  EXPECT_FALSE(f.queue.walk(chain));
  f.queue.complete(chain, 7);
  EXPECT_FALSE(f.ring.has_used());  // private until it is published
  f.queue.publish();
  EXPECT_EQ(f.ring.take_used(), (UsedEntry{3, 7}));
  EXPECT_FALSE(f.ring.has_used());
  EXPECT_EQ(f.queue.next_avail(), 1);
}

TEST(DeviceQueue, rewound_chains_are_walked_again) {
  Fixture f;
  f.offer_simple(1);
  f.offer_simple(2);
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  ASSERT_TRUE(f.queue.walk(chain));
  EXPECT_EQ(f.queue.walked(), 2);
  EXPECT_EQ(f.queue.walked_pieces().size(), 2u);
  f.queue.rewind();
  EXPECT_EQ(f.queue.walked(), 0);
  ASSERT_TRUE(f.queue.walk(chain));
  EXPECT_EQ(chain.head, 1);
  f.queue.publish();
  EXPECT_FALSE(f.ring.has_used());
}

// Sizes, full-length chains.
TEST(DeviceQueue, C063_chains_of_exactly_the_ring_size_are_taken) {
  for (const uint16_t size :
       {uint16_t{1}, uint16_t{2}, uint16_t{8}, uint16_t{256}, uint16_t{32768}}) {
    SCOPED_TRACE(size);
    Fixture f({.size = size});
    for (const size_t length : {size_t{1}, size_t{size} / 2, size_t{size} - 1, size_t{size}}) {
      if (length == 0) continue;
      const std::vector<Buffer> buffers(length, Buffer{kBufferBase, 16});
      f.ring.set_chain(0, buffers, false);
      f.ring.offer(0);
      Chain chain;
      ASSERT_TRUE(f.queue.walk(chain));
      EXPECT_EQ(chain.bytes, 16 * length);
      EXPECT_EQ(f.queue.pieces(chain).size(), length);
      f.queue.complete(chain, 0);
      f.queue.publish();
      EXPECT_EQ(f.ring.take_used().id, 0u);
    }
    EXPECT_EQ(f.queue.broken(), RingBreak::none);
  }
}

// ---- TM-79: each malformed chain latches, is counted once, told once, and never parsed again -------

struct BreachCase {
  const char* name;
  RingBreak reason;
  void (*prepare)(Fixture& f);
};

const BreachCase kBreaches[] = {
    {"head out of range", RingBreak::head_range, [](Fixture& f) { f.ring.offer(8); }},
    {"head at the top", RingBreak::head_range, [](Fixture& f) { f.ring.offer(65535); }},
    {"avail index one too far", RingBreak::avail_index,
     [](Fixture& f) { f.ring.set_avail_index(9); }},
    {"avail index backwards", RingBreak::avail_index,
     [](Fixture& f) { f.ring.set_avail_index(65535); }},
    {"next out of range", RingBreak::next_range,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kBufferBase, 16, wire::kDescriptorHasNext, 8);
       f.ring.offer(0);
     }},
    {"chain points to itself", RingBreak::chain_too_long,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kBufferBase, 16, wire::kDescriptorHasNext, 0);
       f.ring.offer(0);
     }},
    {"empty descriptors in a loop", RingBreak::chain_too_long,
     [](Fixture& f) {
       f.ring.set_descriptor(0, 0, 0, wire::kDescriptorHasNext, 1);
       f.ring.set_descriptor(1, 0, 0, wire::kDescriptorHasNext, 0);
       f.ring.offer(0);
     }},
    {"size + 1 descriptors", RingBreak::chain_too_long,
     [](Fixture& f) {
       for (uint16_t i = 0; i < 8; ++i) {
         f.ring.set_descriptor(i, kBufferBase, 16, wire::kDescriptorHasNext,
                               static_cast<uint16_t>((i + 1) % 8));
       }
       f.ring.offer(0);
     }},
    {"indirect", RingBreak::indirect,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kBufferBase, 32, wire::kDescriptorIndirect);
       f.ring.offer(0);
     }},
    {"indirect behind an honest one", RingBreak::indirect,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kBufferBase, 32, wire::kDescriptorHasNext, 1);
       f.ring.set_descriptor(1, kBufferBase, 32, wire::kDescriptorIndirect);
       f.ring.offer(0);
     }},
    {"writable in a queue we read", RingBreak::direction,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kBufferBase, 32, wire::kDescriptorWrite);
       f.ring.offer(0);
     }},
    {"address below memory", RingBreak::unmapped,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kGuestBase - 1, 2, 0);
       f.ring.offer(0);
     }},
    {"buffer over the end of memory", RingBreak::unmapped,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kGuestBase + f.ram.size() - 1, 2, 0);
       f.ring.offer(0);
     }},
    {"address wraps", RingBreak::unmapped,
     [](Fixture& f) {
       f.ring.set_descriptor(0, UINT64_MAX - 4, 64, 0);
       f.ring.offer(0);
     }},
    {"length of 4 GiB less one", RingBreak::unmapped,
     [](Fixture& f) {
       f.ring.set_descriptor(0, kGuestBase, UINT32_MAX, 0);
       f.ring.offer(0);
     }},
};

TEST(DeviceQueue, TM79_a_malformed_chain_is_latched) {
  for (const BreachCase& c : kBreaches) {
    SCOPED_TRACE(c.name);
    Fixture f;
    c.prepare(f);
    Chain chain;
    EXPECT_FALSE(f.queue.walk(chain));
    EXPECT_EQ(f.queue.broken(), c.reason);
    EXPECT_EQ(f.broken(c.reason), 1u);
    EXPECT_EQ(event_count(f.err.get()), 1u);
    // Repaired or not: nothing is looked at any more.
    f.ring.set_avail_index(0);
    f.offer_simple(1);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(f.queue.walk(chain));
    EXPECT_FALSE(f.queue.is_usable());
    f.queue.publish();
    EXPECT_TRUE(f.queue.arm(0));  // nothing to wait for: the loop may sleep
    EXPECT_EQ(f.broken(c.reason), 1u);
    EXPECT_EQ(event_count(f.err.get()), 0u);
    EXPECT_FALSE(f.ring.has_used());
    // A new start clears it.
    static_cast<void>(f.queue.stop());
    f.queue.start({.size = 8,
                   .base = 0,
                   .event_idx = true,
                   .parts = f.ring.parts(*f.memory),
                   .memory = f.memory.get()});
    EXPECT_TRUE(f.queue.is_usable());
  }
}

TEST(DeviceQueue, TM79_readable_in_a_queue_we_write_is_a_breach) {
  Fixture f({.direction = QueueDirection::device_writes});
  f.offer_simple(0, 64, /*writes=*/false);
  Chain chain;
  EXPECT_FALSE(f.queue.walk(chain));
  EXPECT_EQ(f.queue.broken(), RingBreak::direction);
}

TEST(DeviceQueue, TM79_chains_of_more_than_4_GiB_are_a_breach) {
  // Only memory of that size reaches the sum before the translation, so the file is sparse.
  const UniqueFd fd(::memfd_create("large", MFD_CLOEXEC));
  constexpr uint64_t kLarge = uint64_t{2} << 30;
  ASSERT_EQ(::ftruncate(fd.get(), kLarge), 0);
  Fixture f;
  wire::MemTable table = f.ram.table();
  table.count = 2;
  table.regions[1] = {kGuestBase * 4, kLarge, kUserBase * 2, 0};
  const UniqueFd fds[] = {duplicate(f.ram.fd()), duplicate(fd.get())};
  const auto memory = GuestMemory::create(table, fds);
  ASSERT_TRUE(memory) << memory.error().to_string();
  f.queue.move_to(f.ring.parts(**memory), **memory);
  const Buffer half{kGuestBase * 4, static_cast<uint32_t>(kLarge)};
  f.ring.set_chain(0, {half, half}, false);
  f.ring.offer(0);
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  EXPECT_EQ(chain.bytes, uint64_t{1} << 32);
  f.queue.complete(chain, 0);
  f.ring.set_chain(0, {half, half, {kBufferBase, 1}}, false);
  f.ring.offer(0);
  EXPECT_FALSE(f.queue.walk(chain));
  EXPECT_EQ(f.queue.broken(), RingBreak::chain_bytes);
  static_cast<void>(f.queue.stop());
}

TEST(DeviceQueue, TM79_chains_that_share_descriptors_are_bounded) {
  CounterRegistry registry;
  BackendCounters counters(registry);
  const GuestRam ram;
  const auto memory = ram.map();
  DriverRing ring(ram, 0, 256);
  DeviceQueue queue(QueueDirection::device_writes, 256, counters);
  queue.start({.size = 256, .parts = ring.parts(*memory), .memory = memory.get()});
  ring.set_chain(0, std::vector<Buffer>(256, Buffer{kBufferBase, 1}), true);
  for (int i = 0; i < 256; ++i) ring.offer(0);
  Chain chain;
  size_t walked = 0;
  while (queue.walk(chain)) ++walked;
  EXPECT_LE(walked, 3u);
  EXPECT_EQ(queue.broken(), RingBreak::too_many_pieces);
}

TEST(DeviceQueue, TM64_a_guest_that_cuts_its_memory_breaks_the_ring) {
  Fixture f;
  f.offer_simple(0);
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  ASSERT_EQ(::ftruncate(f.ram.fd(), 4096 * 16), 0);
  std::array<std::byte, 64> copy;
  f.queue.pieces(chain)[0].copy_out(0, copy);
  f.queue.check_memory();
  EXPECT_EQ(f.queue.broken(), RingBreak::memory_fault);
  f.queue.complete(chain, 0);  // no effect, no assertion
  f.queue.publish();
}

// ---- indices ----------------------------------------------------------------------------------

TEST(DeviceQueue, avail_index_may_be_a_whole_ring_ahead_and_wraps_at_65536) {
  for (const uint16_t base : {uint16_t{0}, uint16_t{65530}, uint16_t{65535}}) {
    SCOPED_TRACE(base);
    Fixture f({.base = base});
    for (int round = 0; round < 4; ++round) {
      for (uint16_t i = 0; i < 8; ++i) f.offer_simple(i);
      Chain chain;
      for (uint16_t i = 0; i < 8; ++i) {
        ASSERT_TRUE(f.queue.walk(chain));
        EXPECT_EQ(chain.head, i);
        f.queue.complete(chain, i);
      }
      EXPECT_FALSE(f.queue.walk(chain));
      f.queue.publish();
      for (uint16_t i = 0; i < 8; ++i) EXPECT_EQ(f.ring.take_used(), (UsedEntry{i, i}));
    }
    EXPECT_EQ(f.queue.stop(), static_cast<uint16_t>(base + 32));
  }
}

TEST(DeviceQueue, TM79_every_jump_of_the_avail_index_is_judged) {
  // From each fill level, each jump: taken when it is at most a ring ahead, else latched.
  Fixture f;
  for (uint32_t fill = 0; fill <= 8; ++fill) {
    for (uint32_t jump = 0; jump < 65536; jump += jump < 32 || jump > 65500 ? 1 : 997) {
      SCOPED_TRACE(testing::Message() << fill << " + " << jump);
      static_cast<void>(f.queue.stop());
      DriverRing ring(f.ram, 0, 8);
      f.queue.start({.size = 8, .parts = ring.parts(*f.memory), .memory = f.memory.get()});
      for (uint16_t i = 0; i < fill; ++i) ring.offer(i);
      ASSERT_EQ(f.queue.count_available(), fill);
      const auto index = static_cast<uint16_t>(fill + jump);
      ring.set_avail_index(index);
      const size_t now = f.queue.count_available();
      if (index >= fill && index <= 8) {
        ASSERT_EQ(f.queue.broken(), RingBreak::none);
        ASSERT_EQ(now, index);
      } else {
        ASSERT_EQ(f.queue.broken(), RingBreak::avail_index);
      }
    }
  }
}

// ---- notifications ----------------------------------------------------------------------------

TEST(DeviceQueue, event_idx_calls_exactly_when_asked) {
  Fixture f;
  f.pass_first_call();
  Chain chain;
  const auto finish = [&](uint16_t count) {
    for (uint16_t i = 0; i < count; ++i) {
      f.offer_simple(static_cast<uint16_t>(i % 8));
      ASSERT_TRUE(f.queue.walk(chain));
      f.queue.complete(chain, 0);
    }
    f.queue.publish();
  };
  // used is 1 now. Asked for after entry 3: completions 2 and 3 say nothing, 4 does.
  f.ring.set_used_event(3);
  finish(1);
  EXPECT_EQ(event_count(f.call.get()), 0u);
  finish(1);
  EXPECT_EQ(event_count(f.call.get()), 0u);
  finish(1);
  EXPECT_EQ(event_count(f.call.get()), 1u);
  // Already passed: silent until the next is asked for.
  finish(1);
  EXPECT_EQ(event_count(f.call.get()), 0u);
  // A batch that jumps over the event tells once.
  f.ring.set_used_event(7);
  finish(6);
  EXPECT_EQ(event_count(f.call.get()), 1u);
  // The flag has no meaning with event indices.
  f.ring.set_avail_flags(wire::kAvailNoInterrupt);
  f.ring.set_used_event(f.ring.device_used_index());
  finish(1);
  EXPECT_EQ(event_count(f.call.get()), 1u);
  EXPECT_EQ(f.registry.value("backend.calls"), 4u);
  EXPECT_EQ(f.registry.value("backend.calls_suppressed"), 3u);
}

TEST(DeviceQueue, without_event_idx_the_flag_decides) {
  Fixture f({.event_idx = false});
  f.pass_first_call();
  Chain chain;
  f.ring.set_avail_flags(wire::kAvailNoInterrupt);
  f.offer_simple(1);
  ASSERT_TRUE(f.queue.walk(chain));
  f.queue.complete(chain, 0);
  f.queue.publish();
  EXPECT_EQ(event_count(f.call.get()), 0u);
  f.ring.set_avail_flags(0);
  f.offer_simple(2);
  ASSERT_TRUE(f.queue.walk(chain));
  f.queue.complete(chain, 0);
  f.queue.publish();
  EXPECT_EQ(event_count(f.call.get()), 1u);
  f.queue.publish();  // nothing new
  EXPECT_EQ(event_count(f.call.get()), 0u);
}

TEST(DeviceQueue, C022_arm_asks_for_the_next_chain_and_looks_again) {
  Fixture f;
  EXPECT_TRUE(f.queue.arm(f.queue.next_avail()));
  EXPECT_EQ(f.ring.avail_event(), 0);
  f.offer_simple(0);  // before the device sleeps: it must see it
  EXPECT_FALSE(f.queue.arm(f.queue.next_avail()));
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  f.queue.complete(chain, 0);
  f.queue.publish();
  EXPECT_TRUE(f.queue.arm(f.queue.next_avail()));
  EXPECT_EQ(f.ring.avail_event(), 1);
  // The driver's rule with that event: the next offer kicks, and the one after does not.
  EXPECT_TRUE(wire::needs_event(f.ring.avail_event(), 2, 1));
  EXPECT_FALSE(wire::needs_event(f.ring.avail_event(), 3, 2));
}

TEST(DeviceQueue, C022_chains_that_were_seen_and_left_do_not_keep_it_awake) {
  Fixture f({.direction = QueueDirection::device_writes});
  f.offer_simple(0, 64, true);
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  f.queue.rewind();
  EXPECT_TRUE(f.queue.arm(f.queue.seen()));
  EXPECT_EQ(f.ring.avail_event(), 1);
  const uint16_t seen = f.queue.seen();
  f.offer_simple(1, 64, true);
  EXPECT_EQ(f.queue.count_available(), 2u);  // looking does not lose the news
  EXPECT_FALSE(f.queue.arm(seen));
}

TEST(DeviceQueue, without_event_idx_kicks_are_switched_by_the_flag) {
  Fixture f({.event_idx = false});
  EXPECT_EQ(f.ring.used_flags(), 0);
  f.queue.disarm();
  EXPECT_EQ(f.ring.used_flags(), wire::kUsedNoNotify);
  EXPECT_TRUE(f.queue.arm(0));
  EXPECT_EQ(f.ring.used_flags(), 0);
}

TEST(DeviceQueue, nothing_of_the_ring_is_touched_after_stop) {
  Fixture f;
  f.offer_simple(0);
  Chain chain;
  ASSERT_TRUE(f.queue.walk(chain));
  EXPECT_EQ(f.queue.stop(), 0);  // not completed: walked again after a restart
  const ByteVector before = f.ram.read(0, f.ring.end());
  EXPECT_FALSE(f.queue.walk(chain));
  f.queue.publish();
  EXPECT_TRUE(f.queue.arm(0));
  f.queue.disarm();
  EXPECT_EQ(f.ram.read(0, f.ring.end()), before);
}

// ---- hostile ----------------------------------------------------------------------------------

#ifdef NOBOUNCE_SHARED_LOAD_HOOK

// Any word may have any value at any read: never more than a latch.
TEST(DeviceQueue, TM2_TM79_random_words_at_every_load) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const uint16_t size = static_cast<uint16_t>(1u << random.below(6));
    Fixture f({.size = size,
               .event_idx = random.below(2) == 0,
               .direction = random.below(2) == 0 ? QueueDirection::device_reads
                                                 : QueueDirection::device_writes});
    for (uint16_t i = 0; i < size; ++i) {
      f.ring.set_descriptor(i, kBufferBase + random.below(1 << 20), random.below(5000),
                            static_cast<uint16_t>(random.below(4)),
                            static_cast<uint16_t>(random.below(size)));
    }
    for (uint16_t i = 0; i < size; ++i) f.ring.offer(static_cast<uint16_t>(random.below(size)));
    set_shared_load_hook(
        [](void* context, std::byte* address, size_t bytes) {
          auto& source = *static_cast<SeededRandom*>(context);
          if (source.below(6) != 0) return;
          const size_t at = source.below(static_cast<uint32_t>(bytes));
          address[at] = static_cast<std::byte>(source.below(source.below(2) == 0 ? 4 : 256));
        },
        &random);
    Chain chain;
    for (int i = 0; i < 64; ++i) {
      std::vector<Chain> walked;
      while (walked.size() < 8 && f.queue.walk(chain)) {
        ASSERT_LE(chain.piece_count, 8u * size);
        walked.push_back(chain);
      }
      if (random.below(4) != 0 && f.queue.is_usable()) {
        for (const Chain& done : walked) f.queue.complete(done, random.next_u32());
      }
      f.queue.rewind();
      f.queue.publish();
      static_cast<void>(f.queue.arm(f.queue.next_avail()));
      f.queue.disarm();
    }
    set_shared_load_hook(nullptr, nullptr);
  }
}

#endif

}  // namespace
}  // namespace nobounce::backend::test
