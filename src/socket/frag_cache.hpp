// Page-frag refill: where the bytes of a copying send land.
//
// A cache holds one block and hands out consecutive pieces of it. When the block is full it is let
// go (sent pieces keep it alive by their own references) or, when nobody else holds it, used again
// from the start. A refill prefers a nocopy block of order 3, then of order 0, then private pages:
// the same order for every socket, decided at each refill (NC-15, NC-48, ZN-73).
//
// Threads: one at a time (the socket's send lock). Cost: an addition a piece; a refill is one
// allocation. Spec: NC-7, NC-15, NC-48..NC-53, ZN-73, ZN-74.
#pragma once

#include <cstdint>

#include "base/counters.hpp"
#include "dma/dma_device.hpp"
#include "memory/page.hpp"
#include "memory/private_arena.hpp"

namespace nobounce {

// Where blocks come from for the sockets of one stack.
struct FragSource {
  DmaDevice* device = nullptr;  // of the leaf that sends; null: private pages
  PrivateArena* arena = nullptr;
  SharedCounter refill_nocopy;
  SharedCounter refill_private;
  SharedCounter refill_reused;
  SharedCounter refill_failed;
};

class FragCache {
 public:
  static constexpr unsigned kOrder = 3;  // 32 KiB

  ~FragCache() { NB_ASSERT(block_ == nullptr); }

  struct Room {
    Page* page = nullptr;  // null: no memory anywhere
    uint32_t offset = 0;
    uint32_t size = 0;
  };
  // At least one byte of room, refilling when needed. The caller fills from the front and commits.
  [[nodiscard]] Room reserve(FragSource& source) noexcept;
  // `bytes` of the reserved room are used; the caller takes one reference for its piece.
  void commit(uint32_t bytes) noexcept;
  void release() noexcept;

 private:
  [[nodiscard]] bool refill(FragSource& source) noexcept;

  Page* block_ = nullptr;
  uint32_t offset_ = 0;
  uint32_t size_ = 0;
};

}  // namespace nobounce
