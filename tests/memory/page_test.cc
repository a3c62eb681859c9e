// The page space, descriptors, reference counts, and the bytes of blocks.
#include "memory/page.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "base/random.hpp"
#include "memory/private_arena.hpp"
#include "memory/shared_region.hpp"

namespace nobounce {
namespace {

CpuAddr address_of(const std::byte* pointer) {
  return static_cast<CpuAddr>(reinterpret_cast<uint64_t>(pointer));
}

// An owner that counts what comes home.
class CountingOwner final : public BlockOwner {
 public:
  void release_block(Page& head) noexcept override {
    head.owner = nullptr;
    released.fetch_add(1);
  }
  std::atomic<int> released{0};
};

// Addresses taken without memory behind them: descriptors alone are under test.
class Range {
 public:
  explicit Range(size_t count, size_t alignment = kPageSize,
                 PageKind kind = PageKind::private_memory)
      : base(PageSpace::instance().take(count * kPageSize, alignment, kind)), pages(count) {}
  ~Range() { PageSpace::instance().give_back(base, pages * kPageSize); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  Page& page(size_t i) { return *page_of(address_of(base) + i * kPageSize); }
  std::byte* base;
  size_t pages;
};

void make_block(Page& head, unsigned order, BlockOwner& owner) {
  head.order = static_cast<uint8_t>(order);
  head.owner = &owner;
  for (uint32_t i = 1; i < uint32_t{1} << order; ++i) {
    (&head)[i].is_tail = true;
    (&head)[i].head_distance = i;
  }
  head.refcount = 1;
}

TEST(PageSpace, addresses_and_descriptors_are_a_shift_apart) {
  Range range(8);
  for (size_t i = 0; i < 8; ++i) {
    Page& page = range.page(i);
    EXPECT_EQ(&page, &range.page(0) + i);
    EXPECT_EQ(page_address(page), address_of(range.base) + i * kPageSize);
    EXPECT_EQ(page_of(page_address(page) + 4095), &page);
    EXPECT_EQ(page.kind, PageKind::private_memory);
  }
}

TEST(PageSpace, what_lies_outside_is_not_contained) {
  int on_the_stack = 0;
  PageSpace& space = PageSpace::instance();
  EXPECT_FALSE(space.contains(CpuAddr{0}));
  EXPECT_FALSE(space.contains(static_cast<CpuAddr>(~uint64_t{0})));
  EXPECT_FALSE(space.contains(static_cast<CpuAddr>(reinterpret_cast<uint64_t>(&on_the_stack))));
}

TEST(PageSpace, alignment_is_kept) {
  for (const size_t alignment : {kPageSize, size_t{1} << 18, size_t{2} << 20, size_t{1} << 30}) {
    Range odd(3);
    Range range(5, alignment);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(range.base) % alignment, 0u) << alignment;
  }
}

TEST(PageSpace, ranges_do_not_touch) {
  Range a(4);
  Range b(4);
  const uint64_t low =
      std::min(reinterpret_cast<uint64_t>(a.base), reinterpret_cast<uint64_t>(b.base));
  const uint64_t high =
      std::max(reinterpret_cast<uint64_t>(a.base), reinterpret_cast<uint64_t>(b.base));
  EXPECT_GE(high, low + 5 * kPageSize);
}

TEST(PageSpace, returned_addresses_are_used_again_with_neutral_descriptors) {
  constexpr size_t kPages = 300;  // descriptors of several pages, and parts of pages at both ends
  std::byte* first = nullptr;
  {
    Range range(kPages, kPageSize, PageKind::shared_memory);
    first = range.base;
    for (size_t i = 0; i < kPages; ++i) {
      range.page(i).owner_index = 7;
      range.page(i).pool_private = 9;
      range.page(i).dma_addr = 1;
    }
  }
  Page* page = page_of(address_of(first));
  for (size_t i = 0; i < kPages; ++i) {
    EXPECT_EQ(page[i].kind, PageKind::none);
    EXPECT_EQ(page[i].owner_index, 0u);
    EXPECT_EQ(page[i].pool_private, 0u);
    EXPECT_EQ(page[i].dma_addr.load(), 0u);
  }
  Range again(kPages);
  EXPECT_EQ(again.base, first);
  EXPECT_EQ(again.page(kPages - 1).kind, PageKind::private_memory);
}

TEST(PageSpace, holes_are_filled_and_joined) {
  auto a = std::make_unique<Range>(10);
  auto b = std::make_unique<Range>(10);
  auto c = std::make_unique<Range>(10);
  auto d = std::make_unique<Range>(10);
  std::byte* hole = b->base;
  ASSERT_LT(a->base, b->base);
  ASSERT_LT(b->base, c->base);
  ASSERT_LT(c->base, d->base);
  b.reset();
  c.reset();
  Range wide(20);  // fits only when the two holes have become one
  EXPECT_EQ(wide.base, hole);
}

TEST(PageSpace, more_than_there_is_gives_null) {
  EXPECT_EQ(PageSpace::instance().take(PageSpace::kBytes, kPageSize, PageKind::private_memory),
            nullptr);
  EXPECT_EQ(PageSpace::instance().take(PageSpace::kBytes * 4, kPageSize, PageKind::private_memory),
            nullptr);
}

TEST(PageSpace, many_threads_take_and_give_back) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      SeededRandom random(t);
      for (int i = 0; i < 200; ++i) {
        Range range(1 + random.below(100));
        range.page(0).owner_index = t;
        EXPECT_EQ(range.page(0).owner_index, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using PageSpaceDeathTest = testing::Test;

TEST(PageSpaceDeathTest, TM62_running_off_the_end_of_a_range_is_a_fault) {
  CounterRegistry counters;
  auto arena = PrivateArena::create(1 << 18, counters);
  ASSERT_TRUE(arena);
  Page* block = (*arena)->alloc(kBlockOrderMax);
  ASSERT_NE(block, nullptr);
  volatile std::byte* end = private_bytes(*block, 0, 0).data() + (1 << 18);
  EXPECT_DEATH(*end = std::byte{1}, "");
  page_put(*block);
}

TEST(PageSpaceDeathTest, a_range_goes_back_only_with_all_its_blocks) {
  EXPECT_DEATH(
      {
        Range range(2);
        range.page(1).refcount = 1;
      },
      "assertion");
}

// ---- references -------------------------------------------------------------------------------

TEST(Page, NC24_the_last_put_returns_the_block_through_any_of_its_pages) {
  CountingOwner owner;
  Range range(4);
  make_block(range.page(0), 2, owner);
  page_get(range.page(3));
  page_get(range.page(1), 2);
  EXPECT_EQ(range.page(0).refcount.load(), 4u);
  page_put(range.page(2));
  page_put(range.page(0), 2);
  EXPECT_EQ(owner.released, 0);
  page_put(range.page(3));
  EXPECT_EQ(owner.released, 1);
}

TEST(Page, NC25_many_threads_return_it_exactly_once) {
  CountingOwner owner;
  Range range(64);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < 64; ++i) {
      make_block(range.page(i), 0, owner);
      page_get(range.page(i), 3);
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < 64; ++i) {
          page_get(range.page(i));
          page_put(range.page(i));
          page_put(range.page(i));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(owner.released, 64 * (round + 1));
  }
}

using PageDeathTest = testing::Test;

TEST(PageDeathTest, NC25_a_second_return_and_a_reference_to_a_free_block_are_caught) {
  CountingOwner owner;
  Range range(1);
  make_block(range.page(0), 0, owner);
  page_put(range.page(0));
  EXPECT_DEATH(page_put(range.page(0)), "assertion");
  EXPECT_DEATH(page_get(range.page(0)), "assertion");
}

TEST(PageDeathTest, NC26_a_block_that_still_belongs_to_a_pool_does_not_go_home) {
  CountingOwner owner;
  Range range(1);
  make_block(range.page(0), 0, owner);
  PagePool* somebody = reinterpret_cast<PagePool*>(&owner);
  range.page(0).pool = somebody;
  EXPECT_DEATH(page_put(range.page(0)), "assertion");
  range.page(0).pool = nullptr;
  page_put(range.page(0));
}

// ---- bytes ------------------------------------------------------------------------------------

class BlockBytes : public testing::TestWithParam<PageKind> {
 protected:
  void SetUp() override {
    auto region = SharedRegion::create({.bytes = 2 << 20});
    ASSERT_TRUE(region) << region.error().to_string();
    region_ = std::move(*region);
    auto arena = PrivateArena::create(1 << 20, counters_);
    ASSERT_TRUE(arena) << arena.error().to_string();
    arena_ = std::move(*arena);
    if (GetParam() == PageKind::shared_memory) {
      block_ = page_of(region_->cpu_address());
      make_block(*block_, 2, owner_);
    } else {
      block_ = arena_->alloc(2);
    }
  }
  void TearDown() override { page_put(*block_); }

  CounterRegistry counters_;
  CountingOwner owner_;
  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<PrivateArena> arena_;
  Page* block_ = nullptr;
};

TEST_P(BlockBytes, are_written_read_and_summed_alike) {
  std::vector<std::byte> data(9000);
  SeededRandom random(3);
  random.fill(data);
  EXPECT_EQ(is_shared(*block_), GetParam() == PageKind::shared_memory);
  EXPECT_EQ(block_bytes(*block_), 4 * kPageSize);

  page_write(*block_, 100, data);
  std::vector<std::byte> out(9000);
  page_read(*block_, 100, out);
  EXPECT_EQ(out, data);

  const uint16_t sum = checksum_fold(checksum_add(5, data));
  EXPECT_EQ(checksum_fold(page_sum(*block_, 100, 9000, 5)), sum);
  EXPECT_EQ(checksum_fold(page_write_summed(*block_, 7000, data, 5)), sum);
  page_read(*block_, 7000, out);
  EXPECT_EQ(out, data);

  // From a tail, offsets count from that page.
  page_read(block_[1], 7000 - kPageSize, out);
  EXPECT_EQ(out, data);
  // Empty at the very end.
  page_write(*block_, 4 * kPageSize, {});
  page_read(block_[3], kPageSize, {});
}

TEST_P(BlockBytes, stay_inside_the_block) {
  std::vector<std::byte> data(kPageSize + 1);
  EXPECT_DEATH(page_write(block_[3], 0, data), "assertion");
  EXPECT_DEATH(page_read(*block_, 3 * kPageSize, data), "assertion");
  EXPECT_DEATH(page_read(*block_, ~size_t{0}, data), "assertion");
  EXPECT_DEATH((void)page_sum(*block_, 0, 4 * kPageSize + 1, 0), "assertion");
}

TEST_P(BlockBytes, are_reached_only_as_what_they_are) {
  if (GetParam() == PageKind::shared_memory) {
    EXPECT_DEATH((void)private_bytes(*block_, 0, 1), "assertion");
    EXPECT_EQ(shared_bytes(block_[1], 5, 10).address(), region_->bytes().address() + kPageSize + 5);
  } else {
    EXPECT_DEATH((void)shared_bytes(*block_, 0, 1), "assertion");
    EXPECT_EQ(private_bytes(*block_, 5, 10).size(), 10u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockBytes,
                         testing::Values(PageKind::private_memory, PageKind::shared_memory),
                         [](const auto& kind) {
                           return kind.param == PageKind::shared_memory ? "shared" : "private_";
                         });

}  // namespace
}  // namespace nobounce
