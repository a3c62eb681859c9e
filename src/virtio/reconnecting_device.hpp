// A virtio-net whose back-end may go and come back: `--on-disconnect wait`.
//
//          disconnect                       handshake done, features cover the old ones
//   up ---------------> waiting (link down) ------------------------------------------> up
//    |                     |
//    | breach              | poorer features or MTU
//    v                     v
//   broken (latched) <-----+
//
//   state     link  broken  transmit           receive
//   up        up    no      the inner device   the inner device
//   waiting   down  no      dropped, counted   looks whether there is a new inner device
//   broken    down  yes     nothing            nothing
//
// What is not kept: everything that was in the rings. The inner device is destroyed as soon as it is
// lost, so packets and posted pages come home, once, before the next one exists; pages that sockets
// hold go home to the old page_pool's record (page_pool.hpp, "Life"). The next one has rings of its own:
// zeroed, index 0, over the memory of the old ones, which is never read again (TM-33, TM-34).
// What is kept: name, MAC, MTU, features. A device that offers less is refused and ends as broken, never
// silently downgraded (TM-28); one that offers more is used as before.
//
// Waited for is a disconnect alone: the socket was closed, or its process died. A living device that
// breaks the rules of the rings (V2) or of the control protocol (V3), or a region whose memory was
// taken away, stays broken as it does without this wrapper: sockets fail with network_down within a
// second, nothing is tried again. It was trusted with nothing before and has shown why; whether to
// deal with it once more is the operator's decision.
// A back-end that disconnected but still runs may go on writing to the region: pages that went home
// early can change under us, as any shared memory can at any time (TM-2).
//
// Threads: the pair's, as NetDevice; the blocking part is the Reconnector's. One queue pair.
// Cost: one branch a call. Losing a device destroys it in the pair's thread: O(queue size), frees, and
// at most what the transport takes to let go; the new one is allocated by the helper thread.
// Counters: "reconnect.attempts", "reconnect.count" (came back), "reconnect.waiting" (0 or 1),
// "reconnect.tx_dropped". Spec: virtio.md 13; TM-28, TM-33, TM-34; C058, C113, C136.
#pragma once

#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "netdev/net_device.hpp"
#include "virtio/reconnector.hpp"
#include "virtio/virtio_net.hpp"

namespace nobounce::virtio {

class ReconnectingDevice final : public NetDevice {
 public:
  // `first` works, with one queue pair; `reconnector` opens the next ones with first's name and InUse.
  static Result<std::unique_ptr<ReconnectingDevice>> create(
      std::unique_ptr<VirtioNet> first, std::unique_ptr<Reconnector> reconnector, Clock& clock,
      CounterRegistry& counters);

  [[nodiscard]] const char* name() const noexcept override { return name_.c_str(); }
  [[nodiscard]] MacAddress mac() const noexcept override { return mac_; }
  [[nodiscard]] uint16_t mtu() const noexcept override { return mtu_; }
  [[nodiscard]] DeviceFeatures features() const noexcept override { return features_; }
  [[nodiscard]] bool link_up() const noexcept override {
    return inner_ != nullptr && inner_->link_up();
  }
  [[nodiscard]] bool is_broken() const noexcept override {
    return refusal_ != nullptr || (inner_ != nullptr && inner_->is_broken() && !is_lost());
  }
  [[nodiscard]] const char* broken_reason() const noexcept override;
  [[nodiscard]] DmaDevice* dma() noexcept override { return dma_; }
  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  // Also where an inner device is lost and where a new one is taken, never both in one call: between
  // the two, whoever looks at link_up() after each call sees it down.
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t queue) noexcept override;
  [[nodiscard]] bool is_idle(uint16_t queue) const noexcept override {
    return inner_ == nullptr || inner_->is_idle(queue);
  }
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override;
  [[nodiscard]] bool arm(uint16_t queue) noexcept override;
  void disarm(uint16_t queue) noexcept override;
  [[nodiscard]] WaitHandle wait_handle(uint16_t queue) noexcept override;
  void acknowledge(uint16_t queue) noexcept override;

 private:
  ReconnectingDevice(std::unique_ptr<VirtioNet> first, std::unique_ptr<Reconnector> reconnector,
                     Clock& clock, CounterRegistry& counters);
  // The inner device is broken because the other end went away.
  [[nodiscard]] bool is_lost() const noexcept { return inner_->breach() == Breach::device_gone; }
  void lose() noexcept;
  void adopt() noexcept;
  void watch_inner() noexcept;

  std::string name_;
  MacAddress mac_;
  uint16_t mtu_;
  DeviceFeatures features_;
  DmaDevice* dma_;
  Clock& clock_;
  UniqueFd wait_;  // epoll: the Reconnector's news and the inner device's handle
  std::unique_ptr<Reconnector> reconnector_;
  std::unique_ptr<VirtioNet> inner_;  // null while waiting
  bool is_watched_ = false;           // the inner device's handle is in wait_
  uint64_t up_since_ns_;
  const char* refusal_ = nullptr;
  Counter count_, waiting_, tx_dropped_;
};

}  // namespace nobounce::virtio
