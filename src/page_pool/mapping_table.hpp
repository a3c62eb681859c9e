// Which pages of a pool are mapped: index -> page, so that every mapping can be undone when the pool
// is destroyed while pages are out.
//
// A page on its way out and the destroyer may want to undo the same mapping. Whoever finds the entry
// still naming the page clears it and undoes the mapping, both under the table's lock; the other
// finds it gone and does nothing (PP-65). So when remove_all() is back, nobody is inside the device
// on this pool's account and nobody will be.
//
//   entries | unused | page | next free | page | ... | never used       index 0 means "not tracked"
//
// Threads: any, all calls under one lock. Cost: O(1); memory is reserved at construction and touched
// only as far as it is used. The lock is taken when a page enters or leaves the pool, never on the
// recycling paths.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "base/spinlock.hpp"
#include "memory/page.hpp"

namespace nobounce {

class MappingTable {
 public:
  // At most `capacity` pages at a time. is_ready() is false when there is no memory for it.
  explicit MappingTable(uint32_t capacity) noexcept
      : entries_(new(std::nothrow) Entry[size_t{capacity} + 1]), capacity_(capacity) {}
  ~MappingTable() { NB_ASSERT(size_ == 0); }
  MappingTable(const MappingTable&) = delete;
  MappingTable& operator=(const MappingTable&) = delete;

  [[nodiscard]] bool is_ready() const noexcept { return entries_ != nullptr; }
  [[nodiscard]] uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] uint32_t size() const noexcept {
    const std::lock_guard guard(lock_);
    return size_;
  }

  // Names the page by an index, stored in Page::dma_index. False when the table is full.
  [[nodiscard]] bool insert(Page& page) noexcept;

  // Runs undo(page) and forgets the page if it is still here. False when the other was first.
  template <class Undo>
  bool remove(Page& page, Undo&& undo) noexcept {
    const std::lock_guard guard(lock_);
    if (!clear_locked(page)) return false;
    undo(page);
    return true;
  }
  // Same for every page. Lets others at the lock in between: what they remove is theirs to undo.
  template <class Undo>
  void remove_all(Undo&& undo) noexcept {
    constexpr uint32_t kBatch = 64;
    for (uint32_t next = 1; next != 0;) {
      const std::lock_guard guard(lock_);
      for (uint32_t i = 0; i < kBatch && next != 0; ++i) {
        next = next < unused_ ? next : 0;
        if (next == 0) break;
        Page* page = entries_[next++].page;
        if (page == nullptr) continue;
        clear_locked(*page);
        undo(*page);
      }
    }
  }

 private:
  struct Entry {
    Page* page;          // null while free
    uint32_t next_free;  // meaningful while free; 0: last
  };

  bool clear_locked(Page& page) noexcept;

  mutable Spinlock lock_;
  const std::unique_ptr<Entry[]> entries_;
  const uint32_t capacity_;
  uint32_t size_ = 0;
  uint32_t unused_ = 1;  // entries from here on were never used, and their memory never touched
  uint32_t free_ = 0;
};

}  // namespace nobounce
