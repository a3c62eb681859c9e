// A pool whose device bounces: lent blocks first, mapped once, synced, unmapped exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "page_pool/checked_pool.hpp"
#include "support/pool_fixture.hpp"

namespace nobounce {
namespace {

using test::CheckedPool;

class Mapped : public testing::Test {
 protected:
  void SetUp() override { make({}); }
  void TearDown() override {
    device_.reset();
    if (pool_ == nullptr) return;
    pool_->expect_all_free();
    EXPECT_EQ(pool_->arena->pages_free(), pool_->arena->bytes() >> kPageShift);
  }
  void make(const test::PoolOptions& options) {
    device_.reset();
    pool_ = std::make_unique<test::PoolFixture>(options);
    device_ = std::make_unique<DmaDevice>(*pool_->pool, DmaLimits{}, pool_->counters);
  }
  // No nocopy for receive: every page is private and bounces.
  void make_bouncing(uint64_t bytes = 4 << 20) {
    make({.bytes = bytes, .quotas = {.tx_percent = 45, .rx_percent = 0}});
  }
  PagePoolOptions options() {
    return {.device = device_.get(), .map = true, .arena = pool_->arena.get()};
  }
  PagePoolOptions syncing() {
    PagePoolOptions with_sync = options();
    with_sync.sync_for_device = true;
    with_sync.max_len = 4096;
    return with_sync;
  }
  uint64_t lent() { return pool_->pool->slots_lent(BlockUse::receive); }
  uint64_t counted(const char* name) { return pool_->counters.value(name); }

  std::unique_ptr<test::PoolFixture> pool_;
  std::unique_ptr<DmaDevice> device_;
};

// ---- where pages come from --------------------------------------------------------------------

TEST_F(Mapped, NC60_lent_blocks_come_first) {
  CheckedPool pool(options());
  Page* page = pool.alloc();
  ASSERT_NE(page, nullptr);
  EXPECT_TRUE(is_shared(*page));
  EXPECT_EQ(PagePool::dma_address(*page), pool_->pool->dma_of(page_address(*page)));
  EXPECT_EQ(lent(), 64u * kPageSize / kSlotSize);
  EXPECT_EQ(counted("dma.map.nocopy"), 64u);
  EXPECT_EQ(counted("dma.map.bounce"), 0u);
  pool.put(*page);
}

TEST_F(Mapped, NC60_private_pages_when_the_budget_is_used_up) {
  make({.bytes = 4 << 20, .quotas = {.tx_percent = 45, .rx_percent = 10}});
  CheckedPool pool(options());
  const auto pages = pool.alloc(128);
  ASSERT_EQ(pages.size(), 128u);
  const auto shared = std::ranges::count_if(pages, [](Page* page) { return is_shared(*page); });
  EXPECT_GT(shared, 90);  // a tenth of 1024 pages
  EXPECT_LT(shared, 128);
  EXPECT_EQ(counted("dma.map.nocopy"), static_cast<uint64_t>(shared));
  EXPECT_EQ(counted("dma.map.bounce"), 128u - static_cast<uint64_t>(shared));
  for (Page* page : pages) {
    EXPECT_NE(page->dma_index.load(), Page::kNotTracked);
    pool.put(*page);
  }
}

TEST_F(Mapped, NC60_larger_blocks_are_lent_too) {
  PagePoolOptions large = options();
  large.order = 3;
  CheckedPool pool(large);
  Page* block = pool.alloc();
  ASSERT_NE(block, nullptr);
  EXPECT_TRUE(is_shared(*block));
  EXPECT_EQ(block->order, 3);
  EXPECT_EQ(lent(), 8u * kPageSize / kSlotSize);
  pool.put(*block);
}

TEST_F(Mapped, NC61_PP8_a_pool_that_maps_nothing_never_borrows) {
  {
    CheckedPool pool({.device = device_.get(), .arena = pool_->arena.get()});
    Page* page = pool.alloc();
    EXPECT_FALSE(is_shared(*page));
    EXPECT_EQ(page->dma_index.load(), Page::kNotTracked);
    pool.put(*page);
  }
  CheckedPool without_device({.arena = pool_->arena.get()});
  Page* page = without_device.alloc();
  EXPECT_FALSE(is_shared(*page));
  without_device->sync_for_cpu(*page, 0, 4096);
  without_device.put(*page);
}

TEST_F(Mapped, a_device_that_reaches_all_memory_sees_the_address_itself) {
  DmaDevice direct(pool_->counters);
  PagePoolOptions with_direct = syncing();
  with_direct.device = &direct;
  CheckedPool pool(with_direct);
  Page* page = pool.alloc();
  EXPECT_FALSE(is_shared(*page));
  EXPECT_EQ(static_cast<uint64_t>(PagePool::dma_address(*page)),
            static_cast<uint64_t>(page_address(*page)));
  pool->sync_for_cpu(*page, 0, 100);
  pool.put(*page);
}

// ---- mapping ----------------------------------------------------------------------------------

TEST_F(Mapped, PP62_NC64_a_page_is_mapped_once_however_often_it_comes_round) {
  make_bouncing();
  CheckedPool pool(options());
  pool->bind_consumer_thread();
  Page* page = pool.alloc();
  const DmaAddr address = PagePool::dma_address(*page);
  EXPECT_FALSE(is_shared(*page));
  EXPECT_TRUE(pool_->pool->contains(address));
  for (int i = 0; i < 100; ++i) {
    pool.put(*page);
    ASSERT_EQ(pool.alloc(), page);
    EXPECT_EQ(PagePool::dma_address(*page), address);
  }
  EXPECT_EQ(counted("dma.map.bounce"), 64u);
  pool.put(*page);
}

TEST_F(Mapped, PP17_pages_that_cannot_be_mapped_go_back_uncounted) {
  make_bouncing(2 << 20);  // fewer bounce slots for receive than a few batches need
  CheckedPool pool(options());
  const auto pages = pool.alloc(2000);
  EXPECT_GT(pages.size(), 64u);
  EXPECT_LT(pages.size(), 512u);
  EXPECT_EQ(static_cast<uint64_t>(pool->in_flight()), pages.size());
  EXPECT_GT(counted("dma.map.failed"), 0u);
  EXPECT_EQ(pool.alloc(), nullptr);
  pool.expect_conserved();
  for (Page* page : pages) pool.put(*page);
}

TEST_F(Mapped, PP63_pages_that_cannot_be_tracked_are_unmapped_and_go_back) {
  PagePoolOptions few = options();
  few.tracked_max = 10;
  CheckedPool pool(few);
  const auto pages = pool.alloc(64);
  EXPECT_EQ(pages.size(), 10u);
  EXPECT_EQ(pool->in_flight(), 10);
  EXPECT_GT(pool->stats().track_failed, 53u);
  EXPECT_EQ(lent(), 10u * kPageSize / kSlotSize);
  // One place becomes free, one page can be had.
  page_get(*pages[0]);
  pool.put(*pages[0]);
  page_put(*pages[0]);
  Page* another = pool.alloc();
  EXPECT_NE(another, nullptr);
  EXPECT_EQ(pool.alloc(), nullptr);
  pool.put(*another);
  for (size_t i = 1; i < 10; ++i) pool.put(*pages[i]);
}

TEST_F(Mapped, PP38_a_page_that_leaves_is_unmapped) {
  make_bouncing();
  CheckedPool pool(options());
  Page* page = pool.alloc();
  const uint64_t used = pool_->pool->slots_used();
  page_get(*page);
  pool.put(*page);
  EXPECT_EQ(pool_->pool->slots_used(), used - kPageSize / kSlotSize);
  EXPECT_EQ(page->dma_addr.load(), 0u);
  EXPECT_EQ(page->dma_index.load(), Page::kNotTracked);
  page_put(*page);
}

TEST_F(Mapped, PP90_unmapping_never_copies_back) {
  make_bouncing();
  CheckedPool pool(options());
  Page* page = pool.alloc();
  page_write(*page, 0, as_bytes("private"));
  pool_->device_fill(PagePool::dma_address(*page), 4096, std::byte{0xdd});
  page_get(*page);
  pool.put(*page);  // leaves the pool: unmapped
  std::array<std::byte, 7> seen;
  page_read(*page, 0, seen);
  EXPECT_TRUE(std::ranges::equal(seen, as_bytes("private")));
  page_put(*page);
}

// ---- sync -------------------------------------------------------------------------------------

TEST_F(Mapped, PP70_what_the_device_wrote_is_seen_after_sync_for_cpu) {
  make_bouncing();
  PagePoolOptions with_offset = options();
  with_offset.offset = 64;
  CheckedPool pool(with_offset);
  Page* page = pool.alloc();
  pool_->device_fill(PagePool::dma_address(*page) + 64, 200, std::byte{0xab});
  pool->sync_for_cpu(*page, 100, 50);
  std::array<std::byte, 4096> seen;
  page_read(*page, 0, seen);
  EXPECT_TRUE(test::all_equal(Bytes(seen).subspan(164, 50), std::byte{0xab}));
  EXPECT_NE(seen[163], std::byte{0xab}) << "only the range asked for";
  EXPECT_NE(seen[214], std::byte{0xab});
  pool->sync_for_cpu(*page, 0, 0);
  pool.put(*page);
}

TEST_F(Mapped, PP39_PP64_a_page_is_the_devices_before_anyone_can_post_it) {
  make_bouncing();
  PagePoolOptions part = syncing();
  part.offset = 128;
  part.max_len = 256;
  part.direction = DmaDirection::bidirectional;
  CheckedPool pool(part);
  Page* page = pool.alloc();
  const DmaAddr address = PagePool::dma_address(*page);
  std::vector<std::byte> data(4096, std::byte{0x42});
  page_write(*page, 0, data);
  pool.put(*page);
  const auto seen = pool_->device_read(address, 4096);
  EXPECT_TRUE(test::all_equal(Bytes(seen).subspan(128, 256), std::byte{0x42}));
  EXPECT_NE(seen[127], std::byte{0x42});
  EXPECT_NE(seen[384], std::byte{0x42});
}

TEST_F(Mapped, PP39_a_pool_that_does_not_sync_does_not) {
  make_bouncing();
  CheckedPool pool(options());
  Page* page = pool.alloc();
  const DmaAddr address = PagePool::dma_address(*page);
  page_write(*page, 0, std::vector<std::byte>(4096, std::byte{0x42}));
  pool.put(*page);
  EXPECT_NE(pool_->device_read(address, 1)[0], std::byte{0x42});
}

// ---- eviction ---------------------------------------------------------------------------------

TEST_F(Mapped, NC63_lent_blocks_go_home_at_once_when_they_are_wanted) {
  CheckedPool pool(options());
  pool->bind_consumer_thread();
  const auto pages = pool.alloc(64);
  for (size_t i = 0; i < 10; ++i) pool.put(*pages[i]);
  EXPECT_EQ(pool->stats().recycle_cached, 10u);
  // Lowered below what is lent: over budget.
  ASSERT_TRUE(pool_->pool->set_quotas({.tx_percent = 45, .rx_percent = 1}));
  ASSERT_TRUE(pool_->pool->receive_should_evict());
  for (size_t i = 10; i < 20; ++i) pool.put_direct(*pages[i]);
  pool.put_bulk({pages[20], pages[21]}, 2);
  EXPECT_EQ(pool->stats().recycle_evicted, 12u);
  EXPECT_EQ(pool->in_flight(), 52);
  EXPECT_EQ(lent(), 52u * kPageSize / kSlotSize);
  ASSERT_TRUE(pool_->pool->set_quotas({}));
  for (size_t i = 22; i < 64; ++i) pool.put(*pages[i]);
  EXPECT_EQ(pool->stats().recycle_cached, 52u);
}

TEST_F(Mapped, NC63_private_pages_are_not_evicted) {
  make_bouncing();
  CheckedPool pool(options());
  Page* page = pool.alloc();
  Page* wanted = pool_->pool->alloc_block(0, BlockUse::receive);
  EXPECT_EQ(wanted, nullptr);
  pool.put(*page);
  EXPECT_EQ(pool->stats().recycle_evicted, 0u);
}

// ---- the end ----------------------------------------------------------------------------------

TEST_F(Mapped, PP55_PP66_at_destroy_every_mapping_is_undone_at_once) {
  make_bouncing();
  CheckedPool pool(syncing());
  const auto pages = pool.alloc(100);
  for (size_t i = 0; i < 20; ++i) pool.put(*pages[i]);
  pool.destroy();
  EXPECT_EQ(pool_->pool->slots_used(), 0u) << "no bounce slot is pinned any more";
  device_.reset();  // the device goes; 80 pages are still out
  for (size_t i = 20; i < 100; ++i) {
    EXPECT_EQ(pages[i]->dma_addr.load(), 0u);
    EXPECT_EQ(pages[i]->dma_index.load(), Page::kNotTracked);
    EXPECT_NE(PagePool::pool_of(*pages[i]), nullptr);
    PagePool::put(*pages[i]);  // not unmapped again, not synced
  }
  EXPECT_EQ(counted("swiotlb.bad_unmap.double"), 0u);
}

TEST_F(Mapped, PP49_lent_pages_come_home_after_pool_and_device_are_gone) {
  CheckedPool pool(syncing());
  const auto pages = pool.alloc(64);
  pool.destroy();
  device_.reset();
  EXPECT_EQ(lent(), 64u * kPageSize / kSlotSize) << "lent blocks stay with their holders";
  page_write(*pages[0], 0, as_bytes("still readable"));
  for (size_t i = 0; i < 32; ++i) PagePool::put(*pages[i]);
  std::vector<Page*> rest(pages.begin() + 32, pages.end());
  PagePool::put_bulk(rest.data(), rest.size());
  EXPECT_EQ(lent(), 0u);
}

TEST_F(Mapped, PP49_references_can_be_added_and_dropped_after_the_end) {
  CheckedPool pool(options());
  Page* page = pool.alloc();
  pool.destroy();
  page_hold(*page);
  page_return(*page);
  EXPECT_NE(PagePool::pool_of(*page), nullptr);
  page_return(*page);
}

TEST_F(Mapped, NC63_eviction_is_asked_safely_after_the_device_is_gone) {
  CheckedPool pool(options());
  const auto pages = pool.alloc(64);
  pool.destroy();
  device_.reset();
  ASSERT_TRUE(pool_->pool->set_quotas({.tx_percent = 45, .rx_percent = 1}));
  for (Page* page : pages) PagePool::put(*page);
}

TEST_F(Mapped, PP38_PP66_a_page_held_by_the_systems_count_outlives_the_pool_unmapped) {
  make_bouncing();
  CheckedPool pool(options());
  Page* page = pool.alloc();
  page_get(*page);
  pool.destroy();
  PagePool::put(*page);
  EXPECT_EQ(PagePool::pool_of(*page), nullptr);
  EXPECT_EQ(page->refcount.load(), 1u);
  page_put(*page);
}

TEST_F(Mapped, PP56_a_ring_entry_that_others_hold_is_still_released) {
  Page* page = nullptr;
  {
    CheckedPool pool(options());
    page = pool.alloc();
    pool.put(*page);
    page_get(*page);  // someone kept a pointer: a bug, reported on standard error
  }
  EXPECT_EQ(PagePool::pool_of(*page), nullptr);
  page_put(*page);
}

TEST_F(Mapped, a_pool_may_outlive_the_counters_it_published) {
  std::vector<Page*> pages;
  {
    CounterRegistry short_lived;
    PagePoolOptions published = options();
    published.counters = &short_lived;
    CheckedPool pool(published);
    pages = pool.alloc(10);
    pool.destroy();
    EXPECT_EQ(short_lived.value("page_pool.rx_pp_alloc_fast"), 9u);
  }
  for (Page* page : pages) PagePool::put(*page);
}

TEST_F(Mapped, pools_come_and_go_and_leave_nothing) {
  for (int round = 0; round < 50; ++round) {
    auto a = PagePool::create(syncing());
    auto b = PagePool::create(options());
    ASSERT_TRUE(a && b);
    std::array<Page*, 140> pages{};
    ASSERT_EQ((*a)->alloc_bulk(pages.data(), 70), 70u);
    ASSERT_EQ((*b)->alloc_bulk(pages.data() + 70, 70), 70u);
    EXPECT_EQ(static_cast<uint64_t>((*a)->in_flight() + (*b)->in_flight()) * kPageSize / kSlotSize,
              lent());
    PagePool::put_bulk(pages.data() + 70, 70);
    a->reset();
    PagePool::put_bulk(pages.data(), 70);
  }
}

}  // namespace
}  // namespace nobounce
