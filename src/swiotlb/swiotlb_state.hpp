// The insides of Swiotlb, for its own files: swiotlb.cc (set-up, addresses, statistics), bounce.cc
// (mappings), blocks.cc (nocopy blocks and coherent memory).
#pragma once

#include <atomic>
#include <optional>

#include "base/log.hpp"
#include "swiotlb/areas.hpp"
#include "swiotlb/pool_layout.hpp"
#include "swiotlb/quota.hpp"
#include "swiotlb/slot_table.hpp"
#include "swiotlb/swiotlb.hpp"
#include "swiotlb/swiotlb_counters.hpp"

namespace nobounce {

// What is wrong with an unmap (SW-50). not_bounced: another kind of memory, nothing to do (SW-47).
enum class UnmapFault : uint8_t { none, not_bounced, twice, inner, size };

struct Swiotlb::State {
  State(const PoolLayout& pool_layout, const SharedBytes& pool_bytes, DmaAddr pool_iova,
        const SwiotlbOptions& pool_options, CounterRegistry& registry, CopyLedger& ledger);

  // ---- slots and addresses ----
  // Slot of an address of the pool, none for any other.
  [[nodiscard]] std::optional<uint32_t> slot_of(DmaAddr address) const noexcept {
    return slot_at(static_cast<uint64_t>(address) - static_cast<uint64_t>(iova));
  }
  [[nodiscard]] std::optional<uint32_t> slot_of(CpuAddr address) const noexcept {
    return slot_at(address - cpu);
  }
  [[nodiscard]] std::optional<uint32_t> slot_at(uint64_t pool_offset) const noexcept {
    if (pool_offset >= bytes.size()) return std::nullopt;
    return layout.first_slot + static_cast<uint32_t>(pool_offset >> kSlotShift);
  }
  [[nodiscard]] uint64_t offset_of(uint32_t slot) const noexcept {
    return uint64_t{slot - layout.first_slot} << kSlotShift;
  }

  [[nodiscard]] DmaAddr address_of(uint32_t head, const RunRecord& run) const noexcept {
    return iova + offset_of(head) + run.start();
  }

  // ---- taking and giving back slots, with the statistics that go with it ----
  [[nodiscard]] std::optional<uint32_t> take(const RunRequest& run) noexcept;
  void give_back(uint32_t head, unsigned slots) noexcept;  // closing -> free

  // ---- bounce mappings ----
  struct SyncRange {
    SharedBytes slots;
    CpuAddr original{};
  };
  [[nodiscard]] SyncRange sync_range(DmaAddr address, size_t size) noexcept;
  [[nodiscard]] UnmapFault judge_unmap(DmaAddr address, size_t size) const noexcept;
  void finish_bounce(uint32_t head) noexcept;
  void count_bad_unmap(UnmapFault fault) noexcept;
  void report_full(size_t size, unsigned slots) noexcept;

  // ---- lent blocks ----
  // The block of this range, when it lies inside one.
  [[nodiscard]] std::optional<uint32_t> lent_head(CpuAddr address, size_t size) const noexcept;
  void drop_lent_mapping(DmaAddr address) noexcept;
  void finish_block(uint32_t head) noexcept;

  const PoolLayout layout;
  const SharedBytes bytes;  // from the first slot to the last
  const CpuAddr cpu;        // of the first slot
  const DmaAddr iova;       // of the first slot
  const SwiotlbOptions options;
  Areas areas;
  SlotTable table;
  Quota quota;
  std::atomic<uint64_t> used{0};
  std::atomic<uint64_t> high_water{0};
  SwiotlbCounters counters;
  CopyLedger& copies;
  LogLimit full_message;
};

}  // namespace nobounce
