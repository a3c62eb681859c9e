// What a pool counts, by name.
//
//   swiotlb.total_slots, used_slots, high_water_slots, transient_slots    sizes (SW-64)
//   swiotlb.mapped, unmapped, mapped_bytes                                bounce mappings
//   swiotlb.alloc_fail.<too_large|exhausted|receive_share|unreachable|coherent>
//   swiotlb.bad_unmap.<double|inner|size>, swiotlb.bad_sync               SW-50, SW-40
//   nocopy.<tx|rx>.blocks, blocks_freed, slots, high_water_slots          NC-80, NC-81
//   nocopy.<tx|rx>.refused.<off|budget|no_fit|share>
//   nocopy.bad_release, nocopy.released_mapped                            NC-25, NC-35
//
// used_slots counts blocks and bounces alike; nocopy.*.slots are the lent part of it, so ordinary
// use is the difference (NC-37). Pools that share a registry add up in the same names; what a pool
// decides by are its own counts (SW-68).
#pragma once

#include <array>

#include "base/counters.hpp"
#include "swiotlb/quota.hpp"

namespace nobounce {

struct NocopyCounters {
  NocopyCounters(CounterRegistry& registry, const char* direction);

  SharedCounter blocks;
  SharedCounter blocks_freed;
  SharedCounter slots;
  SharedCounter high_water;
  std::array<SharedCounter, kRefusals> refused;  // by Refusal
};

struct SwiotlbCounters {
  explicit SwiotlbCounters(CounterRegistry& registry);
  [[nodiscard]] NocopyCounters& nocopy(BlockUse use) noexcept {
    return use == BlockUse::transmit ? tx : rx;
  }

  SharedCounter total_slots;
  SharedCounter used_slots;
  SharedCounter high_water_slots;
  SharedCounter transient_slots;
  SharedCounter mapped;
  SharedCounter unmapped;
  SharedCounter mapped_bytes;
  SharedCounter fail_too_large;
  SharedCounter fail_exhausted;
  SharedCounter fail_receive_share;
  SharedCounter fail_unreachable;
  SharedCounter fail_coherent;
  SharedCounter bad_unmap_double;
  SharedCounter bad_unmap_inner;
  SharedCounter bad_unmap_size;
  SharedCounter bad_sync;
  SharedCounter bad_release;
  SharedCounter released_mapped;
  NocopyCounters tx;
  NocopyCounters rx;
};

}  // namespace nobounce
