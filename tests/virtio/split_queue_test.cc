// The split queue against every lie about the used ring (C016, TM-3, TM-6..TM-13, TM-23).
#include "virtio/split_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/log.hpp"
#include "base/random.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

constexpr uint16_t kSize = 16;

// A queue on a region of its own, and the device's pen.
class Ring {
 public:
  explicit Ring(uint16_t size = kSize, Suppression suppression = Suppression::event_index)
      : region(std::move(*SharedRegion::create({.name = "split-queue", .bytes = 2 << 20}))),
        layout(*carve_queue(*region, 0, size)),
        queue(layout, suppression, latch) {
    set_log_level(LogLevel::quiet);  // breaches by the thousand
  }
  ~Ring() { set_log_level(LogLevel::warning); }

  void write_used(uint16_t at, uint32_t id, uint32_t length) const {
    layout.device_area.store_le<uint64_t>(wire::used_entry(at % layout.size),
                                          uint64_t{length} << 32 | id);
  }
  void write_used_index(uint16_t value) const {
    layout.device_area.store_le<uint16_t>(wire::kUsedIndex, value);
  }
  uint16_t post(size_t descriptors, uint32_t bytes = 100) {
    std::vector<Segment> chain(
        descriptors, {.address = DmaAddr{0x1000}, .size = bytes, .access = Access::device_writes});
    const uint16_t id = queue.post(chain);
    (void)queue.publish();
    return id;
  }
  // Completes as an honest device does; the driver takes it.
  void finish(uint16_t id, uint32_t length = 0) {
    write_used(used, id, length);
    write_used_index(++used);
    ASSERT_EQ(queue.completed(), 1);
    ASSERT_EQ(queue.take()->id, id);
  }
  [[nodiscard]] size_t drain() {
    size_t count = 0;
    queue.abandon([&](uint16_t) { ++count; });
    return count;
  }

  CounterRegistry counters;
  BreachLatch latch{"test", counters};
  std::unique_ptr<SharedRegion> region;
  QueueLayout layout;
  SplitQueue queue;
  uint16_t used = 0;
};

TEST(SplitQueue, descriptors_and_avail_ring_are_written_as_the_standard_says) {
  Ring ring;
  const std::vector<Segment> chain{
      {.address = DmaAddr{0x1122334455667788}, .size = 7, .access = Access::device_reads},
      {.address = DmaAddr{0x99}, .size = 0x89abcdef, .access = Access::device_writes}};
  const uint16_t head = ring.queue.post(chain);
  EXPECT_EQ(ring.layout.driver_area.load_le<uint16_t>(wire::kAvailIndex), 0);
  EXPECT_TRUE(ring.queue.publish());  // the first event is wanted at 0
  EXPECT_EQ(ring.layout.driver_area.load_le<uint16_t>(wire::kAvailIndex), 1);
  EXPECT_EQ(ring.layout.driver_area.load_le<uint16_t>(wire::avail_entry(0)), head);
  const SharedBytes table = ring.layout.descriptors;
  const size_t first = wire::kDescriptorBytes * head;
  EXPECT_EQ(table.load_le<uint64_t>(first), 0x1122334455667788U);
  EXPECT_EQ(table.load_le<uint32_t>(first + wire::kDescriptorLength), 7U);
  EXPECT_EQ(table.load_le<uint16_t>(first + wire::kDescriptorFlags), wire::kDescriptorHasNext);
  const uint16_t next = table.load_le<uint16_t>(first + wire::kDescriptorNext);
  const size_t second = wire::kDescriptorBytes * next;
  EXPECT_EQ(table.load_le<uint64_t>(second), 0x99U);
  EXPECT_EQ(table.load_le<uint32_t>(second + wire::kDescriptorLength), 0x89abcdefU);
  EXPECT_EQ(table.load_le<uint16_t>(second + wire::kDescriptorFlags), wire::kDescriptorWrite);
  EXPECT_EQ(table.load_le<uint16_t>(second + wire::kDescriptorNext), 0);
  EXPECT_EQ(ring.drain(), 1U);
}

TEST(SplitQueue, parts_are_aligned_and_do_not_overlap) {
  for (uint16_t size = 1; size != 0 && size <= 4096; size = static_cast<uint16_t>(size * 2)) {
    Ring ring(size);
    EXPECT_EQ(ring.layout.descriptors.address() % wire::kDescriptorAlign, 0U);
    EXPECT_EQ(ring.layout.driver_area.address() % wire::kAvailAlign, 0U);
    EXPECT_EQ(ring.layout.device_area.address() % wire::kUsedAlign, 0U);
    EXPECT_LE(ring.layout.descriptors.address() + ring.layout.descriptors.size(),
              ring.layout.driver_area.address());
    EXPECT_LE(ring.layout.driver_area.address() + ring.layout.driver_area.size(),
              ring.layout.device_area.address());
    EXPECT_LE(ring.layout.device_area.address() + ring.layout.device_area.size(),
              ring.layout.descriptors.address() + carve_queue_bytes(size));
  }
}

TEST(SplitQueue, TM34_dirty_ring_memory_is_zeroed_first) {
  Ring ring;
  const SharedBytes all = ring.layout.device_area;
  for (size_t i = 0; i < all.size(); ++i) all.store<uint8_t>(i, 0xff);
  SplitQueue again(ring.layout, Suppression::event_index, ring.latch);
  EXPECT_EQ(again.completed(), 0);
  EXPECT_FALSE(ring.latch.is_broken());
}

TEST(SplitQueue, out_of_order_completion_and_reuse_of_every_descriptor) {
  Ring ring;
  SeededRandom random(3);
  std::vector<uint16_t> posted;
  for (int i = 0; i < 200000; ++i) {  // the indices wrap three times
    const size_t count = 1 + random.below(3);
    if (ring.queue.free() >= count && random.below(2) == 0) {
      posted.push_back(ring.post(count));
    } else if (!posted.empty()) {
      const uint32_t which = random.below(static_cast<uint32_t>(posted.size()));
      ring.finish(posted[which], random.below(101));
      posted.erase(posted.begin() + which);
    }
    ASSERT_EQ(ring.queue.outstanding(), posted.size());
  }
  EXPECT_FALSE(ring.latch.is_broken());
  EXPECT_EQ(ring.drain(), posted.size());
  EXPECT_EQ(ring.queue.free(), kSize);
}

TEST(SplitQueue, C063_a_chain_of_the_whole_queue) {
  Ring ring;
  const uint16_t id = ring.post(kSize);
  EXPECT_EQ(ring.queue.free(), 0);
  ring.finish(id, kSize * 100);
  EXPECT_EQ(ring.queue.free(), kSize);
}

TEST(SplitQueue, TM6_used_index_jumps_from_every_fill_level) {
  for (uint16_t filled = 0; filled <= kSize; ++filled) {
    for (const uint32_t jump : {1U, 2U, 8U, 15U, 16U, 17U, 18U, 32U, 255U, 256U, 32767U, 32768U,
                                32769U, 65519U, 65520U, 65534U, 65535U}) {
      Ring ring;
      for (uint16_t i = 0; i < filled; ++i) ring.post(1);
      ring.write_used_index(static_cast<uint16_t>(jump));
      const uint16_t seen = ring.queue.completed();
      if (jump <= filled) {
        EXPECT_EQ(seen, jump);
        EXPECT_FALSE(ring.latch.is_broken());
      } else {
        EXPECT_EQ(seen, 0);
        EXPECT_EQ(ring.latch.breach(), Breach::used_index) << filled << " " << jump;
        EXPECT_EQ(ring.counters.value("test.broken.used_index"), 1U);
      }
      ASSERT_EQ(ring.drain(), filled);
    }
  }
}

TEST(SplitQueue, TM6_what_was_not_published_cannot_be_finished) {
  Ring ring;
  const Segment segment{.address = DmaAddr{0}, .size = 1, .access = Access::device_writes};
  (void)ring.queue.post({&segment, 1});
  ring.write_used_index(1);
  EXPECT_EQ(ring.queue.completed(), 0);
  EXPECT_EQ(ring.latch.breach(), Breach::used_index);
  EXPECT_EQ(ring.drain(), 1U);
}

void expect_breach(Ring& ring, uint32_t id, uint32_t length, Breach expected) {
  ring.write_used(ring.used, id, length);
  ring.write_used_index(static_cast<uint16_t>(ring.used + 1));
  ASSERT_EQ(ring.queue.completed(), 1);
  EXPECT_FALSE(ring.queue.take());
  EXPECT_EQ(ring.latch.breach(), expected) << "id " << id << " length " << length;
  EXPECT_EQ(ring.counters.value(std::string("test.broken.") + name(expected)), 1U);
  // Latched: nothing is looked at any more.
  ring.write_used_index(static_cast<uint16_t>(ring.used + 500));
  EXPECT_EQ(ring.queue.completed(), 0);
}

TEST(SplitQueue, C016_TM7_ids_that_cannot_be) {
  for (const uint32_t id : {uint32_t{kSize}, uint32_t{kSize} + 1, 65535U, 65536U, 65537U,
                            0x80000000U, 0xffff0000U, 0xffffffffU}) {
    Ring ring;
    ring.post(1);
    expect_breach(ring, id, 0, Breach::id_range);
    EXPECT_EQ(ring.drain(), 1U);
  }
}

TEST(SplitQueue, C016_TM7_never_posted) {
  Ring ring;
  const uint16_t id = ring.post(1);
  for (uint32_t other = 0; other < kSize; ++other) {
    if (other == id) continue;
    Ring fresh;
    ASSERT_EQ(fresh.post(1), id);
    expect_breach(fresh, other, 0, Breach::id_not_posted);
    EXPECT_EQ(fresh.drain(), 1U);
  }
  EXPECT_EQ(ring.drain(), 1U);
}

TEST(SplitQueue, C016_TM7_inside_a_chain) {
  Ring probe;
  const uint16_t head = probe.post(4);
  EXPECT_EQ(probe.drain(), 1U);
  for (uint32_t id = 0; id < 4; ++id) {
    if (id == head) continue;
    Ring ring;
    ASSERT_EQ(ring.post(4), head);
    expect_breach(ring, id, 0, Breach::id_not_head);
    EXPECT_EQ(ring.drain(), 1U);
    EXPECT_EQ(ring.queue.free(), kSize);
  }
}

TEST(SplitQueue, C016_TM7_twice_in_one_batch) {
  Ring ring;
  const uint16_t id = ring.post(1);
  ring.post(1);
  ring.write_used(0, id, 1);
  ring.write_used(1, id, 1);
  ring.write_used_index(2);
  ASSERT_EQ(ring.queue.completed(), 2);
  EXPECT_TRUE(ring.queue.take());
  EXPECT_FALSE(ring.queue.take());
  EXPECT_EQ(ring.latch.breach(), Breach::id_not_posted);
  EXPECT_EQ(ring.drain(), 1U);
}

TEST(SplitQueue, C016_TM7_twice_after_the_ring_has_wrapped) {
  Ring ring;
  const uint16_t other = ring.post(1);  // keeps one outstanding
  uint16_t last = 0;
  for (int i = 0; i < 3 * kSize; ++i) {
    last = ring.post(1);
    ring.finish(last);
  }
  expect_breach(ring, last, 0, Breach::id_not_posted);
  EXPECT_NE(last, other);
  EXPECT_EQ(ring.drain(), 1U);
}

TEST(SplitQueue, C016_TM4_TM9_lengths) {
  for (const uint32_t length : {0U, 11U, 99U, 100U}) {
    Ring ring;
    const uint16_t id = ring.post(1, 100);
    ring.finish(id, length);
    EXPECT_FALSE(ring.latch.is_broken());
  }
  for (const uint32_t length :
       {101U, 32768U, 65535U, 65536U, 65636U, 0x80000000U, 0xffffff9cU, 0xffffffffU}) {
    Ring ring;
    const uint16_t id = ring.post(1, 100);
    expect_breach(ring, id, length, Breach::length);
    EXPECT_EQ(ring.drain(), 1U);
  }
}

TEST(SplitQueue, TM9_lengths_of_chains_that_the_device_only_reads_are_ignored) {
  for (const uint32_t length : {0U, 1U, 0xffffffffU}) {
    Ring ring;
    const Segment segment{.address = DmaAddr{0}, .size = 10, .access = Access::device_reads};
    const uint16_t id = ring.queue.post({&segment, 1});
    (void)ring.queue.publish();
    ring.write_used(0, id, length);
    ring.write_used_index(1);
    ASSERT_EQ(ring.queue.completed(), 1);
    const auto completion = ring.queue.take();
    ASSERT_TRUE(completion);
    EXPECT_EQ(completion->length, 0U);
  }
}

// TM-3, TM-11: whatever happens to what we wrote, nothing changes.
TEST(SplitQueue, TM11_the_descriptor_table_and_avail_ring_are_never_read_back) {
  SeededRandom random(5);
  Ring ring;
  std::vector<uint16_t> posted;
  for (int i = 0; i < 20000; ++i) {
    for (size_t at = 0; at < ring.layout.descriptors.size(); at += 8) {
      ring.layout.descriptors.store<uint64_t>(at, random.next_u64());
    }
    for (size_t at = 0; at < ring.layout.driver_area.size(); at += 2) {
      ring.layout.driver_area.store<uint16_t>(at, static_cast<uint16_t>(random.next_u32()));
    }
    const size_t count = 1 + random.below(4);
    if (ring.queue.free() >= count && random.below(2) == 0) {
      posted.push_back(ring.post(count));
    } else if (!posted.empty()) {
      ring.finish(posted.back(), 5);
      posted.pop_back();
    }
  }
  EXPECT_FALSE(ring.latch.is_broken());
  EXPECT_EQ(ring.drain(), posted.size());
}

TEST(SplitQueue, TM12_suppression_fields_decide_on_a_kick_and_nothing_else) {
  SeededRandom random(6);
  for (const Suppression suppression : {Suppression::event_index, Suppression::flags}) {
    Ring ring(kSize, suppression);
    for (int i = 0; i < 5000; ++i) {
      ring.layout.device_area.store<uint16_t>(wire::kUsedFlags,
                                              static_cast<uint16_t>(random.next_u32()));
      ring.layout.device_area.store<uint16_t>(wire::used_avail_event(kSize),
                                              static_cast<uint16_t>(random.next_u32()));
      const uint16_t id = ring.post(1);
      EXPECT_FALSE(ring.queue.publish()) << "nothing new: never a kick";
      ring.finish(id);
    }
    EXPECT_FALSE(ring.latch.is_broken());
  }
}

TEST(SplitQueue, event_index_asks_for_exactly_the_crossing) {
  for (uint32_t event = 0; event < 65536; event += 257) {
    for (const uint16_t before : {uint16_t{0}, uint16_t{100}, uint16_t{65530}}) {
      for (const uint16_t step : {uint16_t{1}, uint16_t{3}, uint16_t{16}}) {
        const auto now = static_cast<uint16_t>(before + step);
        bool crossed = false;
        for (uint16_t i = 0; i < step; ++i) {
          crossed |= static_cast<uint16_t>(before + i) == static_cast<uint16_t>(event);
        }
        EXPECT_EQ(wire::needs_event(static_cast<uint16_t>(event), now, before), crossed);
      }
    }
  }
}

TEST(SplitQueue, TM13_a_running_index_cannot_hold_the_driver) {
#ifdef NOBOUNCE_SHARED_LOAD_HOOK
  Ring ring;
  for (int i = 0; i < kSize; ++i) ring.post(1);
  for (uint16_t i = 0; i < kSize; ++i) ring.write_used(i, i, 0);
  // The device adds one to used.idx before every load of anything.
  struct Running {
    SharedBytes used;
    uint16_t value;
    bool busy;
  } running{ring.layout.device_area, 0, false};
  set_shared_load_hook(
      [](void* context, std::byte*, size_t) {
        auto& device = *static_cast<Running*>(context);
        device.used.store_le<uint16_t>(wire::kUsedIndex, ++device.value);
      },
      &running);
  size_t taken = 0;
  for (int round = 0; round < 100 && !ring.latch.is_broken(); ++round) {
    const uint16_t count = ring.queue.completed();
    EXPECT_LE(count, kSize);
    for (uint16_t i = 0; i < count; ++i) taken += ring.queue.take().has_value() ? 1 : 0;
  }
  set_shared_load_hook(nullptr, nullptr);
  EXPECT_LE(taken, kSize);
  EXPECT_TRUE(ring.latch.is_broken());
  EXPECT_EQ(taken + ring.drain(), kSize);
#else
  GTEST_SKIP() << "no shared-load hook in this build";
#endif
}

TEST(SplitQueue, abandon_brings_every_chain_home_once) {
  Ring ring;
  std::set<uint16_t> posted;
  for (const size_t count : {3U, 1U, 5U, 2U}) posted.insert(ring.post(count));
  std::set<uint16_t> home;
  ring.queue.abandon([&](uint16_t id) { EXPECT_TRUE(home.insert(id).second); });
  EXPECT_EQ(home, posted);
  EXPECT_EQ(ring.queue.free(), kSize);
  EXPECT_EQ(ring.drain(), 0U);
}

TEST(SplitQueue, a_region_too_small_is_an_error_with_a_hint) {
  auto region = std::move(*SharedRegion::create({.name = "small", .bytes = 2 << 20}));
  const SharedBytes all = region->carve_rest(64);
  EXPECT_FALSE(all.empty());
  const auto layout = carve_queue(*region, 3, 256);
  ASSERT_FALSE(layout);
  EXPECT_FALSE(layout.error().hint.empty());
}

TEST(BreachLatch, the_first_reason_stays_and_all_are_counted) {
  CounterRegistry counters;
  BreachLatch latch("virtio9", counters);
  EXPECT_EQ(latch.reason(), nullptr);
  latch.latch(Breach::device_gone, 0, "the test has pulled the plug");
  latch.latch(Breach::length, 1);
  latch.latch(Breach::length, 1);
  EXPECT_EQ(latch.breach(), Breach::device_gone);
  EXPECT_STREQ(latch.reason(), "the test has pulled the plug");
  EXPECT_EQ(counters.value("virtio9.broken.device_gone"), 1U);
  EXPECT_EQ(counters.value("virtio9.broken.length"), 2U);
}

}  // namespace
}  // namespace nobounce::virtio
