#include <set>

#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

constexpr auto kTransmit = BlockUse::transmit;
constexpr auto kReceive = BlockUse::receive;

void expect_neutral(const Page& page) {
  EXPECT_EQ(page.refcount.load(), 0U);
  EXPECT_EQ(page.kind, PageKind::shared_memory);
  EXPECT_EQ(page.order, 0U);
  EXPECT_FALSE(page.is_tail);
  EXPECT_EQ(page.head_distance, 0U);
  EXPECT_EQ(page.owner, nullptr);
  EXPECT_EQ(page.owner_index, 0U);
  EXPECT_EQ(page.pool.load(), nullptr);
  EXPECT_EQ(page.dma_addr.load(), 0U);
  EXPECT_EQ(page.pool_refcount.load(), 0);
  EXPECT_EQ(page.dma_index.load(), Page::kNotTracked);
}

class BlockOrders : public testing::TestWithParam<unsigned> {};

TEST_P(BlockOrders, NC14_NC18_NC26_block_looks_like_pages_and_leaves_them_neutral) {
  const unsigned order = GetParam();
  PoolFixture f;
  Page* block = f.pool->alloc_block(order, kTransmit);
  ASSERT_NE(block, nullptr);
  const size_t bytes = kPageSize << order;
  EXPECT_EQ(block->refcount.load(), 1U);
  EXPECT_EQ(block->order, order);
  EXPECT_EQ(block->owner, f.pool.get());
  EXPECT_EQ(block_bytes(*block), bytes);
  EXPECT_EQ(static_cast<uint64_t>(page_address(*block)) % bytes, 0U) << "naturally aligned";
  EXPECT_EQ(static_cast<uint64_t>(f.pool->dma_of(page_address(*block))) % bytes, 0U);
  for (size_t i = 0; i < bytes / kPageSize; ++i) {
    Page& page = *(block + i);
    EXPECT_EQ(&page_head(page), block);
    EXPECT_EQ(page.is_tail, i != 0);
    EXPECT_TRUE(is_shared(page));
    EXPECT_EQ(page_of(page_address(*block) + i * kPageSize + 17), &page);
  }
  EXPECT_EQ(f.pool->slots_lent(kTransmit), bytes / kSlotSize) << "NC-5";
  EXPECT_EQ(f.counters.value("nocopy.tx.slots"), bytes / kSlotSize);
  page_get(*(block + (bytes / kPageSize - 1)));
  page_put(*block);
  EXPECT_EQ(f.pool->slots_lent(kTransmit), bytes / kSlotSize) << "still referred to";
  page_put(*(block + (bytes / kPageSize - 1)));
  for (size_t i = 0; i < bytes / kPageSize; ++i) expect_neutral(*(block + i));
}
INSTANTIATE_TEST_SUITE_P(Orders, BlockOrders, testing::Range(0U, kBlockOrderMax + 1));

TEST(Blocks, NC26_what_a_page_pool_left_is_wiped) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(1, kReceive);
  block->dma_addr.store(123);
  block->pool_refcount.store(4);
  block->dma_index.store(9);
  block->pool_private = 3;
  block->owner_tag = 7;
  page_put(*block);
  expect_neutral(*block);
  EXPECT_EQ(block->pool_private, 0U);
  EXPECT_EQ(block->owner_tag, 0U);
}

TEST(Blocks, NC4_budget_refuses_and_is_counted) {
  PoolFixture f({.bytes = 1 << 20, .quotas = {.tx_percent = 25, .rx_percent = 10}});
  std::vector<Page*> blocks;
  while (Page* block = f.pool->alloc_block(2, kTransmit)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 16U);  // 128 of 512 slots
  EXPECT_EQ(f.pool->slots_lent(kTransmit), 128U);
  EXPECT_EQ(f.counters.value("nocopy.tx.refused.budget"), 1U);
  EXPECT_FALSE(f.pool->receive_should_evict()) << "receive could not help a full transmit budget";
  Page* received = f.pool->alloc_block(2, kReceive);
  EXPECT_NE(received, nullptr) << "budgets are separate (NC-9)";
  page_put(*received);
  for (Page* block : blocks) page_put(*block);
  EXPECT_EQ(f.counters.value("nocopy.tx.high_water_slots"), 128U);
}

TEST(Blocks, NC1_off_and_refused_values) {
  PoolFixture f({.quotas = {.tx_percent = 0, .rx_percent = 0}});
  EXPECT_EQ(f.pool->alloc_block(0, kTransmit), nullptr);
  EXPECT_EQ(f.pool->alloc_block(0, kReceive), nullptr);
  EXPECT_EQ(f.counters.value("nocopy.tx.refused.off"), 1U);
  EXPECT_EQ(f.counters.value("nocopy.rx.refused.off"), 1U);
  ASSERT_TRUE(f.pool->set_quotas({.tx_percent = 10, .rx_percent = 20}));
  EXPECT_FALSE(f.pool->set_quotas({.tx_percent = 91, .rx_percent = 0}));
  EXPECT_FALSE(f.pool->set_quotas({.tx_percent = 50, .rx_percent = 50}));
  EXPECT_EQ(f.pool->quotas().tx_percent, 10U) << "the old values stay";
  EXPECT_EQ(f.pool->quotas().rx_percent, 20U);
  Page* block = f.pool->alloc_block(0, kTransmit);
  ASSERT_NE(block, nullptr);
  page_put(*block);
}

TEST(Blocks, NC6_NC84_switching_off_and_on_under_use) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(3, kTransmit);
  ASSERT_TRUE(f.pool->set_quotas({.tx_percent = 0, .rx_percent = 0}));
  EXPECT_EQ(f.pool->slots_lent(kTransmit), 16U);
  EXPECT_TRUE(f.pool->is_lent(page_address(*block), 10));
  EXPECT_EQ(f.pool->alloc_block(0, kTransmit), nullptr);
  page_put(*block);
  ASSERT_TRUE(f.pool->set_quotas({}));
  block = f.pool->alloc_block(3, kTransmit);
  EXPECT_NE(block, nullptr);
  page_put(*block);
}

// NC-8: both budgets full and idle, ordinary mappings still find room, large ones too.
TEST(Blocks, NC8_ten_percent_stay_for_ordinary_bounces) {
  for (const unsigned areas : {1U, 4U}) {
    PoolFixture f({.bytes = 64 << 20, .areas = areas});
    SeededRandom random(61);
    std::vector<Page*> blocks;
    for (const BlockUse use : {kTransmit, kReceive}) {
      for (int order = 6; order >= 0;) {
        // Mixed orders first, then down to single pages until the budget is full.
        const auto wanted = static_cast<unsigned>(order);
        Page* block = f.pool->alloc_block(std::min(wanted, random.below(7)), use);
        if (block == nullptr) {
          --order;
        } else {
          blocks.push_back(block);
        }
      }
    }
    EXPECT_EQ(f.pool->slots_lent(kTransmit), 14744U);  // floor(32768 * 0.45), whole pages
    EXPECT_EQ(f.pool->slots_lent(kReceive), 14744U);
    const Original original(*f.arena, 6);
    const auto large = f.pool->map({.original = original.at(0), .size = 252 << 10});
    ASSERT_TRUE(large);
    std::vector<DmaAddr> small;
    for (unsigned i = 0; i < 1000; ++i) {
      const auto address = f.pool->map({.original = original.at(0), .size = 2048});
      ASSERT_TRUE(address);
      small.push_back(*address);
    }
    for (const DmaAddr address : small) {
      f.pool->unmap(address, 2048, DmaDirection::to_device, {});
    }
    f.pool->unmap(*large, 252 << 10, DmaDirection::to_device, {});
    for (Page* block : blocks) page_put(*block);
  }
}

TEST(Blocks, no_fit_is_counted_and_asks_receive_to_give_back) {
  PoolFixture f({.bytes = 1 << 20});
  const Original original(*f.arena, 6);
  std::vector<DmaAddr> live;
  for (;;) {
    const auto address =
        f.pool->map({.original = original.at(0), .size = 2048, .attrs = {.no_warn = true}});
    if (!address) break;
    live.push_back(*address);
  }
  EXPECT_EQ(f.pool->alloc_block(0, kReceive), nullptr);
  EXPECT_EQ(f.pool->alloc_block(0, kTransmit), nullptr);
  EXPECT_EQ(f.counters.value("nocopy.tx.refused.no_fit"), 1U);
  EXPECT_EQ(f.counters.value("nocopy.rx.refused.no_fit"), 1U);
  EXPECT_TRUE(f.pool->receive_should_evict());
  for (const DmaAddr address : live) f.pool->unmap(address, 2048, DmaDirection::to_device, {});
  std::vector<Page*> blocks;
  for (unsigned i = 0; i < 16; ++i) blocks.push_back(f.pool->alloc_block(0, kTransmit));
  for (Page* block : blocks) page_put(*block);
  EXPECT_FALSE(f.pool->receive_should_evict()) << "transmit is served again";
}

TEST(Blocks, NC22_NC23_lent_is_told_by_slot_state) {
  PoolFixture f;
  const Original original(*f.arena, 1);
  const auto bounce = f.pool->map({.original = original.at(0), .size = 8192});
  ASSERT_TRUE(bounce);
  const CpuAddr pool_start = static_cast<CpuAddr>(f.memory.address());
  const CpuAddr bounce_cpu =
      pool_start + (static_cast<uint64_t>(*bounce) - static_cast<uint64_t>(kIovaBase));
  EXPECT_TRUE(f.pool->contains(bounce_cpu));
  EXPECT_FALSE(f.pool->is_lent(bounce_cpu, 1)) << "a bounce slot lies in the pool too";
  Page* block = f.pool->alloc_block(1, kTransmit);
  Page* next = f.pool->alloc_block(1, kTransmit);
  const CpuAddr at = page_address(*block);
  ASSERT_EQ(page_address(*next) + 8192, at) << "blocks come from the top, downwards";
  EXPECT_TRUE(f.pool->is_lent(at, 8192));
  EXPECT_TRUE(f.pool->is_lent(at + 8191, 1));
  EXPECT_TRUE(f.pool->is_lent(at + 100, 0));
  EXPECT_FALSE(f.pool->is_lent(at, 8193)) << "leaves the pool";
  EXPECT_FALSE(f.pool->is_lent(page_address(*next) + 8000, 400)) << "two blocks";
  EXPECT_FALSE(f.pool->is_lent(at, ~size_t{0}));
  EXPECT_FALSE(f.pool->is_lent(original.at(0), 1));
  EXPECT_FALSE(f.pool->is_lent(CpuAddr{0}, 1));
  EXPECT_FALSE(f.pool->is_lent(CpuAddr{~uint64_t{0}}, 2));
  page_put(*next);
  page_put(*block);
  EXPECT_FALSE(f.pool->is_lent(at, 1)) << "free";
  f.pool->unmap(*bounce, 8192, DmaDirection::to_device, {});
}

TEST(BlocksDeathTest, NC25_returned_twice_or_while_referred_to) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(0, kTransmit);
#ifdef NDEBUG
  f.pool->release_block(*block);
  EXPECT_EQ(f.counters.value("nocopy.bad_release"), 1U);
  EXPECT_EQ(f.pool->slots_used(), 2U);
#else
  EXPECT_DEATH(f.pool->release_block(*block), "");
#endif
  page_put(*block);
#ifdef NDEBUG
  f.pool->release_block(*block);
  EXPECT_EQ(f.counters.value("nocopy.bad_release"), 2U);
#else
  EXPECT_DEATH(f.pool->release_block(*block), "");
#endif
  EXPECT_DEATH(page_put(*block), "");
}

TEST(Blocks, NC33_NC34_mappings_do_not_own_the_block) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(2, kTransmit);
  const CpuAddr at = page_address(*block);
  const auto first = f.pool->map_lent(at + 5, 100);
  const auto second = f.pool->map_lent(at, 16384);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, f.pool->dma_of(at + 5));
  f.pool->sync_for_cpu(*second, 16384, DmaDirection::bidirectional);
  f.pool->sync_for_device(*second, 16384, DmaDirection::bidirectional);
  f.pool->unmap(*first, 100, DmaDirection::to_device, {});
  f.pool->unmap(*second, 16384, DmaDirection::to_device, {});
  EXPECT_EQ(f.copies.bytes(ThreadKind::application, CopyKind::bounce), 0U);
  EXPECT_TRUE(f.pool->is_lent(at, 16384)) << "the block is still there";
  page_put(*block);
}

TEST(Blocks, NC35_slots_wait_for_the_last_unmap) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(0, kTransmit);
  const CpuAddr at = page_address(*block);
  const auto first = f.pool->map_lent(at, 4096);
  const auto second = f.pool->map_lent(at + 100, 10);
  page_put(*block);
  EXPECT_EQ(f.counters.value("nocopy.released_mapped"), 1U);
  EXPECT_EQ(f.pool->slots_used(), 2U);
  EXPECT_EQ(f.pool->slots_lent(kTransmit), 2U) << "still charged";
  EXPECT_FALSE(f.pool->map_lent(at, 1)) << "no new mappings";
  Page* other = f.pool->alloc_block(0, kTransmit);
  EXPECT_NE(other, block) << "not given to another user";
  page_put(*other);
  f.pool->unmap(*first, 4096, DmaDirection::to_device, {});
  EXPECT_EQ(f.pool->slots_used(), 2U);
  f.pool->unmap(*second, 10, DmaDirection::to_device, {});
  EXPECT_EQ(f.pool->slots_used(), 0U);
}

TEST(Blocks, an_unmap_too_many_of_a_lent_block_is_counted) {
  PoolFixture f;
  Page* block = f.pool->alloc_block(0, kTransmit);
  f.pool->unmap(f.pool->dma_of(page_address(*block)), 10, DmaDirection::to_device, {});
  EXPECT_EQ(f.counters.value("swiotlb.bad_unmap.double"), 1U);
  EXPECT_TRUE(f.pool->is_lent(page_address(*block), 10));
  page_put(*block);
}

// NC-81: random use of both directions, all orders; blocks never overlap; conservation at the end.
TEST(Blocks, NC81_conservation) {
  PoolFixture f({.bytes = 8 << 20, .areas = 2});
  SeededRandom random(62);
  std::vector<Page*> live;
  std::set<uint64_t> pages;
  for (unsigned step = 0; step < 8000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed 62 step " << step);
    if (random.below(100) < ((step / 1000) % 2 == 0 ? 65U : 40U)) {
      const BlockUse use = random.below(2) == 0 ? kTransmit : kReceive;
      Page* block = f.pool->alloc_block(random.below(7), use);
      if (block == nullptr) continue;
      const auto first = static_cast<uint64_t>(page_address(*block));
      for (uint64_t at = first; at < first + block_bytes(*block); at += kPageSize) {
        ASSERT_TRUE(pages.insert(at).second) << "two blocks overlap";
      }
      live.push_back(block);
    } else if (!live.empty()) {
      const uint32_t victim = random.below(static_cast<uint32_t>(live.size()));
      const auto first = static_cast<uint64_t>(page_address(*live[victim]));
      for (uint64_t at = first; at < first + block_bytes(*live[victim]); at += kPageSize) {
        pages.erase(at);
      }
      page_put(*live[victim]);
      live[victim] = live.back();
      live.pop_back();
    }
    ASSERT_EQ(f.pool->slots_used(), pages.size() * 2);
    ASSERT_EQ(f.pool->slots_lent(kTransmit) + f.pool->slots_lent(kReceive), pages.size() * 2);
  }
  for (Page* block : live) page_put(*block);
}

// ---- coherent memory ----

TEST(Coherent, SW62_zeroed_aligned_and_given_back_by_address) {
  PoolFixture f;
  f.device_fill(kIovaBase, f.memory.size(), std::byte{'S'});
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, size_t{20000}, kMappingMax}) {
    const SharedBytes memory = f.pool->alloc_coherent(bytes);
    const size_t whole = std::bit_ceil(std::max(bytes, kPageSize));
    ASSERT_EQ(memory.size(), whole);
    EXPECT_EQ(memory.address() % whole, 0U);
    std::vector<std::byte> content(whole);
    memory.copy_out(0, content);
    EXPECT_TRUE(all_equal(content, std::byte{0}));
    EXPECT_FALSE(f.pool->free_coherent(memory.sub(1)));
    EXPECT_TRUE(f.pool->free_coherent(memory));
    EXPECT_FALSE(f.pool->free_coherent(memory)) << "a second time";
  }
  EXPECT_TRUE(f.pool->alloc_coherent(0).empty());
  EXPECT_TRUE(f.pool->alloc_coherent(kMappingMax + 1).empty());
  EXPECT_FALSE(f.pool->free_coherent({}));
}

TEST(Coherent, it_is_neither_lent_nor_bounced) {
  PoolFixture f;
  const SharedBytes memory = f.pool->alloc_coherent(4096);
  const auto at = static_cast<CpuAddr>(memory.address());
  EXPECT_FALSE(f.pool->is_lent(at, 1));
  f.pool->sync_for_cpu(f.pool->dma_of(at), 4096, DmaDirection::bidirectional);
  f.pool->unmap(f.pool->dma_of(at), 4096, DmaDirection::bidirectional, {});
  EXPECT_EQ(f.pool->slots_used(), 2U);
  EXPECT_TRUE(f.pool->free_coherent(memory));
}

}  // namespace
}  // namespace nobounce::test
