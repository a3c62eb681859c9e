// Page descriptors: one private 64-byte record for every 4 KiB page a packet may lie in.
//
// All such pages, shared or private, lie in one reserved range of addresses (the page space), so
// that page_of(address) and page_address(page) are a shift and an addition, and "is it shared?" is
// a byte of the descriptor. Descriptors are private memory, populated on first touch.
//
//   page space   | region A (shared) | arena (private) | region B (shared) |   ... reserved ... |
//   descriptors  | Page | Page | ...                                                            |
//
// A block of order n is 2^n contiguous pages: the first is the head and carries the state of the
// whole, the others point to it. `refcount` is the block's; whoever drops the last reference
// returns the block to the allocator named in the head, by any path, from any thread (NC-24).
//
// Threads: reference counts are atomic, any thread. Other fields belong to the block's owner.
// Cost: page_get / page_put one atomic operation; the last put one virtual call more.
// Spec: NC-18, NC-22..NC-28; design "memory/".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/bytes.hpp"
#include "memory/shared.hpp"

namespace nobounce {

inline constexpr size_t kPageShift = 12;
inline constexpr size_t kPageSize = size_t{1} << kPageShift;
inline constexpr unsigned kBlockOrderMax = 6;  // 256 KiB: one slot set

class PagePool;
struct Page;

// An address in the page space, private or shared: a name for bytes, not a way to them.
enum class CpuAddr : uint64_t {};
[[nodiscard]] constexpr CpuAddr operator+(CpuAddr address, uint64_t offset) noexcept {
  return static_cast<CpuAddr>(static_cast<uint64_t>(address) + offset);
}
[[nodiscard]] constexpr uint64_t operator-(CpuAddr a, CpuAddr b) noexcept {
  return static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
}

enum class PageKind : uint8_t { none, private_memory, shared_memory };

// Who takes a block back when its last reference is dropped.
class BlockOwner {
 public:
  // Any thread; must not block. The descriptor is neutral again when the block is free (NC-26).
  virtual void release_block(Page& head) noexcept = 0;

 protected:
  ~BlockOwner() = default;
};

struct Page {
  static constexpr uint32_t kNotTracked = 0;

  std::atomic<uint32_t> refcount{0};  // of the block; meaningful in the head
  PageKind kind = PageKind::none;
  uint8_t order = 0;  // of the block; meaningful in the head
  bool is_tail = false;
  uint8_t owner_tag = 0;        // the allocator's own (which area, which direction)
  uint32_t head_distance = 0;   // pages back to the head; 0 in the head
  uint32_t owner_index = 0;     // the allocator's own (slot number)
  BlockOwner* owner = nullptr;  // null while free

  // page_pool's part: neutral (null, 0) unless the block belongs to a pool.
  std::atomic<PagePool*> pool{nullptr};
  std::atomic<uint64_t> dma_addr{0};
  std::atomic<int64_t> pool_refcount{0};
  std::atomic<uint32_t> dma_index{kNotTracked};
  uint32_t pool_private = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(Page) == 64);

// ---- the page space ---------------------------------------------------------------------------

class PageSpace {
 public:
  static constexpr size_t kBytes = size_t{64} << 30;  // addresses, not memory

  // Process-wide, reserved on first use. Descriptors cost memory only where pages exist.
  static PageSpace& instance() noexcept;

  // Takes `bytes` (a multiple of `alignment`, itself a power of two >= kPageSize) of addresses and
  // marks their descriptors. Null when the page space is used up. give_back() returns them for
  // reuse; the memory behind them is unmapped. Any thread (lock; set-up only).
  [[nodiscard]] std::byte* take(size_t bytes, size_t alignment, PageKind kind) noexcept;
  void give_back(std::byte* base, size_t bytes) noexcept;

  [[nodiscard]] bool contains(CpuAddr address) const noexcept {
    return static_cast<uint64_t>(address) - base_ < kBytes;
  }
  [[nodiscard]] Page* page_of(CpuAddr address) const noexcept {
    NB_ASSERT(contains(address));
    return pages_ + ((static_cast<uint64_t>(address) - base_) >> kPageShift);
  }
  [[nodiscard]] CpuAddr address_of(const Page& page) const noexcept {
    return static_cast<CpuAddr>(base_ + (static_cast<uint64_t>(&page - pages_) << kPageShift));
  }

 private:
  PageSpace() noexcept;
  uint64_t base_ = 0;
  Page* pages_ = nullptr;
};

[[nodiscard]] inline Page* page_of(CpuAddr address) noexcept {
  return PageSpace::instance().page_of(address);
}
[[nodiscard]] inline CpuAddr page_address(const Page& page) noexcept {
  return PageSpace::instance().address_of(page);
}
[[nodiscard]] inline Page& page_head(Page& page) noexcept { return *(&page - page.head_distance); }
[[nodiscard]] inline bool is_shared(const Page& page) noexcept {
  return page.kind == PageKind::shared_memory;
}
[[nodiscard]] inline size_t block_bytes(const Page& head) noexcept {
  return kPageSize << head.order;
}

// ---- references (any thread) ------------------------------------------------------------------

inline void page_get(Page& page, uint32_t count = 1) noexcept {
  const uint32_t before = page_head(page).refcount.fetch_add(count, std::memory_order_relaxed);
  NB_ASSERT(before > 0);
}
void page_put(Page& page, uint32_t count = 1) noexcept;

// ---- bytes of a block -------------------------------------------------------------------------
// One set of calls for private and shared pages, so that what lies above does not branch. `offset`
// counts from the page given and may run to the end of its block.

[[nodiscard]] SharedBytes shared_bytes(Page& page, size_t offset, size_t size) noexcept;
// Private pages only: asserts.
[[nodiscard]] MutableBytes private_bytes(Page& page, size_t offset, size_t size) noexcept;

void page_write(Page& page, size_t offset, Bytes from) noexcept;
void page_read(Page& page, size_t offset, MutableBytes to) noexcept;
[[nodiscard]] uint64_t page_write_summed(Page& page, size_t offset, Bytes from,
                                         uint64_t sum) noexcept;
[[nodiscard]] uint64_t page_sum(Page& page, size_t offset, size_t size, uint64_t sum) noexcept;

}  // namespace nobounce
