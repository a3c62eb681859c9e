// The buddy allocator: blocks never overlap, come back whole, and what is refused is counted.
#include "memory/private_arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "memory/shared_region.hpp"

namespace nobounce {
namespace {

class Arena : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;
  static constexpr uint64_t kPages = kBytes >> kPageShift;

  void SetUp() override {
    auto arena = PrivateArena::create(kBytes, counters_);
    ASSERT_TRUE(arena) << arena.error().to_string();
    arena_ = std::move(*arena);
  }
  // Every test ends with the arena full, and whole: the largest blocks can be had again.
  void TearDown() override {
    if (arena_ == nullptr) return;
    EXPECT_EQ(arena_->pages_free(), arena_->bytes() >> kPageShift);
    std::vector<Page*> all;
    while (Page* block = arena_->alloc(kBlockOrderMax)) all.push_back(block);
    EXPECT_EQ(all.size(), (arena_->bytes() >> kPageShift) >> kBlockOrderMax);
    for (Page* block : all) page_put(*block);
  }

  CounterRegistry counters_;
  std::unique_ptr<PrivateArena> arena_;
};

TEST_F(Arena, NC18_a_block_is_head_and_tails_naturally_aligned) {
  for (unsigned order = 0; order <= kBlockOrderMax; ++order) {
    Page* head = arena_->alloc(order);
    ASSERT_NE(head, nullptr);
    EXPECT_EQ(head->refcount.load(), 1u);
    EXPECT_EQ(head->order, order);
    EXPECT_EQ(head->owner, arena_.get());
    EXPECT_FALSE(head->is_tail);
    EXPECT_FALSE(is_shared(*head));
    EXPECT_EQ(static_cast<uint64_t>(page_address(*head)) % (kPageSize << order), 0u);
    for (uint32_t i = 1; i < uint32_t{1} << order; ++i) {
      EXPECT_TRUE(head[i].is_tail);
      EXPECT_EQ(&page_head(head[i]), head);
    }
    EXPECT_EQ(arena_->pages_free(), kPages - (uint64_t{1} << order));
    page_put(head[(1 << order) - 1]);  // by its last page
  }
}

TEST_F(Arena, NC26_a_block_that_came_home_is_neutral) {
  Page* head = arena_->alloc(3);
  page_put(*head);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(head[i].refcount.load(), 0u);
    EXPECT_EQ(head[i].owner, nullptr);
    EXPECT_EQ(head[i].order, 0);
    EXPECT_FALSE(head[i].is_tail);
    EXPECT_EQ(head[i].head_distance, 0u);
    EXPECT_EQ(head[i].kind, PageKind::private_memory);
  }
}

TEST_F(Arena, exhaustion_is_null_and_counted) {
  std::vector<Page*> pages;
  while (Page* page = arena_->alloc(0)) pages.push_back(page);
  EXPECT_EQ(pages.size(), kPages);
  EXPECT_EQ(arena_->pages_free(), 0u);
  EXPECT_EQ(counters_.value("arena.exhausted"), 1u);
  // Two pages free, but not neighbours: no block of two.
  page_put(*pages[0]);
  page_put(*pages[2]);
  EXPECT_EQ(arena_->alloc(1), nullptr);
  EXPECT_EQ(counters_.value("arena.exhausted"), 2u);
  pages.erase(pages.begin() + 2);
  pages.erase(pages.begin());
  for (Page* page : pages) page_put(*page);
}

TEST_F(Arena, bulk_gives_what_there_is) {
  std::vector<Page*> pages(kPages + 10, nullptr);
  EXPECT_EQ(arena_->alloc_bulk(pages.data(), 0), 0u);
  EXPECT_EQ(arena_->alloc_bulk(pages.data(), 3), 3u);
  EXPECT_EQ(arena_->alloc_bulk(pages.data() + 3, pages.size() - 3), kPages - 3);
  EXPECT_EQ(counters_.value("arena.exhausted"), 1u);
  pages.resize(kPages);
  std::ranges::sort(pages);
  EXPECT_EQ(std::ranges::adjacent_find(pages), pages.end());
  for (Page* page : pages) {
    EXPECT_EQ(page->refcount.load(), 1u);
    EXPECT_EQ(page->order, 0);
    page_put(*page);
  }
}

// Random orders, against a model that knows which pages are out.
TEST_F(Arena, blocks_never_overlap) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    std::map<Page*, unsigned> out;
    uint64_t pages_out = 0;
    for (int step = 0; step < 4000; ++step) {
      if (random.below(100) < 55) {
        const unsigned order = random.below(kBlockOrderMax + 1);
        Page* head = arena_->alloc(order);
        if (head == nullptr) continue;
        const auto next = out.lower_bound(head);
        if (next != out.end()) {
          ASSERT_GE(next->first - head, 1 << order);
        }
        if (next != out.begin()) {
          const auto before = std::prev(next);
          ASSERT_GE(head - before->first, 1 << before->second);
        }
        out.emplace(head, order);
        pages_out += uint64_t{1} << order;
      } else if (!out.empty()) {
        auto victim = out.begin();
        std::advance(victim, random.below(static_cast<uint32_t>(out.size())));
        page_put(*victim->first);
        pages_out -= uint64_t{1} << victim->second;
        out.erase(victim);
      }
      ASSERT_EQ(arena_->pages_free(), kPages - pages_out);
    }
    for (const auto& [head, order] : out) page_put(*head);
  }
}

TEST_F(Arena, any_thread_may_allocate_and_return) {
  std::atomic<Page*> mailbox[64] = {};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      SeededRandom random(t + 1);
      for (int i = 0; i < 5000; ++i) {
        Page* fresh = random.below(2) == 0 ? arena_->alloc(random.below(4)) : nullptr;
        if (fresh != nullptr) page_write(*fresh, 0, std::as_bytes(std::span(&fresh, 1)));
        Page* old = mailbox[random.below(64)].exchange(fresh);
        if (old == nullptr) continue;
        Page* written = nullptr;
        page_read(*old, 0, std::as_writable_bytes(std::span(&written, 1)));
        EXPECT_EQ(written, old) << "someone else had this block too";
        page_put(*old);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : mailbox) {
    if (Page* page = slot.load()) page_put(*page);
  }
}

TEST_F(Arena, its_size_is_whole_blocks) {
  auto small = PrivateArena::create(1, counters_);
  ASSERT_TRUE(small);
  EXPECT_EQ((*small)->bytes(), kPageSize << kBlockOrderMax);
  EXPECT_EQ((*small)->pages_free(), uint64_t{1} << kBlockOrderMax);
}

TEST_F(Arena, sizes_out_of_range_are_refused) {
  for (const uint64_t bytes : {uint64_t{0}, PageSpace::kBytes, ~uint64_t{0}}) {
    auto refused = PrivateArena::create(bytes, counters_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, std::errc::invalid_argument);
    EXPECT_FALSE(refused.error().hint.empty());
  }
}

TEST_F(Arena, arenas_and_regions_live_side_by_side) {
  auto region = SharedRegion::create({.bytes = 2 << 20});
  ASSERT_TRUE(region);
  auto second = PrivateArena::create(kBytes, counters_);
  ASSERT_TRUE(second);
  Page* a = arena_->alloc(0);
  Page* b = (*second)->alloc(0);
  EXPECT_FALSE(is_shared(*a));
  EXPECT_FALSE(is_shared(*b));
  EXPECT_TRUE(is_shared(*page_of((*region)->cpu_address())));
  page_put(*b);
  page_put(*a);
  EXPECT_EQ((*second)->pages_free(), kPages);
}

using ArenaDeathTest = Arena;

TEST_F(ArenaDeathTest, NC25_a_second_return_is_caught) {
  Page* page = arena_->alloc(0);
  page_put(*page);
  EXPECT_DEATH(page_put(*page), "assertion");
  EXPECT_DEATH(arena_->release_block(*page), "assertion");
}

TEST_F(ArenaDeathTest, it_does_not_go_while_a_block_is_out) {
  EXPECT_DEATH(
      {
        (void)arena_->alloc(0);
        arena_.reset();
      },
      "assertion");
}

TEST_F(ArenaDeathTest, an_order_above_the_largest_is_our_bug) {
  EXPECT_DEATH((void)arena_->alloc(kBlockOrderMax + 1), "assertion");
}

}  // namespace
}  // namespace nobounce
