// How a virtio driver reaches its device: features, configuration, queue set-up, notification.
// vhost_user/ implements it over a socket; a PCI transport will, through VFIO.
//
// All values that come from the device were read once and bounded by the transport before they are
// returned; the driver still checks what they mean (TM-26, TM-30).
// Threads: set-up and tear-down by one thread; notify() by each queue's thread.
#pragma once

#include <cstdint>
#include <optional>

#include "base/error.hpp"
#include "memory/shared_region.hpp"
#include "nobounce/address.hpp"

namespace nobounce::virtio {

// Where one virtqueue lies, as ranges of the shared region.
struct QueueLayout {
  uint16_t index = 0;  // virtqueue number: receive 2k, transmit 2k + 1
  uint16_t size = 0;
  SharedBytes descriptors;
  SharedBytes driver_area;  // avail
  SharedBytes device_area;  // used
};

struct NetConfig {
  std::optional<MacAddress> mac;
  std::optional<uint16_t> mtu;
  uint16_t queue_pairs_max = 1;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Device features, read once per initialisation.
  [[nodiscard]] virtual Result<uint64_t> read_features() = 0;
  // Acknowledges a subset; fails when the device refuses it.
  [[nodiscard]] virtual Result<void> accept_features(uint64_t features) = 0;
  [[nodiscard]] virtual Result<NetConfig> read_config() = 0;
  // Tells the device about the memory it may reach.
  [[nodiscard]] virtual Result<void> share(SharedRegion& region) = 0;
  [[nodiscard]] virtual Result<void> set_up_queue(const QueueLayout& layout) = 0;
  // DRIVER_OK: the device may run.
  [[nodiscard]] virtual Result<void> start() = 0;
  // Stops the queues and waits, bounded, until the device has let go of the memory. Idempotent; one
  // thread at a time, while others may still call notify() and failure().
  virtual void stop() noexcept = 0;

  // Doorbell of one virtqueue. Never blocks (TM-86).
  virtual void notify(uint16_t queue) noexcept = 0;
  // The fd that signals used buffers of that queue. The two queues of a pair have the same one.
  [[nodiscard]] virtual int call_fd(uint16_t queue) const noexcept = 0;
  // The device is gone or has broken the control protocol; null while all is well. Cheap; any
  // thread. Called once a round of the shard's loop.
  [[nodiscard]] virtual const char* failure() noexcept = 0;
  // Of a failure: the other end went away (closed, or died) and did not break the control protocol.
  // As cheap and as sticky.
  [[nodiscard]] virtual bool has_disconnected() const noexcept = 0;
  // An fd that becomes readable when failure() may have changed; -1 when there is none.
  [[nodiscard]] virtual int failure_fd() const noexcept = 0;
};

}  // namespace nobounce::virtio
