// swiotlb: the pool of device-reachable memory, lent in slots.
//
// One allocator of 2 KiB slots serves two kinds of use:
//   bounce  - short-lived copies of private memory: map() copies in, sync and unmap() copy back;
//   nocopy  - blocks of whole pages lent to socket buffers and receive pools: the payload is born
//             here and no copy is made at map time.
// An address is told apart by the state kept with its slot, never by lying in the pool (NC-23).
//
//   pool | area 0                       | area 1                       | ...
//        | set | set | set ...          | set | set | ...              |   set = 128 slots, 256 KiB
//
// Invariants
//  1. Slot states, original addresses, sizes and free maps are private memory; a free slot contains
//     nothing of ours (TM-59).
//  2. A run lies in one slot set of one area, meets both alignment masks and the segment boundary
//     (SW-14..SW-19).
//  3. nocopy slots in use never exceed their budget: reserved before the search, returned on
//     failure (NC-4). Receive's total, bounce slots of private receive pages included, never enters
//     the transmit reserve.
//  4. Nothing sleeps; no lock is held while payload is copied (SW-31, NC-16).
//
// Threads: all calls from any thread. Cost: O(1) in pool size and occupancy, success or failure.
// Errors: exhaustion is a value (null, MapError), counted by reason.
// Spec: swiotlb.md SW-*, nocopy-sockets.md NC-1..NC-37.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>

#include "base/copies.hpp"
#include "base/counters.hpp"
#include "base/error.hpp"
#include "memory/page.hpp"
#include "memory/shared.hpp"

namespace nobounce {

inline constexpr size_t kSlotShift = 11;
inline constexpr size_t kSlotSize = size_t{1} << kSlotShift;
inline constexpr size_t kSlotSet = 128;                      // slots
inline constexpr size_t kMappingMax = kSlotSet * kSlotSize;  // 256 KiB

// An address as the device sees it (IOVA).
enum class DmaAddr : uint64_t {};
[[nodiscard]] constexpr DmaAddr operator+(DmaAddr address, uint64_t offset) noexcept {
  return static_cast<DmaAddr>(static_cast<uint64_t>(address) + offset);
}

enum class DmaDirection : uint8_t { to_device, from_device, bidirectional };
enum class BlockUse : uint8_t { transmit, receive };

// Attributes of one mapping or unmapping.
struct DmaAttrs {
  bool skip_cpu_sync = false;     // unmap: do not copy back
  bool no_warn = false;           // failure is silent
  bool require_coherent = false;  // map: refuse rather than bounce (SW-30)
};

// What a device asks of its mappings.
struct DmaLimits {
  uint64_t min_align_mask = 0;  // low bits equal in original and bounce address
  uint64_t segment_boundary = ~uint64_t{0};
  uint64_t address_limit = ~uint64_t{0};  // highest reachable IOVA
};

enum class MapError : uint8_t { too_large, exhausted, unreachable, coherent_required };

struct NocopyQuotas {
  unsigned tx_percent = 45;  // 0..90, the two together at most 90
  unsigned rx_percent = 45;
  unsigned tx_reserve_percent = 10;  // of the pool; receive can never take it
};

struct SwiotlbOptions {
  unsigned areas = 0;  // 0: number of CPUs; rounded up to a power of two
  NocopyQuotas quotas{};
  bool zero_padding = true;  // SW-36
};

struct BounceRequest {
  CpuAddr original{};
  size_t size = 0;
  uint64_t alloc_align_mask = 0;
  DmaDirection direction = DmaDirection::to_device;
  DmaLimits limits{};
  DmaAttrs attrs{};
  bool for_receive = false;  // charged to receive (SW-81)
};

class Swiotlb final : public BlockOwner {
 public:
  // Takes `pool` (page aligned, in the page space) as its memory. IOVA of pool byte 0 is `iova`.
  static Result<std::unique_ptr<Swiotlb>> create(const SharedBytes& pool, DmaAddr iova,
                                                 const SwiotlbOptions& options,
                                                 CounterRegistry& counters, CopyLedger& copies);
  ~Swiotlb();  // asserts that nothing is lent or mapped

  // ---- bounce ----
  [[nodiscard]] std::expected<DmaAddr, MapError> map(const BounceRequest& request) noexcept;
  // `address` may be anywhere inside the mapping, `size` stays inside it (SW-38); clamped and
  // counted otherwise (SW-40). No-ops for addresses that are no bounce mapping (SW-47).
  void sync_for_cpu(DmaAddr address, size_t size, DmaDirection direction) noexcept;
  void sync_for_device(DmaAddr address, size_t size, DmaDirection direction) noexcept;
  // `address` is what map() returned, or lies in a block mapped by map_lent(). A second unmap, an
  // inner address or a wrong size is counted and refused (asserted in debug builds), never able to
  // corrupt the pool (SW-50).
  void unmap(DmaAddr address, size_t size, DmaDirection direction, DmaAttrs attrs) noexcept;

  // ---- nocopy blocks ----
  // 2^order pages (0..6), naturally aligned, reference count 1, owner this; null when refused (off,
  // over budget, no fit: counted by reason).
  [[nodiscard]] Page* alloc_block(unsigned order, BlockUse use) noexcept;
  void release_block(Page& head) noexcept override;
  // Is this whole range inside one lent block? O(1), from slot state.
  [[nodiscard]] bool is_lent(CpuAddr address, size_t size) const noexcept;
  // The device's address of a range inside one lent block; none for any other. Nothing is copied.
  // Ends with unmap() of an address in the block; several at a time are legal (NC-34). A block
  // whose last page reference goes first keeps its slots until the last unmap, and that is counted:
  // it is a driver's bug (NC-35).
  [[nodiscard]] std::optional<DmaAddr> map_lent(CpuAddr address, size_t size) noexcept;

  // ---- coherent memory (rings of a device with this pool) ----
  // Zeroed, a power of two of pages and aligned to it; empty when there is no room (SW-62).
  [[nodiscard]] SharedBytes alloc_coherent(size_t bytes) noexcept;
  // False, and nothing done, when `memory` is not what alloc_coherent() of this pool returned.
  [[nodiscard]] bool free_coherent(const SharedBytes& memory) noexcept;

  // ---- addresses ----
  [[nodiscard]] bool contains(CpuAddr address) const noexcept;
  [[nodiscard]] bool contains(DmaAddr address) const noexcept;
  [[nodiscard]] DmaAddr dma_of(CpuAddr address) const noexcept;

  // ---- quotas, sizes, statistics ----
  // Refused values leave the old ones; lowering revokes nothing (NC-1, NC-6).
  Result<void> set_quotas(const NocopyQuotas& quotas) noexcept;
  [[nodiscard]] NocopyQuotas quotas() const noexcept;
  // Receive should give blocks back instead of caching them (transmit is short, or over budget).
  [[nodiscard]] bool receive_should_evict() const noexcept;
  [[nodiscard]] uint64_t slots() const noexcept;
  [[nodiscard]] uint64_t slots_used() const noexcept;
  [[nodiscard]] uint64_t slots_lent(BlockUse use) const noexcept;
  [[nodiscard]] static size_t max_mapping_size(uint64_t min_align_mask) noexcept;  // SW-20
  [[nodiscard]] uint64_t slots_high_water() const noexcept;
  Result<void> set_high_water(uint64_t value) noexcept;      // 0 resets, others are refused (SW-66)
  [[nodiscard]] unsigned longest_free_run() const noexcept;  // slots, at most one set
  // For tests: every slot free, every summary as at the start (SW-46). O(slots).
  [[nodiscard]] bool is_pristine() const noexcept;

 private:
  struct State;
  explicit Swiotlb(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace nobounce
