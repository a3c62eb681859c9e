// CaptureDevice: a NetDevice around another one that writes every frame to a pcapng file.
//
//   ip -> transmit() -> private copy -> inner.transmit() -> what left goes to the writer's queue
//   ip <- receive()  <- inner.receive() -> private copy  -> writer's queue
//
// The copy is taken by Packet::read, so each byte of shared memory is read once, and the file holds
// what was read, not what the other side wrote later. A transmitted frame is recorded when it left
// and exactly as it was handed down: super-frames whole, partial checksums unfilled.
// The queue is bounded; frames that find it full are dropped from the capture (never from the
// traffic), counted, and named in the file's closing statistics (C107).
//
// Counters: "capture.frames", "capture.dropped", "capture.bytes", "capture.write_errors".
// Threads: as NetDevice; queues share the file under a short lock. Cost: one copy of each frame.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "netdev/capture_writer.hpp"
#include "netdev/net_device.hpp"
#include "netdev/pcapng.hpp"

namespace nobounce {

struct CaptureOptions {
  std::string path{};
  uint32_t snap_length = kPacketBytesMax;  // bytes kept of each frame
  size_t queue_bytes = 8 << 20;            // waiting to be written; a second buffer is as large
};

class CaptureDevice final : public NetDevice {
 public:
  // Takes over `inner` (also on failure). `clock` is the shard's; the file's times are its time
  // moved to the wall clock's now.
  static Result<std::unique_ptr<CaptureDevice>> open(std::unique_ptr<NetDevice> inner,
                                                     const CaptureOptions& options, Clock& clock,
                                                     CounterRegistry& counters);
  ~CaptureDevice() override;

  // Waits until the file holds all frames so far.
  void drain() noexcept { writer_->drain(); }

  [[nodiscard]] const char* name() const noexcept override { return inner_->name(); }
  [[nodiscard]] MacAddress mac() const noexcept override { return inner_->mac(); }
  [[nodiscard]] uint16_t mtu() const noexcept override { return inner_->mtu(); }
  [[nodiscard]] DeviceFeatures features() const noexcept override { return inner_->features(); }
  [[nodiscard]] uint16_t queue_pairs() const noexcept override { return inner_->queue_pairs(); }
  [[nodiscard]] bool link_up() const noexcept override { return inner_->link_up(); }
  [[nodiscard]] bool is_broken() const noexcept override { return inner_->is_broken(); }
  [[nodiscard]] const char* broken_reason() const noexcept override {
    return inner_->broken_reason();
  }
  [[nodiscard]] NetDevice* leaf() noexcept override { return inner_->leaf(); }
  [[nodiscard]] DmaDevice* dma() noexcept override { return inner_->dma(); }
  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t queue) noexcept override { inner_->reclaim(queue); }
  [[nodiscard]] bool is_idle(uint16_t queue) const noexcept override {
    return inner_->is_idle(queue);
  }
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override {
    return inner_->transmit_room(queue);
  }
  [[nodiscard]] bool arm(uint16_t queue) noexcept override { return inner_->arm(queue); }
  void disarm(uint16_t queue) noexcept override { inner_->disarm(queue); }
  [[nodiscard]] WaitHandle wait_handle(uint16_t queue) noexcept override {
    return inner_->wait_handle(queue);
  }
  void set_receive_wanted(bool wanted) noexcept override { inner_->set_receive_wanted(wanted); }
  void acknowledge(uint16_t queue) noexcept override { inner_->acknowledge(queue); }
  [[nodiscard]] size_t headroom_needed() const noexcept override {
    return inner_->headroom_needed();
  }

 private:
  // Blocks of one burst, built before it is known how many frames leave.
  struct Staging {
    std::unique_ptr<std::byte[]> bytes;
    std::array<size_t, kBurstMax> ends;  // of each block
  };

  CaptureDevice(std::unique_ptr<NetDevice> inner, std::unique_ptr<CaptureWriter> writer,
                const CaptureOptions& options, Clock& clock, CounterRegistry& counters);
  void stage(Staging& staging, size_t index, const Packet& packet, pcapng::Direction direction,
             uint16_t queue) noexcept;
  void commit(const Staging& staging, size_t count) noexcept;
  [[nodiscard]] uint64_t wall_time_ns() noexcept { return clock_.now_ns() + wall_offset_ns_; }

  std::unique_ptr<NetDevice> inner_;
  std::unique_ptr<CaptureWriter> writer_;
  Clock& clock_;
  uint64_t wall_offset_ns_;
  uint32_t snap_length_;
  std::vector<Staging> staging_;  // one a queue pair
  SharedCounter frames_, dropped_, bytes_;
};

}  // namespace nobounce
