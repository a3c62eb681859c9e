// One port of the switch: a device, a bounded queue of frames towards it, and the fall-backs for what
// the device cannot do itself (netdev/output.hpp).
//
// Threads: the service thread. Cost: O(1) a frame and destination.
#pragma once

#include <cstdint>
#include <memory>

#include "base/list.hpp"
#include "netdev/net_device.hpp"
#include "netdev/output.hpp"

namespace nobounce::backend {

class SwitchPort {
 public:
  // Frames that wait for the device. One burst may come while one waits; the rest is room for
  // several senders before the first frame is dropped.
  static constexpr size_t kQueueMax = 4 * kBurstMax;

  SwitchPort(uint16_t number, std::unique_ptr<NetDevice> device, ShardContext& context);
  ~SwitchPort();

  [[nodiscard]] uint16_t number() const noexcept { return number_; }
  [[nodiscard]] NetDevice& device() noexcept { return *device_; }
  [[nodiscard]] bool is_live() const noexcept {
    return device_->link_up() && !device_->is_broken();
  }

  // False: the queue is full and the frame is dropped.
  [[nodiscard]] bool offer(PacketPtr frame) noexcept;
  [[nodiscard]] size_t queued() const noexcept { return queue_.size(); }
  [[nodiscard]] bool is_idle() const noexcept { return queue_.empty() && output_.empty(); }
  // From the queue to the device; returns how many frames left the queue.
  size_t flush() noexcept;

  // Asks all queues of the device for a wake-up. False: there is work already.
  [[nodiscard]] bool arm() noexcept;
  void disarm() noexcept;

 private:
  const uint16_t number_;
  std::unique_ptr<NetDevice> device_;
  Output output_;
  List<Packet> queue_;
};

}  // namespace nobounce::backend
