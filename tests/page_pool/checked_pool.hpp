// A page pool for tests that counts what goes through it and, at its end, asserts that nothing was
// lost: PP-50 and PP-85 after every test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "page_pool/page_pool.hpp"

namespace nobounce::test {

class CheckedPool {
 public:
  explicit CheckedPool(const PagePoolOptions& options) : options_(options) {
    auto made = PagePool::create(options);
    EXPECT_TRUE(made) << made.error().to_string();
    if (made) handle_ = std::move(*made);
    arena_free_before_ = options.arena->pages_free();
    lent_before_ = lent();
  }
  ~CheckedPool() {
    if (handle_ != nullptr) expect_conserved();
  }

  PagePool* operator->() { return handle_.get(); }
  PagePool& operator*() { return *handle_; }

  [[nodiscard]] Page* alloc() {
    Page* page = handle_->alloc();
    if (page != nullptr) ++allocs_;
    return page;
  }
  [[nodiscard]] std::vector<Page*> alloc(size_t count) {
    std::vector<Page*> pages;
    while (pages.size() < count) {
      Page* page = alloc();
      if (page == nullptr) break;
      pages.push_back(page);
    }
    return pages;
  }
  // The last reference, from any thread.
  void put(Page& page) {
    last_puts_.fetch_add(1);
    PagePool::put(page);
  }
  void put_direct(Page& page) {
    last_puts_.fetch_add(1);
    handle_->put_direct(page);
  }
  void put_bulk(std::vector<Page*> pages, size_t last) {
    last_puts_.fetch_add(last);
    PagePool::put_bulk(pages.data(), pages.size());
  }

  // At quiescence, nobody else using the pool's sources.
  void expect_conserved() {
    const PagePoolStats stats = handle_->stats();
    EXPECT_EQ(
        stats.alloc_fast + stats.alloc_refill + stats.alloc_slow + stats.alloc_slow_high_order,
        allocs_)
        << "each page handed out is counted once";
    EXPECT_EQ(stats.recycle_cached + stats.recycle_ring + stats.recycle_ring_full +
                  stats.recycle_released_refcnt + stats.recycle_evicted,
              last_puts_.load())
        << "each last return is counted once";
    const uint64_t taken =
        (arena_free_before_ - options_.arena->pages_free()) + (lent() - lent_before_);
    EXPECT_EQ((static_cast<uint64_t>(handle_->in_flight()) + plain_) * pages_a_block(), taken)
        << "what came from the system and did not go back is in flight";
  }
  // `count` blocks left the pool but are still held by a system reference.
  void note_plain(uint64_t count) { plain_ = count; }

  void destroy() {
    expect_conserved();
    handle_.reset();
  }

 private:
  [[nodiscard]] uint64_t pages_a_block() const { return uint64_t{1} << options_.order; }
  [[nodiscard]] uint64_t lent() const {
    if (!options_.map || options_.device->pool() == nullptr) return 0;
    return options_.device->pool()->slots_lent(options_.use) * kSlotSize / kPageSize;
  }

  PagePoolOptions options_;
  PagePoolHandle handle_;
  uint64_t arena_free_before_ = 0;
  uint64_t lent_before_ = 0;
  uint64_t plain_ = 0;
  uint64_t allocs_ = 0;
  std::atomic<uint64_t> last_puts_{0};
};

}  // namespace nobounce::test
