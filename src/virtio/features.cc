#include "virtio/features.hpp"

#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

struct Dependency {
  uint64_t feature;
  uint64_t needs;
};

// Bases before what stands on them: one pass closes the set.
constexpr Dependency kDependencies[] = {
    {wire::kNetGuestTso4, wire::kNetGuestCsum}, {wire::kNetGuestTso6, wire::kNetGuestCsum},
    {wire::kNetGuestTso4, wire::kNetMrgRxbuf},  {wire::kNetGuestTso6, wire::kNetMrgRxbuf},
    {wire::kNetHostTso4, wire::kNetCsum},       {wire::kNetHostTso6, wire::kNetCsum},
};

}  // namespace

uint64_t known_features() noexcept {
  return wire::kVersion1 | wire::kRingEventIdx | wire::kNetMrgRxbuf | wire::kNetCsum |
         wire::kNetGuestCsum | wire::kNetHostTso4 | wire::kNetHostTso6 | wire::kNetGuestTso4 |
         wire::kNetGuestTso6 | wire::kNetMac | wire::kNetMtu | wire::kNetStatus | wire::kNetMq;
}

uint64_t close_dependencies(uint64_t features) noexcept {
  for (const Dependency& rule : kDependencies) {
    if ((features & rule.needs) != rule.needs) features &= ~rule.feature;
  }
  return features;
}

Result<uint64_t> negotiate(uint64_t offered, uint64_t wanted) {
  if ((offered & wire::kVersion1) == 0) {
    return fail(std::errc::protocol_not_supported, "negotiate virtio features",
                "the device does not offer VERSION_1",
                "legacy virtio is not implemented: use a device of virtio 1.0 or later");
  }
  return close_dependencies(offered & known_features() & (wanted | wire::kVersion1));
}

}  // namespace nobounce::virtio
