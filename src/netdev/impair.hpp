// ImpairedDevice: a NetDevice around another one that damages traffic, both ways, seeded.
//
//   ip -> transmit() -> wire packets -> lane (impair_lane.hpp) -> due -> inner.transmit()
//   ip <- receive()  <- due <- lane <- wire packets <- inner.receive()
//
// It is a wire, so what passes it are wire packets: super-frames are cut at their gso_size, partial
// checksums completed, and nothing is vouched for any more, so that the receiving stack has to
// notice the damage. It therefore accepts super-frames and partial checksums whatever `inner` does,
// and delivers neither.
//
// Packets that become due while the owner sleeps wake it: wait_handle() covers the inner device and
// a timer that arm() sets. Due packets that the inner device has no room for wait, and then so does
// the caller (transmit_room() is 0); what a slow wire has no room for is dropped, as a router does.
//
// Serves queue pair 0 alone, as a shard does.
// Counters: "impair.tx.*" and "impair.rx.*", see ImpairCounters.
// Threads: the shard's. Packets still on their way are dropped with the device.
// Cost: as impair_lane.hpp, one more call of the inner device a round; allocates in open() only.
#pragma once

#include <memory>

#include "base/unique_fd.hpp"
#include "netdev/impair_lane.hpp"
#include "netdev/impair_options.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce {

class ImpairedDevice final : public NetDevice {
 public:
  // Takes over `inner` (also on failure). `context` outlives the device. Says what it does, with the
  // seed, on standard error.
  static Result<std::unique_ptr<ImpairedDevice>> open(std::unique_ptr<NetDevice> inner,
                                                      const ImpairOptions& options,
                                                      ShardContext& context,
                                                      CounterRegistry& counters);
  ~ImpairedDevice() override;

  [[nodiscard]] const char* name() const noexcept override { return inner_->name(); }
  [[nodiscard]] MacAddress mac() const noexcept override { return inner_->mac(); }
  [[nodiscard]] uint16_t mtu() const noexcept override { return inner_->mtu(); }
  [[nodiscard]] DeviceFeatures features() const noexcept override {
    return {.tx_checksum = true, .tso4 = true, .tso6 = true};
  }
  [[nodiscard]] bool link_up() const noexcept override { return inner_->link_up(); }
  [[nodiscard]] bool is_broken() const noexcept override { return inner_->is_broken(); }
  [[nodiscard]] NetDevice* leaf() noexcept override { return inner_->leaf(); }
  [[nodiscard]] DmaDevice* dma() noexcept override { return inner_->dma(); }

  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t queue) noexcept override;
  [[nodiscard]] bool is_idle(uint16_t queue) const noexcept override {
    return tx_.lane.size() == 0 && ready_.empty() && inner_->is_idle(queue);
  }
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override;
  [[nodiscard]] bool arm(uint16_t queue) noexcept override;
  void disarm(uint16_t queue) noexcept override { inner_->disarm(queue); }
  void set_receive_wanted(bool wanted) noexcept override;
  // None when the inner device has none and must be polled.
  [[nodiscard]] WaitHandle wait_handle(uint16_t queue) noexcept override;
  void acknowledge(uint16_t queue) noexcept override;
  [[nodiscard]] size_t headroom_needed() const noexcept override {
    return inner_->headroom_needed();
  }

  // When the next packet is due, either way; nothing: none is on its way.
  [[nodiscard]] std::optional<uint64_t> next_due_ns() const noexcept;

 private:
  ImpairedDevice(std::unique_ptr<NetDevice> inner, const ImpairOptions& options,
                 ShardContext& context, CounterRegistry& counters, UniqueFd epoll, UniqueFd timer);

  struct Direction {
    ImpairCounters counters;
    ImpairLane lane;
  };

  void admit(Direction& direction, PacketPtr packet) noexcept;
  void admit_super(Direction& direction, PacketPtr packet) noexcept;
  void flush(uint64_t now_ns) noexcept;
  size_t deliver(PacketBurst& burst) noexcept;
  [[nodiscard]] bool watch_inner() noexcept;
  [[nodiscard]] bool set_timer(std::optional<uint64_t> due_ns, uint64_t now_ns) noexcept;

  std::unique_ptr<NetDevice> inner_;  // first: pages of its pools are in the lanes
  ShardContext& context_;
  Direction tx_;
  Direction rx_;
  PacketBurst ready_;     // due, and not yet taken by the inner device
  PacketBurst incoming_;  // from the inner device, and not yet on the wire
  UniqueFd epoll_;
  UniqueFd timer_;
  int watched_fd_ = -1;        // the inner device's, in the epoll set
  uint64_t timer_due_ns_ = 0;  // what the timer is set to; 0: off
  bool receive_wanted_ = true;
};

}  // namespace nobounce
