// The transmit half of a queue pair.
//
//   packet:  head | frag | frag           chain:  [virtio_net_hdr head] -> [frag] -> [frag]
//                                                  header slot of the    mapped by DmaDevice,
//                                                  chain's first         in place when nocopy
//                                                  descriptor
//
// Header slots lie in the region, one a descriptor: a chain uses the slot of its head's number, so
// there is nothing to allocate. Header and head are built in private memory and copied in once; the
// posted length is exact, so what an earlier packet left in the slot is never sent (TM-60).
// In flight, the driver owns the packet and its mappings; reclaim() and abandon() give both back,
// once.
//
// Threads: the pair's. Cost: O(descriptors); allocates at set-up only.
// Spec: TM-24, TM-43, TM-60; virtio.md 8.1; NC-31..NC-37.
#pragma once

#include <array>
#include <memory>

#include "netdev/net_device.hpp"
#include "virtio/queue_environment.hpp"
#include "virtio/split_queue.hpp"

namespace nobounce::virtio {

// Why a packet was dropped instead of sent: one counter each.
enum class TxDrop : uint8_t {
  none,
  too_small,    // no link header
  too_large,    // beyond the MTU, or the largest super-frame
  unsupported,  // asks for an offload that the device did not take
  unmappable,   // a frag that this device can never reach
};
inline constexpr size_t kTxDrops = 5;

class TransmitQueue {
 public:
  // Carves rings and header slots; announces the queue to the transport.
  static Result<std::unique_ptr<TransmitQueue>> create(const QueueEnvironment& environment);
  [[nodiscard]] static size_t carve_bytes(uint16_t queue_size) noexcept;

  size_t transmit(PacketBurst& burst) noexcept;
  void reclaim() noexcept;
  [[nodiscard]] size_t room() const noexcept { return queue_.free() / (1 + kFragsMax); }
  [[nodiscard]] bool is_idle() const noexcept { return queue_.outstanding() == 0; }
  [[nodiscard]] bool arm() noexcept;
  void disarm() noexcept { queue_.disarm(); }
  // The device is stopped: frees everything in flight.
  void abandon() noexcept;

 private:
  struct Mapping {
    DmaAddr address{};
    uint32_t size = 0;
  };
  struct InFlight {
    PacketPtr packet;
    uint16_t count = 0;
    std::array<Mapping, kFragsMax> mappings;
  };
  enum class Outcome : uint8_t { sent, dropped, stays };

  TransmitQueue(const QueueEnvironment& environment, const QueueLayout& layout,
                const SharedBytes& header_slots);

  [[nodiscard]] TxDrop judge(const Packet& packet) const noexcept;
  [[nodiscard]] Outcome send(PacketPtr& packet) noexcept;
  [[nodiscard]] Outcome map_frags(const Packet& packet, InFlight& slot) noexcept;
  void unmap_frags(InFlight& slot) noexcept;
  [[nodiscard]] Segment write_header(const Packet& packet, uint16_t slot) noexcept;
  void finish(uint16_t id) noexcept;
  void watch() noexcept;

  QueueEnvironment environment_;
  SplitQueue queue_;
  SharedBytes header_slots_;
  DmaAddr header_slots_iova_;
  std::unique_ptr<InFlight[]> in_flight_;
  uint16_t queue_index_;
  size_t frame_max_;  // without segmentation
  // The watchdog (TM-24): when the device last finished something, or began to have work.
  uint64_t progress_ns_ = 0;
  bool stalled_ = false;
  bool ever_completed_ = false;

  Counter packets_, bytes_, completed_, kicks_, ring_full_, map_exhausted_, stalls_;
  std::array<Counter, kTxDrops> drops_;
};

}  // namespace nobounce::virtio
