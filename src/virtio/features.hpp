// Which features the driver takes from an offer.
//
// accepted = offered AND known AND wanted, then closed under the dependencies of virtio.md 1:
// a feature whose base is missing goes too. Without mergeable buffers, receive segmentation offload
// goes as well: one page a buffer cannot hold a 64 KiB frame (C021).
// Spec: TM-26, TM-27, TM-29.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace nobounce::virtio {

[[nodiscard]] uint64_t known_features() noexcept;
[[nodiscard]] uint64_t close_dependencies(uint64_t features) noexcept;
// Fails without VERSION_1.
[[nodiscard]] Result<uint64_t> negotiate(uint64_t offered, uint64_t wanted);

}  // namespace nobounce::virtio
