// DMA mapping for one device: the one place that decides direct, nocopy or bounce.
//
// Drivers call map, unmap and sync and never ask which it was.
//   address inside one lent block of this device's pool -> its IOVA, nothing copied    (nocopy)
//   any other address in the page space                 -> a bounce slot and a copy    (bounce)
//   a device that reaches all memory                    -> the address itself          (direct)
// Unmapping a nocopy mapping copies nothing and does not release the block: ownership is with the
// page, not with the mapping (NC-33).
//
// Identity: index + generation, so that a hint kept elsewhere can outlive the device (NC-42).
// Threads: any. Cost: nocopy a range check and a slot-state load; bounce see swiotlb.hpp.
// Spec: SW-74..SW-80, NC-31..NC-37.
#pragma once

#include <cstdint>
#include <expected>
#include <span>

#include "swiotlb/swiotlb.hpp"

namespace nobounce {

struct DmaMapRequest {
  CpuAddr address{};
  size_t size = 0;
  DmaDirection direction = DmaDirection::to_device;
  DmaAttrs attrs{};
  bool for_receive = false;
};

class DmaDevice {
 public:
  // A device that reaches only `pool`.
  DmaDevice(Swiotlb& pool, const DmaLimits& limits, CounterRegistry& counters);
  // A device that reaches all memory at its own address (tests, loopback).
  explicit DmaDevice(CounterRegistry& counters);

  [[nodiscard]] std::expected<DmaAddr, MapError> map(const DmaMapRequest& request) noexcept;
  // All or none: when one fails, those before it are unmapped without copying back (SW-79).
  [[nodiscard]] std::expected<void, MapError> map_list(std::span<const DmaMapRequest> requests,
                                                       std::span<DmaAddr> addresses) noexcept;
  void unmap(DmaAddr address, size_t size, DmaDirection direction, DmaAttrs attrs = {}) noexcept;
  void sync_for_cpu(DmaAddr address, size_t size, DmaDirection direction) noexcept;
  void sync_for_device(DmaAddr address, size_t size, DmaDirection direction) noexcept;

  // The longest request that an empty pool always has room for; no limit when nothing is bounced
  // (SW-77).
  [[nodiscard]] size_t max_mapping_size() const noexcept {
    return pool_ == nullptr ? ~size_t{0} : Swiotlb::max_mapping_size(limits_.min_align_mask);
  }

  // True when private memory must be bounced for this device; then pool() is where nocopy blocks
  // for it come from.
  [[nodiscard]] bool bounces() const noexcept { return pool_ != nullptr; }
  [[nodiscard]] Swiotlb* pool() const noexcept { return pool_; }

 private:
  [[nodiscard]] bool reaches(CpuAddr address, DmaAddr at, size_t size) const noexcept;

  Swiotlb* pool_ = nullptr;
  DmaLimits limits_;
  SharedCounter mapped_nocopy_;
  SharedCounter mapped_bounce_;
  SharedCounter map_failed_;
  SharedCounter lent_bounced_bytes_;  // NC-32: lay in the pool, could not be mapped there
};

}  // namespace nobounce
