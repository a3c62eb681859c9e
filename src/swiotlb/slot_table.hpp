// What each slot is used for: private memory, one tag a slot and one record a run.
//
// A tag is 16 bits: the state, and the distance back to the first slot of the run, so that any
// address inside a run leads to its record in two loads. The record of a run stands at its first
// slot.
//
//   state     meaning                         may follow
//   free      in the allocator's hands        bounce, lent, coherent
//   bounce    copy of an original             closing
//   lent      nocopy block                    closing
//   coherent  memory for rings and the like   closing
//   closing   one caller is giving it back    free
//
// `closing` is entered by one compare-and-swap on the first slot's tag: of two callers that give
// back the same run, one loses and is told so (SW-50, NC-25).
//
// Threads: tags by any thread. A record belongs to whoever owns the run (SW-73); only `mappings` is
// shared. Cost: O(1); open() and close() one store a slot. Allocates only in the constructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/page.hpp"
#include "swiotlb/swiotlb.hpp"

namespace nobounce {

enum class SlotState : uint8_t { free, bounce, lent, coherent, closing };

struct SlotTag {
  SlotState state = SlotState::free;
  uint8_t distance = 0;  // slots back to the first of the run
};

struct RunRecord {
  // Device mappings of a lent block, and whether its last page reference is gone already.
  static constexpr uint32_t kReleased = uint32_t{1} << 31;

  CpuAddr original{};                 // bounce: where the bytes came from
  std::atomic<uint32_t> mappings{0};  // lent
  uint32_t size = 0;                  // bounce: bytes requested
  uint16_t offset = 0;                // bounce: of the mapping in its first slot after the padding
  uint8_t padding_slots = 0;
  uint8_t slots = 0;  // of the whole run, padding included
  bool for_receive = false;
  BlockUse use = BlockUse::transmit;  // lent

  // Where the mapping begins, bytes from the first slot of the run.
  [[nodiscard]] uint32_t start() const noexcept {
    return uint32_t{padding_slots} * uint32_t{kSlotSize} + offset;
  }
};
static_assert(sizeof(RunRecord) <= 24);

class SlotTable {
 public:
  explicit SlotTable(uint32_t slots)
      : slots_(slots),
        tags_(std::make_unique<std::atomic<uint16_t>[]>(slots)),
        records_(std::make_unique<RunRecord[]>(slots)) {}

  [[nodiscard]] SlotTag tag(uint32_t slot) const noexcept {
    NB_ASSERT(slot < slots_);
    // Acquire: pairs with the release in open(), so that the record behind the tag is complete.
    return unpack(tags_[slot].load(std::memory_order_acquire));
  }
  [[nodiscard]] uint32_t head_of(uint32_t slot) const noexcept { return slot - tag(slot).distance; }
  [[nodiscard]] RunRecord& record(uint32_t head) noexcept { return records_[head]; }
  [[nodiscard]] const RunRecord& record(uint32_t head) const noexcept { return records_[head]; }

  // The caller owns the slots and has filled the record.
  void open(uint32_t head, unsigned slots, SlotState state) noexcept {
    for (unsigned i = 0; i < slots; ++i) {
      NB_DEBUG_ASSERT(tag(head + i).state == SlotState::free);
      tags_[head + i].store(pack({state, static_cast<uint8_t>(i)}), std::memory_order_release);
    }
  }
  // True for exactly one caller of those who try to end the run that begins at `head`.
  [[nodiscard]] bool begin_close(uint32_t head, SlotState from) noexcept {
    uint16_t expected = pack({from, 0});
    return tags_[head].compare_exchange_strong(expected, pack({SlotState::closing, 0}),
                                               std::memory_order_acq_rel,
                                               std::memory_order_relaxed);
  }
  // Neutral again; after this the slots may go to the allocator.
  void close(uint32_t head, unsigned slots) noexcept {
    NB_ASSERT(tag(head).state == SlotState::closing);
    RunRecord& run = records_[head];
    run.original = CpuAddr{};
    run.size = 0;
    run.mappings.store(0, std::memory_order_relaxed);
    for (unsigned i = 0; i < slots; ++i) tags_[head + i].store(0, std::memory_order_release);
  }

 private:
  [[nodiscard]] static constexpr uint16_t pack(SlotTag tag) noexcept {
    return static_cast<uint16_t>(static_cast<unsigned>(tag.state) << 8 | tag.distance);
  }
  [[nodiscard]] static constexpr SlotTag unpack(uint16_t word) noexcept {
    return {static_cast<SlotState>(word >> 8), static_cast<uint8_t>(word & 0xff)};
  }

  uint32_t slots_;
  std::unique_ptr<std::atomic<uint16_t>[]> tags_;
  std::unique_ptr<RunRecord[]> records_;
};

}  // namespace nobounce
