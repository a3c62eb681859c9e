// Where the rings and header slots of a device lie in the shared region.
//
// A region's memory is carved once and never given back. A device that is opened again (after its
// back-end came back) is given the RingMemory of its predecessor and lays its rings over the old ones:
// they are zeroed, and nothing that stands in them is read (TM-34).
// Threads: one opening at a time.
#pragma once

#include <optional>
#include <vector>

#include "virtio/transport.hpp"

namespace nobounce::virtio {

struct PairMemory {
  std::optional<QueueLayout> receive;
  std::optional<QueueLayout> transmit;
  SharedBytes header_slots;
};

struct RingMemory {
  std::vector<PairMemory> pairs;
};

}  // namespace nobounce::virtio
