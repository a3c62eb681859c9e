#include <thread>

#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

constexpr auto kTo = DmaDirection::to_device;
constexpr auto kFrom = DmaDirection::from_device;
constexpr auto kBoth = DmaDirection::bidirectional;

constexpr std::byte kA{'A'};
constexpr std::byte kB{'B'};

// Runs `call` and expects misuse to be noticed: an assertion in checked builds, else the counter.
template <class Call>
void expect_misuse_caught(PoolFixture& f, const char* counter, Call call) {
#ifdef NDEBUG
  const uint64_t before = f.counters.value(counter);
  call();
  EXPECT_EQ(f.counters.value(counter), before + 1);
#else
  (void)f;
  (void)counter;
  EXPECT_DEATH(call(), "");
#endif
}

class CopyTable : public testing::TestWithParam<DmaDirection> {};

// Section 5 of the spec, line by line.
TEST_P(CopyTable, which_copies_happen) {
  const DmaDirection direction = GetParam();
  PoolFixture f;
  const Original original(*f.arena, 0);
  original.fill(kA);
  const auto address =
      f.pool->map({.original = original.at(0), .size = 4096, .direction = direction});
  ASSERT_TRUE(address);
  EXPECT_TRUE(all_equal(f.device_read(*address, 4096), kA)) << "SW-32: map always copies in";

  original.fill(kB);
  f.pool->sync_for_device(*address, 4096, direction);
  const bool in = direction != kFrom;  // SW-34
  EXPECT_TRUE(all_equal(f.device_read(*address, 4096), in ? kB : kA));

  f.device_fill(*address, 4096, std::byte{'C'});
  f.pool->sync_for_cpu(*address, 4096, direction);
  const bool out = direction != kTo;
  EXPECT_TRUE(all_equal(original.bytes(), out ? std::byte{'C'} : kB));

  f.device_fill(*address, 4096, std::byte{'D'});
  f.pool->unmap(*address, 4096, direction, {});
  EXPECT_TRUE(all_equal(original.bytes(), out ? std::byte{'D'} : kB));
  const uint64_t copies = 1 + (in ? 1 : 0) + (out ? 2 : 0);
  EXPECT_EQ(f.copies.bytes(ThreadKind::application, CopyKind::bounce), copies * 4096);
}
INSTANTIATE_TEST_SUITE_P(Directions, CopyTable, testing::Values(kTo, kFrom, kBoth));

TEST(Bounce, skip_cpu_sync_leaves_the_original_alone) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  original.fill(kA);
  const auto address = f.pool->map({.original = original.at(0),
                                    .size = 4096,
                                    .direction = kFrom,
                                    .attrs = {.skip_cpu_sync = true}});
  ASSERT_TRUE(address);
  EXPECT_TRUE(all_equal(f.device_read(*address, 4096), kA)) << "SW-32: not suppressed at map";
  f.device_fill(*address, 4096, kB);
  f.pool->unmap(*address, 4096, kFrom, {.skip_cpu_sync = true});
  EXPECT_TRUE(all_equal(original.bytes(), kA));
}

TEST(Bounce, SW33_device_that_writes_less_leaves_the_rest_as_it_was) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  original.fill(kA);
  const auto address = f.pool->map({.original = original.at(0), .size = 4096, .direction = kFrom});
  ASSERT_TRUE(address);
  f.device_fill(*address, 100, kB);
  f.pool->unmap(*address, 4096, kFrom, {});
  EXPECT_TRUE(all_equal(original.bytes().first(100), kB));
  EXPECT_TRUE(all_equal(original.bytes().subspan(100), kA));
}

TEST(Bounce, SW36_C069_padding_is_zeroed_and_nothing_else) {
  PoolFixture f;
  const Original original(*f.arena, 2);
  original.fill(kA);
  // Stale bytes of an earlier user everywhere.
  f.device_fill(kIovaBase, f.memory.size(), std::byte{'S'});
  const auto address = f.pool->map({.original = original.at(0x1a34),
                                    .size = 3000,
                                    .alloc_align_mask = 0x3fff,
                                    .limits = {.min_align_mask = 0xfff}});
  ASSERT_TRUE(address);
  const uint64_t start = static_cast<uint64_t>(*address) & ~uint64_t{0x3fff};
  const size_t before = static_cast<uint64_t>(*address) - start;
  EXPECT_EQ(before, 0xa34U);
  const auto run = f.device_read(DmaAddr{start}, 0x4000);
  EXPECT_TRUE(all_equal(Bytes(run).first(before), std::byte{0}));
  EXPECT_TRUE(all_equal(Bytes(run).subspan(before, 3000), kA));
  EXPECT_TRUE(all_equal(Bytes(run).subspan(before + 3000), std::byte{0}));
  EXPECT_TRUE(all_equal(f.device_read(DmaAddr{start + 0x4000}, 0x4000), std::byte{'S'}));
  f.pool->unmap(*address, 3000, kTo, {});
}

TEST(Bounce, SW36_without_the_mode_padding_is_not_written) {
  PoolFixture f({.zero_padding = false});
  const Original original(*f.arena, 0);
  f.device_fill(kIovaBase, 8192, std::byte{'S'});
  const auto address = f.pool->map({.original = original.at(0), .size = 100});
  ASSERT_TRUE(address);
  EXPECT_TRUE(all_equal(f.device_read(*address + 100, kSlotSize - 100), std::byte{'S'}));
  f.pool->unmap(*address, 100, kTo, {});
}

TEST(Bounce, SW12_too_large_leaves_no_trace) {
  PoolFixture f;
  const Original original(*f.arena, 6);
  EXPECT_EQ(f.pool->map({.original = original.at(0), .size = kMappingMax + 1}).error(),
            MapError::too_large);
  EXPECT_EQ(f.counters.value("swiotlb.alloc_fail.too_large"), 1U);
  EXPECT_EQ(f.pool->slots_used(), 0U);
  EXPECT_EQ(f.pool->slots_high_water(), 0U);
  EXPECT_TRUE(f.pool->is_pristine());
}

TEST(Bounce, SW20_largest_request_for_every_original) {
  PoolFixture f({.bytes = kMappingMax});
  const Original original(*f.arena, 6);
  for (const uint64_t mask : {0x0, 0x1ff, 0x7ff, 0xfff, 0xffff}) {
    const size_t size = Swiotlb::max_mapping_size(mask);
    for (uint64_t offset = 0; offset + size <= kMappingMax; offset += 1 + mask / 7) {
      SCOPED_TRACE(testing::Message() << mask << ' ' << offset);
      const auto address = f.pool->map(
          {.original = original.at(offset), .size = size, .limits = {.min_align_mask = mask}});
      ASSERT_TRUE(address);
      ASSERT_EQ(static_cast<uint64_t>(*address) & mask,
                static_cast<uint64_t>(original.at(offset)) & mask);
      f.pool->unmap(*address, size, kTo, {});
    }
  }
}

TEST(Bounce, SW26_full_pool_refuses_and_recovers) {
  PoolFixture f({.bytes = kMappingMax});
  const Original original(*f.arena, 0);
  std::vector<DmaAddr> live;
  for (;;) {
    const auto address =
        f.pool->map({.original = original.at(0), .size = 2048, .attrs = {.no_warn = true}});
    if (!address) {
      EXPECT_EQ(address.error(), MapError::exhausted);
      break;
    }
    live.push_back(*address);
  }
  EXPECT_EQ(live.size(), kSlotSet);
  EXPECT_EQ(f.pool->slots_used(), kSlotSet);
  EXPECT_EQ(f.counters.value("swiotlb.alloc_fail.exhausted"), 1U);
  for (const DmaAddr address : live) f.pool->unmap(address, 2048, kTo, {});
  const auto whole = f.pool->map({.original = original.at(0), .size = 2048});
  ASSERT_TRUE(whole);
  f.pool->unmap(*whole, 2048, kTo, {});
}

TEST(Bounce, SW27_unreachable_slot_is_given_back_without_copying) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  const uint64_t base = static_cast<uint64_t>(kIovaBase);
  const auto map = [&](uint64_t limit) {
    return f.pool->map({.original = original.at(0),
                        .size = 4096,
                        .direction = kFrom,
                        .limits = {.address_limit = limit}});
  };
  EXPECT_EQ(map(base + 4094).error(), MapError::unreachable);
  EXPECT_EQ(f.copies.bytes(ThreadKind::application, CopyKind::bounce), 0U);
  EXPECT_EQ(f.pool->slots_used(), 0U);
  const auto reachable = map(base + 4095);
  ASSERT_TRUE(reachable);
  f.pool->unmap(*reachable, 4096, kFrom, {});
}

TEST(Bounce, SW30_coherent_is_never_bounced) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  EXPECT_EQ(
      f.pool->map({.original = original.at(0), .size = 64, .attrs = {.require_coherent = true}})
          .error(),
      MapError::coherent_required);
}

TEST(Bounce, original_outside_the_page_space_is_refused) {
  PoolFixture f;
  for (const uint64_t address : {uint64_t{0}, uint64_t{4096}, ~uint64_t{0}, ~uint64_t{4095}}) {
    EXPECT_EQ(f.pool->map({.original = CpuAddr{address}, .size = 4096}).error(),
              MapError::unreachable);
  }
  EXPECT_EQ(f.counters.value("swiotlb.alloc_fail.unreachable"), 4U);
}

TEST(BounceDeathTest, SW35_a_direction_that_is_none_is_rejected) {
  PoolFixture f;
  EXPECT_DEATH(f.pool->sync_for_cpu(kIovaBase, 1, static_cast<DmaDirection>(3)), "");
}

// SW-38, SW-39, SW-42: random masks, sizes and sub-ranges against a byte-wise model.
TEST(Bounce, SW42_partial_sync_equals_a_bytewise_copy) {
  PoolFixture f;
  const Original original(*f.arena, 4);
  const uint64_t masks[] = {0, 0x1ff, 0x7ff, 0xfff, 0xffff};
  SeededRandom random(51);
  const MutableBytes bytes = original.bytes();
  for (unsigned round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 51 round " << round);
    const uint64_t mask = masks[random.below(5)];
    const size_t size = 1 + random.below(random.below(4) == 0 ? 20000 : 5000);
    const size_t at = random.below(45000);
    random.fill(bytes);
    const std::vector<std::byte> before(bytes.begin(), bytes.end());
    const auto address = f.pool->map({.original = original.at(at),
                                      .size = size,
                                      .direction = kBoth,
                                      .limits = {.min_align_mask = mask}});
    ASSERT_TRUE(address);
    std::vector<std::byte> slots(size);
    random.fill(slots);
    f.device(*address, size).copy_in(0, slots);

    std::vector<std::byte> expected = before;
    for (unsigned syncs = 0; syncs < 4; ++syncs) {
      const uint32_t from = random.below(static_cast<uint32_t>(size));
      const uint32_t count = 1 + random.below(static_cast<uint32_t>(size) - from);
      if (random.below(2) == 0) {
        f.pool->sync_for_cpu(*address + from, count, kBoth);
        std::copy_n(slots.begin() + from, count, expected.begin() + at + from);
      } else {
        f.pool->sync_for_device(*address + from, count, kBoth);
        std::copy_n(expected.begin() + at + from, count, slots.begin() + from);
      }
      ASSERT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
      ASSERT_EQ(f.device_read(*address, size), slots);
    }
    f.pool->unmap(*address, size, kBoth, {});  // SW-43: the rest is what the bounce holds
    std::ranges::copy(slots, expected.begin() + at);
    ASSERT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
  }
  EXPECT_EQ(f.counters.value("swiotlb.bad_sync"), 0U);
}

TEST(Bounce, SW40_sync_beyond_the_mapping_is_clamped) {
  PoolFixture f;
  const Original original(*f.arena, 1);
  original.fill(kA);
  const auto address = f.pool->map({.original = original.at(100),
                                    .size = 1000,
                                    .direction = kFrom,
                                    .limits = {.min_align_mask = 0xff}});
  ASSERT_TRUE(address);
  const DmaAddr slot{static_cast<uint64_t>(*address) & ~uint64_t{kSlotSize - 1}};
  f.device_fill(slot, kSlotSize, kB);
  f.pool->sync_for_cpu(*address + 900, 4096, kFrom);
  EXPECT_TRUE(all_equal(original.bytes().first(1000), kA));
  EXPECT_TRUE(all_equal(original.bytes().subspan(1000, 100), kB));
  EXPECT_TRUE(all_equal(original.bytes().subspan(1100), kA)) << "outside the original";
  EXPECT_EQ(f.counters.value("swiotlb.bad_sync"), 1U);
  // In the padding before and behind the mapping, and with a length that would wrap.
  f.pool->sync_for_cpu(slot, 4096, kFrom);
  f.pool->sync_for_cpu(*address + 1000, 1, kFrom);
  f.pool->sync_for_cpu(*address + 999, ~size_t{0}, kFrom);
  EXPECT_EQ(f.counters.value("swiotlb.bad_sync"), 4U);
  EXPECT_TRUE(all_equal(original.bytes().subspan(1100), kA));
  EXPECT_TRUE(all_equal(original.bytes().first(1000), kA));
  f.pool->unmap(*address, 1000, kTo, {});
}

TEST(Bounce, SW41_SW47_foreign_and_free_addresses_are_no_ops) {
  PoolFixture f;
  for (const DmaAddr address : {DmaAddr{0}, kIovaBase, kIovaBase + f.memory.size(),
                                kIovaBase + (f.memory.size() - 1), DmaAddr{~uint64_t{0}}}) {
    f.pool->sync_for_cpu(address, 4096, kBoth);
    f.pool->sync_for_device(address, 4096, kBoth);
    if (!f.pool->contains(address)) f.pool->unmap(address, 4096, kBoth, {});
  }
  EXPECT_EQ(f.copies.bytes(ThreadKind::application, CopyKind::bounce), 0U);
  EXPECT_EQ(f.counters.value("swiotlb.bad_unmap.double"), 0U);
}

TEST(BounceDeathTest, SW50_a_second_unmap_is_caught) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  const auto address = f.pool->map({.original = original.at(0), .size = 4096});
  ASSERT_TRUE(address);
  f.pool->unmap(*address, 4096, kTo, {});
  expect_misuse_caught(f, "swiotlb.bad_unmap.double",
                       [&] { f.pool->unmap(*address, 4096, kTo, {}); });
  EXPECT_TRUE(f.pool->is_pristine());
}

TEST(BounceDeathTest, SW50_unmap_inside_or_of_another_size_is_caught) {
  PoolFixture f;
  const Original original(*f.arena, 1);
  original.fill(kA);
  const auto address = f.pool->map({.original = original.at(0), .size = 8000});
  ASSERT_TRUE(address);
  f.device_fill(*address, 8000, kB);
  expect_misuse_caught(f, "swiotlb.bad_unmap.inner",
                       [&] { f.pool->unmap(*address + 1, 7999, kFrom, {}); });
  expect_misuse_caught(f, "swiotlb.bad_unmap.inner",
                       [&] { f.pool->unmap(*address + 4096, 3904, kFrom, {}); });
  expect_misuse_caught(f, "swiotlb.bad_unmap.size",
                       [&] { f.pool->unmap(*address, 4096, kFrom, {}); });
  expect_misuse_caught(f, "swiotlb.bad_unmap.size",
                       [&] { f.pool->unmap(*address, 8001, kFrom, {}); });
  EXPECT_TRUE(all_equal(original.bytes(), kA)) << "a refused unmap copies nothing";
  EXPECT_EQ(f.pool->slots_used(), 4U) << "and gives nothing back";
  f.pool->unmap(*address, 8000, kFrom, {});
  EXPECT_TRUE(all_equal(original.bytes().first(8000), kB));
}

TEST(Bounce, SW44_padding_slots_are_given_back) {
  PoolFixture f;
  const Original original(*f.arena, 6);
  const auto address = f.pool->map({.original = original.at(0xfa00),
                                    .size = 10,
                                    .alloc_align_mask = 0xffff,
                                    .limits = {.min_align_mask = 0xffff}});
  ASSERT_TRUE(address);
  EXPECT_EQ(f.pool->slots_used(), 32U);
  f.pool->unmap(*address, 10, kTo, {});
  EXPECT_TRUE(f.pool->is_pristine());
}

TEST(Bounce, original_over_several_blocks) {
  PoolFixture f;
  Original first(*f.arena, 0);
  std::vector<std::unique_ptr<Original>> more;
  // Neighbouring blocks of one page: any two of them that touch will do.
  for (unsigned i = 0; i < 64; ++i) more.push_back(std::make_unique<Original>(*f.arena, 0));
  const Original* low = nullptr;
  const Original* high = nullptr;
  for (const auto& a : more) {
    for (const auto& b : more) {
      if (b->at(0) == a->at(kPageSize)) low = a.get(), high = b.get();
    }
  }
  ASSERT_NE(low, nullptr);
  low->fill(kA);
  high->fill(kB);
  const auto address = f.pool->map({.original = low->at(4000), .size = 200, .direction = kBoth});
  ASSERT_TRUE(address);
  const auto seen = f.device_read(*address, 200);
  EXPECT_TRUE(all_equal(Bytes(seen).first(96), kA));
  EXPECT_TRUE(all_equal(Bytes(seen).subspan(96), kB));
  f.device_fill(*address, 200, std::byte{'C'});
  f.pool->unmap(*address, 200, kBoth, {});
  EXPECT_TRUE(all_equal(low->bytes().subspan(4000), std::byte{'C'}));
  EXPECT_TRUE(all_equal(high->bytes().first(104), std::byte{'C'}));
  EXPECT_TRUE(all_equal(high->bytes().subspan(104), kB));
}

// SW-64..SW-66.
TEST(Bounce, SW66_used_and_high_water_are_exact) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  const auto a = f.pool->map({.original = original.at(0), .size = 4096});
  const auto b = f.pool->map({.original = original.at(0), .size = 100});
  EXPECT_EQ(f.pool->slots_used(), 3U);
  EXPECT_EQ(f.counters.value("swiotlb.used_slots"), 3U);
  EXPECT_EQ(f.counters.value("swiotlb.total_slots"), f.pool->slots());
  f.pool->unmap(*a, 4096, kTo, {});
  EXPECT_EQ(f.pool->slots_used(), 1U);
  EXPECT_EQ(f.pool->slots_high_water(), 3U);
  EXPECT_EQ(f.counters.value("swiotlb.high_water_slots"), 3U);
  EXPECT_FALSE(f.pool->set_high_water(1));
  EXPECT_EQ(f.pool->slots_high_water(), 3U);
  EXPECT_TRUE(f.pool->set_high_water(0));
  EXPECT_EQ(f.pool->slots_high_water(), 0U);
  f.pool->unmap(*b, 100, kTo, {});
  EXPECT_EQ(f.counters.value("swiotlb.transient_slots"), 0U);
}

TEST(Bounce, SW81_receive_bounces_stay_out_of_the_transmit_reserve) {
  PoolFixture f({.bytes = 1 << 20});
  const Original original(*f.arena, 0);
  std::vector<DmaAddr> live;
  for (;;) {
    const auto address = f.pool->map({.original = original.at(0),
                                      .size = 4096,
                                      .direction = kFrom,
                                      .attrs = {.no_warn = true},
                                      .for_receive = true});
    if (!address) {
      EXPECT_EQ(address.error(), MapError::exhausted);
      break;
    }
    live.push_back(*address);
  }
  EXPECT_EQ(live.size() * 2, 230U);  // 90 less the 45 that transmit may lend: 45 % of 512
  EXPECT_EQ(f.counters.value("swiotlb.alloc_fail.receive_share"), 1U);
  EXPECT_EQ(f.pool->alloc_block(0, BlockUse::receive), nullptr);
  EXPECT_EQ(f.counters.value("nocopy.rx.refused.share"), 1U);
  // Transmit has its minimum: a block, and ordinary bounces.
  Page* block = f.pool->alloc_block(3, BlockUse::transmit);
  EXPECT_NE(block, nullptr);
  const auto transmit = f.pool->map({.original = original.at(0), .size = 4096});
  EXPECT_TRUE(transmit);
  f.pool->unmap(*transmit, 4096, kTo, {});
  page_put(*block);
  for (const DmaAddr address : live) f.pool->unmap(address, 4096, kFrom, {});
  EXPECT_FALSE(f.pool->receive_should_evict());
}

TEST(Bounce, TM59_a_scribbled_pool_changes_nothing_of_ours) {
  PoolFixture f;
  const Original original(*f.arena, 1);
  original.fill(kA);
  SeededRandom random(52);
  std::vector<DmaAddr> live;
  for (unsigned round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 52 round " << round);
    std::vector<std::byte> junk(4096);
    random.fill(junk);
    f.device(kIovaBase + uint64_t{random.below(1000)} * 4096, 4096).copy_in(0, junk);
    const auto address = f.pool->map({.original = original.at(0), .size = 5000});
    ASSERT_TRUE(address);
    ASSERT_TRUE(all_equal(f.device_read(*address, 5000), kA));
    live.push_back(*address);
    if (live.size() > 50) {
      f.pool->unmap(live.front(), 5000, kTo, {});
      live.erase(live.begin());
    }
  }
  for (const DmaAddr address : live) f.pool->unmap(address, 5000, kTo, {});
  EXPECT_TRUE(all_equal(original.bytes(), kA));
}

TEST(Swiotlb, refuses_memory_that_is_no_pool) {
  PoolFixture f;
  CounterRegistry counters;
  CopyLedger copies(counters);
  const auto create = [&](const SharedBytes& memory, DmaAddr iova, const SwiotlbOptions& options) {
    return Swiotlb::create(memory, iova, options, counters, copies).has_value();
  };
  EXPECT_FALSE(create(f.memory.sub(100), kIovaBase, {}));
  EXPECT_FALSE(create(f.memory.sub(0, 100), kIovaBase, {}));
  EXPECT_FALSE(create(SharedBytes(), kIovaBase, {}));
  EXPECT_FALSE(create(f.memory, kIovaBase + 100, {}));
  EXPECT_FALSE(create(f.memory, kIovaBase, {.quotas = {.tx_percent = 91, .rx_percent = 0}}));
}

TEST(Swiotlb, SW68_a_second_pool_resets_no_counter) {
  PoolFixture f;
  const Original original(*f.arena, 0);
  const auto address = f.pool->map({.original = original.at(0), .size = 4096});
  {
    auto region = SharedRegion::create({.bytes = 2 << 20});
    ASSERT_TRUE(region);
    auto second =
        Swiotlb::create((*region)->bytes(), kIovaBase, {.areas = 1}, f.counters, f.copies);
    ASSERT_TRUE(second);
    EXPECT_EQ(f.counters.value("swiotlb.used_slots"), 2U);
    EXPECT_EQ(f.counters.value("swiotlb.total_slots"), f.pool->slots() + (*second)->slots());
  }
  EXPECT_EQ(f.counters.value("swiotlb.used_slots"), 2U);
  EXPECT_EQ(f.counters.value("swiotlb.total_slots"), f.pool->slots());
  f.pool->unmap(*address, 4096, kTo, {});
}

TEST(Swiotlb, a_pool_that_does_not_begin_on_a_set) {
  PoolFixture f({.bytes = 2 << 20, .carve_first = 5 * kPageSize});
  EXPECT_EQ(f.pool->slots(), (2U << 20) / kSlotSize);
  const Original original(*f.arena, 6);
  original.fill(kA);
  std::vector<DmaAddr> live;
  for (;;) {
    const auto address =
        f.pool->map({.original = original.at(0), .size = kMappingMax, .attrs = {.no_warn = true}});
    if (!address) break;
    EXPECT_EQ(static_cast<uint64_t>(*address) % kMappingMax, 0U);
    live.push_back(*address);
  }
  EXPECT_EQ(live.size(), 7U);
  const auto rest = f.pool->map({.original = original.at(0), .size = 200000});
  ASSERT_TRUE(rest) << "the part of a set at the beginning is used too";
  EXPECT_TRUE(all_equal(f.device_read(*rest, 200000), kA));
  f.pool->unmap(*rest, 200000, kTo, {});
  for (const DmaAddr address : live) f.pool->unmap(address, kMappingMax, kTo, {});
}

TEST(SwiotlbDeathTest, NC28_a_pool_in_use_does_not_go) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  EXPECT_DEATH(f.pool.reset(), "2 slots are in use");
  page_put(*block);
}

}  // namespace
}  // namespace nobounce::test
