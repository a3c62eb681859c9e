// A pool in a shared region, private originals from an arena, and the checks that close each test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/copies.hpp"
#include "base/counters.hpp"
#include "base/random.hpp"
#include "memory/private_arena.hpp"
#include "memory/shared_region.hpp"
#include "swiotlb/swiotlb.hpp"

namespace nobounce::test {

inline constexpr DmaAddr kIovaBase{uint64_t{1} << 32};

// A private block of the arena, seen as bytes.
class Original {
 public:
  Original(PrivateArena& arena, unsigned order) : page_(arena.alloc(order)) {
    EXPECT_NE(page_, nullptr);
  }
  ~Original() { page_put(*page_); }
  Original(const Original&) = delete;
  Original& operator=(const Original&) = delete;

  [[nodiscard]] CpuAddr at(size_t offset) const { return page_address(*page_) + offset; }
  [[nodiscard]] MutableBytes bytes() const { return private_bytes(*page_, 0, block_bytes(*page_)); }
  void fill(std::byte value) const { std::ranges::fill(bytes(), value); }

 private:
  Page* page_;
};

struct PoolOptions {
  uint64_t bytes = 4 << 20;
  unsigned areas = 1;
  NocopyQuotas quotas{};
  bool zero_padding = true;
  size_t carve_first = 0;  // bytes of the region before the pool
};

// The device's side of the pool is `device()`: it reads and writes any byte of the region.
class PoolFixture {
 public:
  explicit PoolFixture(const PoolOptions& options = {}) {
    auto region = SharedRegion::create({.name = "test-pool",
                                        .bytes = options.bytes + options.carve_first,
                                        .iova_base = static_cast<uint64_t>(kIovaBase)});
    EXPECT_TRUE(region) << region.error().to_string();
    region_ = std::move(*region);
    if (options.carve_first != 0) (void)region_->carve(options.carve_first, kPageSize);
    memory = region_->bytes().sub(options.carve_first, options.bytes);
    auto made = Swiotlb::create(
        memory, kIovaBase + options.carve_first,
        {.areas = options.areas, .quotas = options.quotas, .zero_padding = options.zero_padding},
        counters, copies);
    EXPECT_TRUE(made) << made.error().to_string();
    pool = std::move(*made);
    auto private_pages = PrivateArena::create(8 << 20, counters);
    EXPECT_TRUE(private_pages) << private_pages.error().to_string();
    arena = std::move(*private_pages);
  }

  ~PoolFixture() { expect_all_free(); }

  void expect_all_free() const {
    EXPECT_EQ(pool->slots_used(), 0U);
    EXPECT_EQ(pool->slots_lent(BlockUse::transmit), 0U);
    EXPECT_EQ(pool->slots_lent(BlockUse::receive), 0U);
    EXPECT_EQ(counters.value("swiotlb.used_slots"), 0U);
    EXPECT_EQ(counters.value("nocopy.tx.blocks"), counters.value("nocopy.tx.blocks_freed"));
    EXPECT_EQ(counters.value("nocopy.rx.blocks"), counters.value("nocopy.rx.blocks_freed"));
    EXPECT_TRUE(pool->is_pristine());
  }

  // The region as the device sees it, by IOVA.
  [[nodiscard]] SharedBytes device(DmaAddr address, size_t size) const {
    return region_->bytes().sub(static_cast<uint64_t>(address) - static_cast<uint64_t>(kIovaBase),
                                size);
  }
  [[nodiscard]] std::vector<std::byte> device_read(DmaAddr address, size_t size) const {
    std::vector<std::byte> copy(size);
    device(address, size).copy_out(0, copy);
    return copy;
  }
  void device_fill(DmaAddr address, size_t size, std::byte value) const {
    device(address, size).copy_in(0, std::vector<std::byte>(size, value));
  }

  CounterRegistry counters;
  CopyLedger copies{counters};
  SharedBytes memory;
  std::unique_ptr<PrivateArena> arena;

 private:
  std::unique_ptr<SharedRegion> region_;

 public:
  std::unique_ptr<Swiotlb> pool;
};

[[nodiscard]] inline bool all_equal(Bytes bytes, std::byte value) {
  return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == value; });
}

}  // namespace nobounce::test
