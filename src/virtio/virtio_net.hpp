// virtio-net over split virtqueues: a NetDevice driver written against a hostile device.
//
// The driver's truth is private: which descriptors are posted, their pages, lengths and chain
// links. The ring in shared memory is mail: each field is read once, checked against that truth,
// and only then used. A breach latches the queue broken with its cause, counted and logged once;
// the device then reports is_broken() and every later call is a no-op.
//
//   transmit:  header slot (virtio_net_hdr + packet head, copied once) + one descriptor a frag
//   receive:   a page of the queue's page_pool a descriptor; the header window is copied out once
//
// Threads: each queue pair its own. Cost: O(descriptors) a burst, one publish, at most one kick.
// Spec: threat-model.md TM-1..TM-13, TM-21..TM-43, TM-59..TM-63, TM-86; virtio.md 1-4, 6-8, 12, 14.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "virtio/breach.hpp"
#include "virtio/ring_memory.hpp"
#include "virtio/transport.hpp"

namespace nobounce::virtio {

// What sockets rely on while a device is opened again (TM-28).
struct InUse {
  uint64_t features = 0;
  uint16_t mtu = 0;
  MacAddress mac;
};

struct VirtioNetOptions {
  uint16_t queue_size = 256;  // descriptors a virtqueue; power of two
  uint16_t queue_pairs = 1;
  std::optional<MacAddress> mac = std::nullopt;  // else the device's, else a random local one
  std::optional<uint16_t> mtu = std::nullopt;  // else the device's, else 1500; at most the device's
  uint64_t features_wanted = ~uint64_t{0};  // mask over what the driver knows, for tests and tools
  // This device takes the place of an earlier one. It gets the same features, MTU and MAC, also when it
  // offers more; one that offers less is refused before any memory is shared with it, with
  // std::errc::not_supported, which no other failure of open() has.
  std::optional<InUse> in_use = std::nullopt;
  std::string name = {};              // for counters and messages; else "virtio" and a number
  const char* when_gone = "stopped";  // ends the log line of a disconnect; static life
};

class VirtioNet : public NetDevice {
 public:
  // `transport` is connected and not yet initialised; the driver runs the handshake. `region` gives
  // rings and header slots (carve), `dma` maps payload; both outlive the device. `contexts` has one
  // entry a queue pair: the shard that drives it. `memory` keeps what was carved, for the next open()
  // with the same queues; it outlives the device. Null: nothing is kept.
  static Result<std::unique_ptr<VirtioNet>> open(std::unique_ptr<Transport> transport,
                                                 SharedRegion& region, DmaDevice& dma,
                                                 std::span<ShardContext* const> contexts,
                                                 const VirtioNetOptions& options,
                                                 RingMemory* memory = nullptr);

  // What broke the device, in one word; its sentence is broken_reason().
  [[nodiscard]] virtual Breach breach() const noexcept = 0;
  [[nodiscard]] virtual InUse in_use() const noexcept = 0;
  // Bytes of the region that open() carves for these options (rings, header slots).
  [[nodiscard]] static size_t carve_bytes(const VirtioNetOptions& options) noexcept;
};

}  // namespace nobounce::virtio
