#include "dma/dma_device.hpp"

namespace nobounce {
namespace {

[[nodiscard]] bool crosses(uint64_t first, uint64_t last, uint64_t boundary_mask) noexcept {
  return (first & ~boundary_mask) != (last & ~boundary_mask);
}

}  // namespace

DmaDevice::DmaDevice(Swiotlb& pool, const DmaLimits& limits, CounterRegistry& counters)
    : DmaDevice(counters) {
  pool_ = &pool;
  limits_ = limits;
}

DmaDevice::DmaDevice(CounterRegistry& counters)
    : mapped_nocopy_(counters.counter("dma.map.nocopy")),
      mapped_bounce_(counters.counter("dma.map.bounce")),
      map_failed_(counters.counter("dma.map.failed")),
      lent_bounced_bytes_(counters.counter("dma.map.lent_bounced_bytes")) {}

// May a lent range be mapped where it is? The device's rules hold for it as for a bounce (NC-32).
bool DmaDevice::reaches(CpuAddr address, DmaAddr at, size_t size) const noexcept {
  const auto first = static_cast<uint64_t>(at);
  const uint64_t last = first + (size - 1);
  return last <= limits_.address_limit && !crosses(first, last, limits_.segment_boundary) &&
         ((first ^ static_cast<uint64_t>(address)) & limits_.min_align_mask) == 0;
}

std::expected<DmaAddr, MapError> DmaDevice::map(const DmaMapRequest& request) noexcept {
  NB_ASSERT(request.size > 0);
  if (pool_ == nullptr) return static_cast<DmaAddr>(request.address);
  const bool in_pool = pool_->contains(request.address);
  if (in_pool && reaches(request.address, pool_->dma_of(request.address), request.size)) {
    if (const auto address = pool_->map_lent(request.address, request.size)) {
      mapped_nocopy_.add();
      return *address;
    }
  }
  const auto address = pool_->map({.original = request.address,
                                   .size = request.size,
                                   .direction = request.direction,
                                   .limits = limits_,
                                   .attrs = request.attrs,
                                   .for_receive = request.for_receive});
  (address ? mapped_bounce_ : map_failed_).add();
  if (address && in_pool) lent_bounced_bytes_.add(request.size);
  return address;
}

std::expected<void, MapError> DmaDevice::map_list(std::span<const DmaMapRequest> requests,
                                                  std::span<DmaAddr> addresses) noexcept {
  NB_ASSERT(addresses.size() >= requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto address = map(requests[i]);
    if (!address) {
      for (size_t done = 0; done < i; ++done) {
        unmap(addresses[done], requests[done].size, requests[done].direction,
              {.skip_cpu_sync = true});
      }
      return std::unexpected(address.error());
    }
    addresses[i] = *address;
  }
  return {};
}

void DmaDevice::unmap(DmaAddr address, size_t size, DmaDirection direction,
                      DmaAttrs attrs) noexcept {
  if (pool_ != nullptr) pool_->unmap(address, size, direction, attrs);
}

void DmaDevice::sync_for_cpu(DmaAddr address, size_t size, DmaDirection direction) noexcept {
  if (pool_ != nullptr) pool_->sync_for_cpu(address, size, direction);
}

void DmaDevice::sync_for_device(DmaAddr address, size_t size, DmaDirection direction) noexcept {
  if (pool_ != nullptr) pool_->sync_for_device(address, size, direction);
}

}  // namespace nobounce
