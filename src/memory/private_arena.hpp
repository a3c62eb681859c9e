// Private pages: blocks of 2^n pages from one private mapping of fixed size.
//
// A buddy allocator under one short lock. It is where socket buffers and receive buffers fall back
// to when no nocopy block is to be had, and where a stack without a bouncing device lives.
// Never grows; exhaustion returns null and is counted.
//
// Threads: any. Cost: O(orders); allocates nothing after create().
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/counters.hpp"
#include "base/error.hpp"
#include "base/spinlock.hpp"
#include "memory/page.hpp"

namespace nobounce {

class PrivateArena final : public BlockOwner {
 public:
  static Result<std::unique_ptr<PrivateArena>> create(uint64_t bytes, CounterRegistry& counters);
  ~PrivateArena();  // asserts that every block came home

  // A block of 2^order pages, reference count 1; null when none is free. Content is what the last
  // user of this arena left: private, same process.
  [[nodiscard]] Page* alloc(unsigned order) noexcept;
  // `count` single pages at most; returns how many.
  [[nodiscard]] size_t alloc_bulk(Page** pages, size_t count) noexcept;
  void release_block(Page& head) noexcept override;

  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] uint64_t pages_free() const noexcept;

 private:
  PrivateArena(std::byte* base, uint64_t bytes, CounterRegistry& counters);
  Page* hand_out(uint32_t number, unsigned order) noexcept;

  std::byte* base_;
  uint64_t bytes_;
  mutable Spinlock lock_;
  struct FreeList;
  std::unique_ptr<FreeList> free_;
  SharedCounter exhausted_;
};

}  // namespace nobounce
