// NetDevice: what ip/ and the transports see of any device, real, virtual or in memory.
//
// Ethernet frames go down as bursts of packets and come up the same way. A device has queue pairs;
// each pair is driven by one thread (its shard). Everything runs to completion: transmit() and
// receive() do work in the caller's thread and never block.
//
// Identity: device_id = index + generation. A holder of an old id can be told (find_device returns
// null), never hurt (NC-42). leaf() names the device that finally performs DMA (below VLAN, bond).
//
// Threads: per queue pair its own thread; the const calls any thread.
// Errors: what does not fit stays with the caller (transmit) or is counted (receive).
// Spec: NC-38..NC-42, virtio.md 8; design "netdev/".
#pragma once

#include <cstdint>

#include "base/burst.hpp"
#include "dma/dma_device.hpp"
#include "nobounce/address.hpp"
#include "skb/packet.hpp"
#include "wire/vring.hpp"

namespace nobounce {

using PacketBurst = Burst<PacketPtr>;

// Descriptors of a queue, what anybody may choose: a power of two. At least one of the largest
// packets, a descriptor for the headers and one a frag; it fits the receive side's floor as well. At
// most virtio's own limit.
inline constexpr uint16_t kQueueSizeMin = 32;
inline constexpr uint16_t kQueueSizeMax = wire::kQueueSizeMax;
static_assert(kQueueSizeMin >= 1 + kFragsMax);

// MTU, what anybody may choose: what every host of the Internet takes whole (RFC 791), and what
// IPv4's length field holds. A device may have less (its own floor is the link's, kLinkMtuMin).
inline constexpr uint16_t kMtuMin = 576;
inline constexpr uint16_t kMtuMax = 65535;
inline constexpr uint16_t kLinkMtuMin = 68;  // RFC 791: headers and 8 bytes

struct DeviceId {
  uint32_t index = 0;
  uint32_t generation = 0;  // 0: no device
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

struct DeviceFeatures {
  bool tx_checksum = false;  // accepts Checksum::partial
  bool tso4 = false;         // accepts Gso::tcp4
  bool tso6 = false;
  bool rx_checksum = false;  // may deliver partial or verified
  bool lro = false;          // may deliver gso packets
};

// What a driver waits on when idle. An fd of -1 means "poll me".
struct WaitHandle {
  int fd = -1;
};

class NetDevice {
 public:
  NetDevice();
  virtual ~NetDevice();
  NetDevice(const NetDevice&) = delete;
  NetDevice& operator=(const NetDevice&) = delete;

  [[nodiscard]] DeviceId id() const noexcept { return id_; }
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  [[nodiscard]] virtual MacAddress mac() const noexcept = 0;
  [[nodiscard]] virtual uint16_t mtu() const noexcept = 0;  // IP bytes
  [[nodiscard]] virtual DeviceFeatures features() const noexcept = 0;
  [[nodiscard]] virtual uint16_t queue_pairs() const noexcept { return 1; }
  [[nodiscard]] virtual bool link_up() const noexcept = 0;
  // Latched: the device broke the rules, or is gone. Sockets get errors; nothing is sent any more.
  [[nodiscard]] virtual bool is_broken() const noexcept = 0;
  // Why, once it is broken; null when there is nothing to say. Valid while the device lives.
  [[nodiscard]] virtual const char* broken_reason() const noexcept { return nullptr; }
  // The device that performs DMA for packets sent here, and how it maps; null when none does.
  [[nodiscard]] virtual NetDevice* leaf() noexcept { return this; }
  [[nodiscard]] virtual DmaDevice* dma() noexcept { return nullptr; }

  // Sends what fits, in order, from the front; those packets leave the burst (drop_front), the rest
  // stay. A packet that can never be sent (too large, unmappable) is dropped and counted, and
  // leaves too. One publish and at most one kick a call. Returns how many left.
  virtual size_t transmit(uint16_t queue, PacketBurst& burst) noexcept = 0;
  // Appends received packets to `burst`, at most its room, and refills. Returns how many.
  virtual size_t receive(uint16_t queue, PacketBurst& burst) noexcept = 0;
  // Frees what the device has finished sending. Cheap when there is nothing.
  virtual void reclaim(uint16_t queue) noexcept = 0;
  // Nothing that transmit() took is with the device any more, as far as the last reclaim() saw. A
  // device that copies is always idle.
  [[nodiscard]] virtual bool is_idle(uint16_t) const noexcept { return true; }
  // Transmit slots free right now, a lower bound (packets of up to kFragsMax frags).
  [[nodiscard]] virtual size_t transmit_room(uint16_t queue) noexcept = 0;

  // Before sleeping: asks to be woken. Returns false when there is work already (do not sleep).
  [[nodiscard]] virtual bool arm(uint16_t queue) noexcept = 0;
  virtual void disarm(uint16_t queue) noexcept = 0;
  [[nodiscard]] virtual WaitHandle wait_handle(uint16_t queue) noexcept = 0;
  // Whether the caller has room for what receive() would give (yes from the start). While it has
  // not, a device may leave its source unwatched, so that a flood costs nothing (C067).
  virtual void set_receive_wanted(bool) noexcept {}
  // After the handle signalled: clears it.
  virtual void acknowledge(uint16_t queue) noexcept = 0;

  // Header bytes in front of the frame that the driver wants as headroom beside the link header.
  [[nodiscard]] virtual size_t headroom_needed() const noexcept { return 0; }

 private:
  DeviceId id_;
};

// The device of that id, or null when it is gone. Valid while the caller keeps devices alive; the
// registry itself is never an owner.
[[nodiscard]] NetDevice* find_device(DeviceId id) noexcept;

}  // namespace nobounce
