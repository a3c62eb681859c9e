// The three tiers, references and counts of a pool that maps nothing.
#include "page_pool/page_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "page_pool/checked_pool.hpp"

namespace nobounce {
namespace {

using test::CheckedPool;

class PagePoolTest : public testing::Test {
 protected:
  static constexpr uint64_t kArenaBytes = 4 << 20;
  static constexpr uint64_t kArenaPages = kArenaBytes >> kPageShift;

  void SetUp() override { make_arena(kArenaBytes); }
  void TearDown() override { EXPECT_EQ(arena_->pages_free(), arena_->bytes() >> kPageShift); }
  void make_arena(uint64_t bytes) {
    auto arena = PrivateArena::create(bytes, counters_);
    ASSERT_TRUE(arena) << arena.error().to_string();
    arena_ = std::move(*arena);
  }
  void expect_refused(const PagePoolOptions& options) {
    auto pool = PagePool::create(options);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, std::errc::invalid_argument);
    EXPECT_FALSE(pool.error().cause.empty());
  }

  CounterRegistry counters_;
  std::unique_ptr<PrivateArena> arena_;
};

void on_another_thread(auto&& work) { std::thread(work).join(); }

// ---- creation ---------------------------------------------------------------------------------

TEST_F(PagePoolTest, PP3_PP4_PP8_what_cannot_work_is_refused) {
  DmaDevice device(counters_);
  PrivateArena* arena = arena_.get();
  expect_refused({});  // no arena
  expect_refused({.order = kBlockOrderMax + 1, .arena = arena});
  expect_refused({.map = true, .arena = arena});
  expect_refused(
      {.device = &device, .map = true, .direction = DmaDirection::to_device, .arena = arena});
  expect_refused({.device = &device, .sync_for_device = true, .max_len = 4096, .arena = arena});
  expect_refused({.device = &device, .map = true, .sync_for_device = true, .arena = arena});
  expect_refused({.offset = 4097, .arena = arena});
  expect_refused({.offset = 1, .max_len = 4096, .arena = arena});
  expect_refused({.offset = 4096, .max_len = ~uint32_t{0}, .arena = arena});
}

TEST_F(PagePoolTest, PP3_both_directions_in_which_a_device_writes_are_fine) {
  DmaDevice device(counters_);
  for (const auto direction : {DmaDirection::from_device, DmaDirection::bidirectional}) {
    CheckedPool pool(
        {.device = &device, .map = true, .direction = direction, .arena = arena_.get()});
    Page* page = pool.alloc();
    ASSERT_NE(page, nullptr);
    pool.put(*page);
  }
}

TEST_F(PagePoolTest, PP2_ring_sizes_default_and_clamp) {
  make_arena(80 << 20);
  const struct {
    uint32_t asked;
    uint64_t expected;
  } cases[] = {{0, 1024},      {1, 1},         {1000, 1000},
               {16384, 16384}, {16385, 16384}, {~uint32_t{0}, 16384}};
  for (const auto& [asked, expected] : cases) {
    CheckedPool pool({.ring_size = asked, .arena = arena_.get()});
    const auto pages = pool.alloc(expected + 3);
    ASSERT_EQ(pages.size(), expected + 3);
    for (Page* page : pages) pool.put(*page);
    EXPECT_EQ(pool->stats().recycle_ring, expected) << asked;
    EXPECT_EQ(pool->stats().recycle_ring_full, 3u);
  }
}

TEST_F(PagePoolTest, PP60_an_empty_handle_is_destroyed_without_harm) {
  PagePoolHandle handle;
  handle.reset();
  PagePoolDestroyer()(nullptr);
}

// ---- allocation -------------------------------------------------------------------------------

TEST_F(PagePoolTest, PP16_PP18_PP22_the_first_page_brings_a_batch) {
  CheckedPool pool({.arena = arena_.get()});
  Page* page = pool.alloc();
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->refcount.load(), 1u);
  EXPECT_EQ(page->pool_refcount.load(), 1);
  EXPECT_EQ(PagePool::pool_of(*page), &*pool);
  EXPECT_EQ(pool->in_flight(), 64);
  EXPECT_EQ(pool->stats().alloc_slow, 1u);
  EXPECT_EQ(pool->stats().alloc_empty, 1u);
  EXPECT_EQ(pool->stats().alloc_fast, 0u);
  const auto rest = pool.alloc(63);
  EXPECT_EQ(pool->stats().alloc_fast, 63u);
  EXPECT_EQ(pool->stats().alloc_slow, 1u);
  std::set<Page*> distinct(rest.begin(), rest.end());
  distinct.insert(page);
  EXPECT_EQ(distinct.size(), 64u);
  for (Page* each : distinct) pool.put(*each);
}

TEST_F(PagePoolTest, PP11_the_last_one_back_is_the_first_one_out) {
  CheckedPool pool({.arena = arena_.get()});
  const auto pages = pool.alloc(3);
  pool.put_direct(*pages[0]);
  pool.put_direct(*pages[2]);
  pool.put_direct(*pages[1]);
  EXPECT_EQ(pool.alloc(), pages[1]);
  EXPECT_EQ(pool.alloc(), pages[2]);
  EXPECT_EQ(pool.alloc(), pages[0]);
  for (Page* page : pages) pool.put_direct(*page);
}

TEST_F(PagePoolTest, PP12_PP13_an_empty_cache_is_refilled_from_the_ring_by_64) {
  CheckedPool pool({.arena = arena_.get()});
  const auto pages = pool.alloc(128);
  for (Page* page : pages) pool.put(*page);  // no consumer bound: all to the ring
  EXPECT_EQ(pool->stats().recycle_ring, 128u);
  const PagePoolStats before = pool->stats();
  const auto first = pool.alloc(64);
  EXPECT_EQ(pool->stats().alloc_refill, before.alloc_refill + 1);
  EXPECT_EQ(pool->stats().alloc_fast, before.alloc_fast + 63);
  const auto second = pool.alloc(64);
  EXPECT_EQ(pool->stats().alloc_refill, before.alloc_refill + 2);
  EXPECT_EQ(pool->stats().alloc_slow, before.alloc_slow);
  // PP-48: nothing lost, nothing doubled.
  std::set<Page*> out(first.begin(), first.end());
  out.insert(second.begin(), second.end());
  EXPECT_EQ(out, std::set<Page*>(pages.begin(), pages.end()));
  for (Page* page : out) pool.put(*page);
}

TEST_F(PagePoolTest, PP16_PP19_what_the_system_has_is_taken_and_then_null) {
  make_arena(1);  // 64 pages
  Page* taken = arena_->alloc(4);
  CheckedPool pool({.arena = arena_.get()});
  const auto pages = pool.alloc(100);
  EXPECT_EQ(pages.size(), 48u);
  const PagePoolStats before = pool->stats();
  EXPECT_EQ(pool.alloc(), nullptr);
  EXPECT_EQ(pool->stats().alloc_slow, before.alloc_slow);
  EXPECT_EQ(pool->stats().alloc_empty, before.alloc_empty + 1);
  EXPECT_EQ(pool->in_flight(), 48);
  pool.put(*pages[0]);
  EXPECT_EQ(pool.alloc(), pages[0]) << "what came back is to be had";
  for (Page* page : pages) pool.put(*page);
  pool.destroy();
  page_put(*taken);
}

TEST_F(PagePoolTest, PP20_larger_blocks_come_one_by_one) {
  CheckedPool pool({.order = 3, .arena = arena_.get()});
  const auto blocks = pool.alloc(3);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(pool->stats().alloc_slow_high_order, 3u);
  EXPECT_EQ(pool->stats().alloc_slow, 0u);
  EXPECT_EQ(pool->in_flight(), 3);
  EXPECT_EQ(blocks[0]->order, 3);
  pool.put_direct(*blocks[0]);
  EXPECT_EQ(pool.alloc(), blocks[0]);
  for (Page* block : blocks) pool.put(*block);
  EXPECT_EQ(pool->stats().recycle_ring, 3u);
}

TEST_F(PagePoolTest, PP22_contents_are_not_cleared) {
  CheckedPool pool({.arena = arena_.get()});
  Page* page = pool.alloc();
  page_write(*page, 10, as_bytes("left over"));
  pool.put_direct(*page);
  ASSERT_EQ(pool.alloc(), page);
  std::array<std::byte, 9> seen;
  page_read(*page, 10, seen);
  EXPECT_TRUE(std::ranges::equal(seen, as_bytes("left over")));
  pool.put_direct(*page);
}

TEST_F(PagePoolTest, bulk_allocation_gives_as_many_as_there_are) {
  make_arena(1);
  auto pool = PagePool::create({.arena = arena_.get()});
  ASSERT_TRUE(pool);
  std::vector<Page*> pages(100, nullptr);
  EXPECT_EQ((*pool)->alloc_bulk(pages.data(), 0), 0u);
  EXPECT_EQ((*pool)->alloc_bulk(pages.data(), 100), 64u);
  PagePool::put_bulk(pages.data(), 64);
  EXPECT_EQ((*pool)->stats().recycle_ring, 64u);
}

// ---- return -----------------------------------------------------------------------------------

TEST_F(PagePoolTest, PP36_PP33_only_the_last_reference_returns_the_page) {
  CheckedPool pool({.arena = arena_.get()});
  Page* page = pool.alloc();
  PagePool::get(*page);
  PagePool::get(*page);
  EXPECT_EQ(page->pool_refcount.load(), 3);
  PagePool::put(*page);
  PagePool::put(*page);
  EXPECT_EQ(pool->stats().recycle_ring, 0u);
  pool.put(*page);
  EXPECT_EQ(pool->stats().recycle_ring, 1u);
  // A page that comes again starts at one.
  const auto all = pool.alloc(64);
  for (Page* each : all) {
    EXPECT_EQ(each->pool_refcount.load(), 1);
    pool.put(*each);
  }
}

TEST_F(PagePoolTest, PP37_PP38_a_page_that_others_hold_leaves_the_pool) {
  CheckedPool pool({.arena = arena_.get()});
  Page* page = pool.alloc();
  page_get(*page);
  pool.put_direct(*page);
  EXPECT_EQ(pool->stats().recycle_released_refcnt, 1u);
  EXPECT_EQ(PagePool::pool_of(*page), nullptr);
  EXPECT_EQ(page->pool_refcount.load(), 0);
  EXPECT_EQ(page->refcount.load(), 1u);
  EXPECT_EQ(pool->in_flight(), 63);
  pool.note_plain(1);
  pool.expect_conserved();
  pool.note_plain(0);
  page_put(*page);
}

TEST_F(PagePoolTest, PP40_a_full_cache_hands_over_to_the_ring) {
  CheckedPool pool({.arena = arena_.get()});
  const auto pages = pool.alloc(64 * 3);  // the cache is empty again after three batches
  for (Page* page : pages) pool.put_direct(*page);
  const PagePoolStats stats = pool->stats();
  EXPECT_EQ(stats.recycle_cached, 128u);
  EXPECT_EQ(stats.recycle_cache_full, 64u);
  EXPECT_EQ(stats.recycle_ring, 64u);
}

TEST_F(PagePoolTest, PP41_a_full_ring_hands_over_to_the_system) {
  CheckedPool pool({.ring_size = 10, .arena = arena_.get()});
  const auto pages = pool.alloc(64);
  for (Page* page : pages) pool.put(*page);
  EXPECT_EQ(pool->stats().recycle_ring, 10u);
  EXPECT_EQ(pool->stats().recycle_ring_full, 54u);
  EXPECT_EQ(pool->in_flight(), 10);
}

TEST_F(PagePoolTest, PP42_the_bound_thread_alone_returns_directly) {
  CheckedPool pool({.arena = arena_.get()});
  const auto pages = pool.alloc(6);
  pool.put(*pages[0]);
  EXPECT_EQ(pool->stats().recycle_ring, 1u) << "nobody is bound yet";
  pool->bind_consumer_thread();
  pool.put(*pages[1]);
  EXPECT_EQ(pool->stats().recycle_cached, 1u);
  on_another_thread([&] { pool.put(*pages[2]); });
  EXPECT_EQ(pool->stats().recycle_ring, 2u);
  // The consumer may move, with a hand-over that orders the two.
  on_another_thread([&] {
    pool->bind_consumer_thread();
    pool.put(*pages[3]);
  });
  EXPECT_EQ(pool->stats().recycle_cached, 2u);
  pool.put(*pages[4]);
  EXPECT_EQ(pool->stats().recycle_ring, 3u) << "it is another's now, even when that one is gone";
  // A new thread, perhaps on the stack of the one that went, is not mistaken for it.
  for (int i = 0; i < 10; ++i) {
    on_another_thread([&] {
      if (i == 0) pool.put(*pages[5]);
    });
  }
  EXPECT_EQ(pool->stats().recycle_ring, 4u);
}

TEST_F(PagePoolTest, PP47_a_tail_is_its_blocks_head) {
  CheckedPool pool({.order = 2, .arena = arena_.get()});
  Page* block = pool.alloc();
  PagePool::get(block[3]);
  EXPECT_EQ(block->pool_refcount.load(), 2);
  EXPECT_EQ(PagePool::pool_of(block[2]), &*pool);
  PagePool::put(block[1]);
  pool.put(block[3]);
  EXPECT_EQ(pool->stats().recycle_ring, 1u);
}

TEST_F(PagePoolTest, PP45_PP46_bulk_returns_any_number_of_any_pools) {
  CheckedPool a({.arena = arena_.get()});
  auto arena = PrivateArena::create(kArenaBytes, counters_);
  ASSERT_TRUE(arena);
  {
    CheckedPool b({.ring_size = 100, .arena = arena->get()});
    auto pages = a.alloc(130);
    const auto others = b.alloc(130);
    std::vector<Page*> mixed;
    for (size_t i = 0; i < 130; ++i) {
      mixed.push_back(pages[i]);
      mixed.push_back(others[i]);
    }
    PagePool::get(*pages[7]);  // not the last reference
    page_get(*others[9]);      // not recyclable
    a.put_bulk({}, 129);
    b.put_bulk({}, 130);
    PagePool::put_bulk(mixed.data(), mixed.size());
    EXPECT_EQ(a->stats().recycle_ring, 129u);
    EXPECT_EQ(b->stats().recycle_ring, 100u);
    EXPECT_EQ(b->stats().recycle_ring_full, 29u) << "counted a page, not a batch";
    EXPECT_EQ(b->stats().recycle_released_refcnt, 1u);
    a.put(*pages[7]);
    page_put(*others[9]);
  }
}

TEST_F(PagePoolTest, PP45_bulk_returns_directly_on_the_consumers_thread) {
  CheckedPool pool({.arena = arena_.get()});
  pool->bind_consumer_thread();
  const auto pages = pool.alloc(192);
  pool.put_bulk(pages, 192);
  EXPECT_EQ(pool->stats().recycle_cached, 128u);
  EXPECT_EQ(pool->stats().recycle_ring, 64u);
  on_another_thread([&] { PagePool::put_bulk(nullptr, 0); });
}

TEST_F(PagePoolTest, PP45_two_references_to_one_page_in_one_bulk) {
  CheckedPool pool({.arena = arena_.get()});
  Page* page = pool.alloc();
  PagePool::get(*page);
  pool.put_bulk({page, page}, 1);
  EXPECT_EQ(pool->stats().recycle_ring, 1u);
}

TEST_F(PagePoolTest, PP79_references_are_of_the_pages_own_kind) {
  CheckedPool pool({.arena = arena_.get()});
  Page* pooled = pool.alloc();
  Page* plain = arena_->alloc(0);
  page_hold(*pooled);
  page_hold(*plain);
  EXPECT_EQ(pooled->pool_refcount.load(), 2);
  EXPECT_EQ(pooled->refcount.load(), 1u);
  EXPECT_EQ(plain->refcount.load(), 2u);
  page_return(*pooled);
  page_return(*plain);
  page_return(*plain);
  pool.put_bulk({}, 1);
  page_return(*pooled);
  EXPECT_EQ(pool->stats().recycle_ring, 1u);
}

TEST_F(PagePoolTest, PP24_PP49_a_destroyed_pool_gives_nothing_and_takes_what_is_out) {
  auto made = PagePool::create({.arena = arena_.get()});
  ASSERT_TRUE(made);
  PagePool* pool = made->get();
  pool->bind_consumer_thread();
  Page* first = pool->alloc();
  Page* second = pool->alloc();
  made->reset();
  EXPECT_EQ(pool->alloc(), nullptr) << "a caller's error, answered cleanly while a page is out";
  EXPECT_EQ(arena_->pages_free(), kArenaPages - 2) << "the cache is home already";
  PagePool::put(*first);  // from the thread that was the consumer: not to a cache nobody empties
  EXPECT_EQ(arena_->pages_free(), kArenaPages - 1);
  on_another_thread([&] { PagePool::put(*second); });
}

using PagePoolDeathTest = PagePoolTest;

TEST_F(PagePoolDeathTest, a_page_returned_twice_is_caught_wherever_it_is) {
  EXPECT_DEATH(
      {
        auto pool = PagePool::create({.arena = arena_.get()});
        Page* page = (*pool)->alloc();
        (*pool)->put_direct(*page);
        (*pool)->put_direct(*page);
      },
      "assertion");
  EXPECT_DEATH(
      {
        auto pool = PagePool::create({.arena = arena_.get()});
        Page* page = (*pool)->alloc();
        PagePool::put(*page);
        PagePool::put(*page);
      },
      "assertion");
  EXPECT_DEATH(
      {
        auto pool = PagePool::create({.arena = arena_.get()});
        Page* page = (*pool)->alloc();
        PagePool::put(*page);
        PagePool::get(*page);
      },
      "assertion");
}

// ---- counting ---------------------------------------------------------------------------------

TEST_F(PagePoolTest, PP83_counters_carry_the_names_of_the_field) {
  {
    CheckedPool pool(
        {.ring_size = 4, .arena = arena_.get(), .name = "rx0", .counters = &counters_});
    const auto pages = pool.alloc(64);
    pool.put_direct(*pages[0]);
    page_get(*pages[1]);
    for (size_t i = 1; i < 64; ++i) pool.put(*pages[i]);
    page_put(*pages[1]);
    Page* again = pool.alloc();
    pool.put(*again);
  }
  EXPECT_EQ(counters_.value("rx0.rx_pp_alloc_fast"), 64u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_alloc_slow"), 1u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_alloc_empty"), 1u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_alloc_slow_ho"), 0u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_recycle_cached"), 1u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_recycle_ring"), 4u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_recycle_ring_full"), 59u);
  EXPECT_EQ(counters_.value("rx0.rx_pp_recycle_released_ref"), 1u);
}

TEST_F(PagePoolTest, PP84_pools_of_one_name_add_up) {
  for (int i = 0; i < 3; ++i) {
    CheckedPool a({.arena = arena_.get(), .counters = &counters_});
    const auto first = a.alloc(10);
    for (Page* page : first) a.put(*page);
  }
  EXPECT_EQ(counters_.value("page_pool.rx_pp_alloc_slow"), 3u);
  EXPECT_EQ(counters_.value("page_pool.rx_pp_alloc_fast"), 27u);
  EXPECT_EQ(counters_.value("page_pool.rx_pp_recycle_ring"), 30u);
}

TEST_F(PagePoolTest, tools_see_a_running_pool_within_64_allocations) {
  CheckedPool pool({.arena = arena_.get(), .counters = &counters_});
  pool->bind_consumer_thread();
  for (int i = 0; i < 1000; ++i) pool.put(*pool.alloc());
  EXPECT_GE(counters_.value("page_pool.rx_pp_alloc_fast"), 1000u - 64);
  EXPECT_GE(counters_.value("page_pool.rx_pp_recycle_cached"), 1000u - 65);
}

// The three reference workloads and the events they must cause.
TEST_F(PagePoolTest, PP87_PP89_fast_path_workload) {
  CheckedPool pool({.arena = arena_.get()});
  for (Page* page : pool.alloc(64)) pool.put(*page);
  Page* first = pool.alloc();  // moves the prefill to the cache
  pool.put_direct(*first);
  const PagePoolStats before = pool->stats();
  for (int i = 0; i < 1000; ++i) pool.put_direct(*pool.alloc());
  const PagePoolStats after = pool->stats();
  EXPECT_EQ(after.alloc_fast - before.alloc_fast, 1000u);
  EXPECT_EQ(after.recycle_cached - before.recycle_cached, 1000u);
  EXPECT_EQ(after.recycle_ring, before.recycle_ring);
  EXPECT_EQ(after.alloc_refill, before.alloc_refill);
  EXPECT_EQ(after.alloc_slow, before.alloc_slow);
}

TEST_F(PagePoolTest, PP87_PP89_ring_workload) {
  CheckedPool pool({.arena = arena_.get()});
  for (Page* page : pool.alloc(64)) pool.put(*page);
  const PagePoolStats before = pool->stats();
  for (int i = 0; i < 6400; ++i) pool.put(*pool.alloc());
  const PagePoolStats after = pool->stats();
  EXPECT_EQ(after.recycle_ring - before.recycle_ring, 6400u);
  EXPECT_EQ(after.alloc_refill - before.alloc_refill, 100u);
  EXPECT_EQ(after.alloc_fast - before.alloc_fast, 6300u);
  EXPECT_EQ(after.alloc_slow, before.alloc_slow);
}

TEST_F(PagePoolTest, PP87_PP89_slow_workload) {
  CheckedPool pool({.arena = arena_.get()});
  for (int i = 0; i < 6400; ++i) {
    Page* page = pool.alloc();
    page_get(*page);
    pool.put(*page);
    page_put(*page);
  }
  const PagePoolStats stats = pool->stats();
  EXPECT_EQ(stats.recycle_released_refcnt, 6400u);
  EXPECT_EQ(stats.alloc_slow, 100u);
  EXPECT_EQ(stats.alloc_fast, 6300u);
}

}  // namespace
}  // namespace nobounce
