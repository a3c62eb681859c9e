// Two NetDevices joined by a queue of frames in private memory, safe between threads: for tests of
// whole stacks, driven inline or each by an I/O thread of its own. Frames are handed over whole
// (super-frames and partial checksums stay as they are). For bad wires see wire_link.hpp.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "base/unique_fd.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "support/wire_link.hpp"

namespace nobounce::test {

struct PipeOptions {
  uint16_t mtu = 1500;
  size_t depth = 256;  // frames a direction; then transmit() blocks
};

// The wire: outlives both devices.
class Pipe {
 public:
  explicit Pipe(const PipeOptions& pipe_options = {}) : options(pipe_options) {
    for (Direction& direction : directions_) direction.signal = UniqueFd(eventfd(0, EFD_NONBLOCK));
  }

  const PipeOptions options;
  std::atomic<bool> broken{false};
  std::atomic<uint32_t> loss_per_mille{0};  // of frames put on the wire

 private:
  friend class PipeDevice;
  struct Direction {
    std::mutex lock;
    std::deque<WireFrame> frames;
    UniqueFd signal;
    bool armed = false;  // under lock: the receiver sleeps
    SeededRandom random{1};
  };
  Direction directions_[2];
};

class PipeDevice final : public NetDevice {
 public:
  PipeDevice(Pipe& pipe, int end, ShardContext& context)
      : pipe_(pipe), end_(end), context_(context) {}

  [[nodiscard]] const char* name() const noexcept override { return "pipe"; }
  [[nodiscard]] MacAddress mac() const noexcept override {
    return {{2, 0, 0, 0, 0, static_cast<uint8_t>(end_ + 1)}};
  }
  [[nodiscard]] uint16_t mtu() const noexcept override { return pipe_.options.mtu; }
  [[nodiscard]] DeviceFeatures features() const noexcept override {
    return {.tx_checksum = true, .tso4 = true, .tso6 = false, .rx_checksum = true, .lro = true};
  }
  [[nodiscard]] bool link_up() const noexcept override { return true; }
  [[nodiscard]] bool is_broken() const noexcept override { return pipe_.broken.load(); }

  size_t transmit(uint16_t, PacketBurst& burst) noexcept override {
    Pipe::Direction& out = pipe_.directions_[end_];
    const std::lock_guard guard(out.lock);
    size_t sent = 0;
    while (sent < burst.size() && out.frames.size() < pipe_.options.depth) {
      if (out.random.below(1000) >= pipe_.loss_per_mille.load(std::memory_order_relaxed)) {
        out.frames.push_back(to_frame(*burst[sent]));
      }
      burst[sent].reset();
      ++sent;
    }
    burst.drop_front(sent);
    if (sent > 0 && out.armed) signal(out);
    return sent;
  }

  size_t receive(uint16_t, PacketBurst& burst) noexcept override {
    Pipe::Direction& in = pipe_.directions_[1 - end_];
    const std::lock_guard guard(in.lock);
    size_t received = 0;
    while (!in.frames.empty() && burst.room() > 0) {
      PacketPtr packet = make_received(context_, in.frames.front());
      if (packet == nullptr) break;  // pools are empty: the wire waits
      in.frames.pop_front();
      burst.push(std::move(packet));
      ++received;
    }
    return received;
  }

  void reclaim(uint16_t) noexcept override {}
  [[nodiscard]] size_t transmit_room(uint16_t) noexcept override {
    Pipe::Direction& out = pipe_.directions_[end_];
    const std::lock_guard guard(out.lock);
    return pipe_.options.depth - out.frames.size();
  }
  [[nodiscard]] bool arm(uint16_t) noexcept override {
    Pipe::Direction& in = pipe_.directions_[1 - end_];
    const std::lock_guard guard(in.lock);
    in.armed = true;
    return in.frames.empty() && !pipe_.broken.load();
  }
  void disarm(uint16_t) noexcept override {
    Pipe::Direction& in = pipe_.directions_[1 - end_];
    const std::lock_guard guard(in.lock);
    in.armed = false;
  }
  [[nodiscard]] WaitHandle wait_handle(uint16_t) noexcept override {
    return {pipe_.directions_[1 - end_].signal.get()};
  }
  void acknowledge(uint16_t) noexcept override {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n =
        ::read(pipe_.directions_[1 - end_].signal.get(), &count, sizeof count);
  }

 private:
  static void signal(Pipe::Direction& direction) noexcept {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(direction.signal.get(), &one, sizeof one);
  }

  Pipe& pipe_;
  const int end_;
  ShardContext& context_;
};

}  // namespace nobounce::test
