#include "swiotlb/swiotlb_counters.hpp"

#include <fmt/format.h>

namespace nobounce {

NocopyCounters::NocopyCounters(CounterRegistry& registry, const char* direction)
    : blocks(registry.counter(fmt::format("nocopy.{}.blocks", direction))),
      blocks_freed(registry.counter(fmt::format("nocopy.{}.blocks_freed", direction))),
      slots(registry.counter(fmt::format("nocopy.{}.slots", direction))),
      high_water(registry.counter(fmt::format("nocopy.{}.high_water_slots", direction))) {
  const auto refusal = [&](Refusal reason, const char* name) {
    refused[static_cast<size_t>(reason)] =
        registry.counter(fmt::format("nocopy.{}.refused.{}", direction, name));
  };
  refusal(Refusal::off, "off");
  refusal(Refusal::budget, "budget");
  refusal(Refusal::no_fit, "no_fit");
  refusal(Refusal::share, "share");
}

SwiotlbCounters::SwiotlbCounters(CounterRegistry& registry)
    : total_slots(registry.counter("swiotlb.total_slots")),
      used_slots(registry.counter("swiotlb.used_slots")),
      high_water_slots(registry.counter("swiotlb.high_water_slots")),
      transient_slots(registry.counter("swiotlb.transient_slots")),
      mapped(registry.counter("swiotlb.mapped")),
      unmapped(registry.counter("swiotlb.unmapped")),
      mapped_bytes(registry.counter("swiotlb.mapped_bytes")),
      fail_too_large(registry.counter("swiotlb.alloc_fail.too_large")),
      fail_exhausted(registry.counter("swiotlb.alloc_fail.exhausted")),
      fail_receive_share(registry.counter("swiotlb.alloc_fail.receive_share")),
      fail_unreachable(registry.counter("swiotlb.alloc_fail.unreachable")),
      fail_coherent(registry.counter("swiotlb.alloc_fail.coherent")),
      bad_unmap_double(registry.counter("swiotlb.bad_unmap.double")),
      bad_unmap_inner(registry.counter("swiotlb.bad_unmap.inner")),
      bad_unmap_size(registry.counter("swiotlb.bad_unmap.size")),
      bad_sync(registry.counter("swiotlb.bad_sync")),
      bad_release(registry.counter("nocopy.bad_release")),
      released_mapped(registry.counter("nocopy.released_mapped")),
      tx(registry, "tx"),
      rx(registry, "rx") {}

}  // namespace nobounce
