// What both queues of a pair work with; all of it outlives them.
#pragma once

#include <cstdint>
#include <string>

#include "dma/dma_device.hpp"
#include "netdev/shard_context.hpp"
#include "virtio/breach.hpp"
#include "virtio/ring_memory.hpp"
#include "virtio/transport.hpp"

namespace nobounce::virtio {

struct QueueEnvironment {
  Transport& transport;
  SharedRegion& region;
  DmaDevice& dma;
  ShardContext& shard;
  BreachLatch& latch;
  PairMemory& memory;
  uint64_t features = 0;
  uint16_t pair = 0;
  uint16_t queue_size = 0;
  uint16_t mtu = 0;
  std::string counters;  // prefix: "virtio0.q0"

  [[nodiscard]] Counter counter(std::string_view name) const;
};

}  // namespace nobounce::virtio
