// Stress twins of the parts without locks: returns from many threads, and the end of a pool while
// others return (the pattern of CVE-2025-38129). Meant for the thread sanitizer.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "base/random.hpp"
#include "base/spsc_ring.hpp"
#include "page_pool/checked_pool.hpp"
#include "support/pool_fixture.hpp"

namespace nobounce {
namespace {

using test::CheckedPool;

class PoolThreads : public testing::Test {
 protected:
  static constexpr unsigned kWorkers = 3;

  void SetUp() override {
    // A small share for receive: lent and bouncing pages are both in play.
    swiotlb_ = std::make_unique<test::PoolFixture>(test::PoolOptions{
        .bytes = 4 << 20, .areas = 2, .quotas = {.tx_percent = 45, .rx_percent = 5}});
    device_ = std::make_unique<DmaDevice>(*swiotlb_->pool, DmaLimits{}, swiotlb_->counters);
  }
  void TearDown() override {
    device_.reset();
    swiotlb_->expect_all_free();
    EXPECT_EQ(swiotlb_->counters.value("swiotlb.bad_unmap.double"), 0u);
    EXPECT_EQ(swiotlb_->counters.value("nocopy.bad_release"), 0u);
    EXPECT_EQ(swiotlb_->arena->pages_free(), swiotlb_->arena->bytes() >> kPageShift);
  }
  PagePoolOptions options() {
    return {.ring_size = 64,
            .device = device_.get(),
            .map = true,
            .sync_for_device = true,
            .max_len = 256,
            .arena = swiotlb_->arena.get(),
            .counters = &swiotlb_->counters};
  }

  std::unique_ptr<test::PoolFixture> swiotlb_;
  std::unique_ptr<DmaDevice> device_;
};

// A worker takes pages from its ring, adds and drops references as packets do, and returns them one
// by one or in bulk.
void return_pages(SpscRing<Page*>& mail, std::atomic<bool>& done, CheckedPool& pool,
                  uint64_t seed) {
  SeededRandom random(seed);
  std::vector<Page*> batch;
  for (;;) {
    const bool was_done = done.load(std::memory_order_acquire);
    Page* page = nullptr;
    if (!mail.try_pop(page)) {
      if (was_done) break;
      std::this_thread::yield();
      continue;
    }
    switch (random.below(4)) {
      case 0:
        PagePool::get(*page);
        PagePool::put(*page);
        pool.put(*page);
        break;
      case 1:
        page_get(*page);  // not recyclable
        pool.put(*page);
        page_put(*page);
        break;
      case 2:
        batch.push_back(page);
        if (batch.size() < 20) break;
        pool.put_bulk(batch, batch.size());
        batch.clear();
        break;
      default:
        pool.put(*page);
    }
  }
  pool.put_bulk(batch, batch.size());
}

TEST_F(PoolThreads, PP85_nothing_is_lost_between_a_consumer_and_many_returners) {
  CheckedPool pool(options());
  pool->bind_consumer_thread();
  std::vector<std::unique_ptr<SpscRing<Page*>>> mail;
  std::atomic<bool> done{false};
  std::vector<std::thread> workers;
  for (unsigned w = 0; w < kWorkers; ++w) {
    mail.push_back(std::make_unique<SpscRing<Page*>>(128));
    workers.emplace_back([&, ring = mail.back().get(), w] { return_pages(*ring, done, pool, w); });
  }
  SeededRandom random(99);
  for (int i = 0; i < 20000; ++i) {
    Page* page = pool.alloc();
    if (page == nullptr) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(page->pool_refcount.load(), 1);
    page_write(*page, 0, std::as_bytes(std::span(&page, 1)));
    if (random.below(8) == 0 || !mail[random.below(kWorkers)]->try_push(page)) pool.put(*page);
    if (i % 1000 == 0) {
      EXPECT_GE(pool->in_flight(), 0);
    }
  }
  done.store(true, std::memory_order_release);
  for (std::thread& worker : workers) worker.join();
  pool.expect_conserved();
}

// Each round, workers return pages while the pool and then its device are destroyed.
TEST_F(PoolThreads, PP41_PP57_a_pool_is_destroyed_while_others_return_its_pages) {
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    DmaDevice device(*swiotlb_->pool, DmaLimits{}, swiotlb_->counters);
    PagePoolOptions own = options();
    own.device = &device;
    auto made = PagePool::create(own);
    ASSERT_TRUE(made);
    PagePoolHandle pool = std::move(*made);
    std::array<Page*, 96> pages{};
    ASSERT_EQ(pool->alloc_bulk(pages.data(), pages.size()), pages.size());
    std::atomic<bool> go{false};
    std::vector<std::thread> workers;
    for (unsigned w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&, w] {
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        constexpr size_t kShare = 96 / kWorkers;
        if (w == 0) {
          PagePool::put_bulk(pages.data(), kShare);
        } else {
          for (size_t i = w * kShare; i < (w + 1) * kShare; ++i) PagePool::put(*pages[i]);
        }
      });
    }
    go.store(true, std::memory_order_release);
    if (round % 2 == 0) std::this_thread::yield();
    pool.reset();
    for (std::thread& worker : workers) worker.join();
    ASSERT_EQ(swiotlb_->pool->slots_used(), 0u);
  }
}

// The last page alone, returned at the very moment of destroy: one of the two frees the pool.
TEST_F(PoolThreads, PP54_PP59_the_last_page_and_destroy_meet) {
  for (int round = 0; round < 300; ++round) {
    auto made = PagePool::create({.arena = swiotlb_->arena.get()});
    ASSERT_TRUE(made);
    PagePoolHandle pool = std::move(*made);
    Page* page = pool->alloc();
    std::atomic<bool> go{false};
    std::thread worker([&] {
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      PagePool::put(*page);
    });
    go.store(true, std::memory_order_release);
    pool.reset();
    worker.join();
    ASSERT_EQ(swiotlb_->arena->pages_free(), swiotlb_->arena->bytes() >> kPageShift);
  }
}

TEST_F(PoolThreads, PP33_clones_of_one_page_are_dropped_by_many_threads) {
  CheckedPool pool(options());
  for (int round = 0; round < 200; ++round) {
    Page* page = pool.alloc();
    ASSERT_NE(page, nullptr);
    for (unsigned w = 1; w < kWorkers; ++w) PagePool::get(*page);
    std::vector<std::thread> workers;
    for (unsigned w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&] {
        PagePool::get(*page);
        PagePool::put(*page);
        PagePool::put(*page);
      });
    }
    for (std::thread& worker : workers) worker.join();
    pool.put_bulk({}, 1);
    ASSERT_EQ(page->pool_refcount.load(), 0) << "in the pool again";
  }
}

}  // namespace
}  // namespace nobounce
