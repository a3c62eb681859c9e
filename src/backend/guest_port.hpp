// GuestPort: the guest at the other end of the rings, as a NetDevice for a stack on the device's side.
//
//   receive()   guest's transmit ring -> packets: the frame is copied once into private pages, its
//               first bytes again (from there) into the packet's head; the first frag begins behind
//               them, so that give_back_head() works as with any driver.
//   transmit()  packets -> guest's receive ring: net header, head and frags are copied into the
//               guest's buffers, several of them when they are mergeable.
//
// The guest is not trusted: its net header is copied once; lengths are bounded; partial checksums
// and segmentation count only when they were negotiated and lie inside the frame. What is wrong in a
// frame drops the frame (counted); what is wrong in a ring latches the ring (device_queue.hpp).
// A frame larger than the receive buffers can ever hold is dropped; one that must wait for buffers
// waits (back-pressure), at most kStallNs while others could go.
//
// All queue pairs of the guest appear as one: the port serves every started pair and steers by flow.
// Threads: the one that drives the stack; it is also the one that runs the session.
// Cost: one copy a byte, one publish a ring and call; allocates in the constructor only.
// Spec: virtio.md 8, 14; TM-79, C020, C021, C061, C115.
#pragma once

#include <expected>
#include <memory>
#include <vector>

#include "backend/flow_steering.hpp"
#include "backend/net_header.hpp"
#include "backend/piece_cursor.hpp"
#include "backend/session.hpp"
#include "base/clock.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "wire/virtio_net_hdr.hpp"

namespace nobounce::backend {

struct GuestPortOptions {
  MacAddress mac;  // of this side
  // Fds that must end a sleep on wait_handle() too: the control socket, the stop event.
  std::span<const int> wake_fds = {};
};

class GuestPort final : public NetDevice {
 public:
  static constexpr uint64_t kStallNs = 200 * kNsPerMs;

  // Session, context and counters outlive the port.
  static Result<std::unique_ptr<GuestPort>> open(Session& session, ShardContext& context,
                                                 BackendCounters& counters,
                                                 const GuestPortOptions& options);
  ~GuestPort() override;

  [[nodiscard]] const char* name() const noexcept override { return "guest"; }
  [[nodiscard]] MacAddress mac() const noexcept override { return mac_; }
  [[nodiscard]] uint16_t mtu() const noexcept override { return session_.mtu(); }
  [[nodiscard]] DeviceFeatures features() const noexcept override;
  [[nodiscard]] bool link_up() const noexcept override;
  [[nodiscard]] bool is_broken() const noexcept override;

  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t) noexcept override {}
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override;

  [[nodiscard]] bool arm(uint16_t queue) noexcept override;
  void disarm(uint16_t queue) noexcept override;
  [[nodiscard]] WaitHandle wait_handle(uint16_t) noexcept override { return {epoll_.get()}; }
  void acknowledge(uint16_t queue) noexcept override;

 private:
  enum class Delivery : uint8_t { sent, waits, dropped };
  using Checked = std::expected<void, Drop>;

  GuestPort(Session& session, ShardContext& context, BackendCounters& counters, MacAddress mac,
            UniqueFd epoll);

  // guest_port_receive.cc
  size_t receive_pair(uint16_t pair, PacketBurst& burst) noexcept;
  [[nodiscard]] std::expected<PacketPtr, Drop> take_frame(DeviceQueue& queue,
                                                          const Chain& chain) noexcept;
  [[nodiscard]] Checked fill(Packet& packet, PieceCursor& from, size_t frame_bytes) noexcept;
  [[nodiscard]] NetOffloads from_guest() const noexcept;

  // guest_port_transmit.cc
  [[nodiscard]] Delivery deliver(Packet& packet, uint16_t pair) noexcept;
  [[nodiscard]] NetOffloads to_guest() const noexcept;
  // Walks chains that hold `bytes` into chains_. `waits`: not enough buffers now.
  [[nodiscard]] Delivery collect(DeviceQueue& queue, size_t bytes) noexcept;
  [[nodiscard]] Delivery wait_or_drop(DeviceQueue& queue, uint16_t pair) noexcept;
  void write_frame(DeviceQueue& queue, const wire::VirtioNetHeader& header,
                   const Packet& packet) noexcept;
  [[nodiscard]] uint16_t pair_for(const Packet& packet) const noexcept;

  void watch_kicks() noexcept;

  struct Pair {
    bool waits_for_buffers = false;
    uint16_t seen = 0;              // avail index at which they did not suffice
    uint64_t stalled_since_ns = 0;  // 0: not stalled
  };
  struct Watched {
    UniqueFd fd;  // a duplicate: what we register we can also take out again
  };

  Session& session_;
  ShardContext& context_;
  BackendCounters& counters_;
  const MacAddress mac_;
  UniqueFd epoll_;
  std::vector<Pair> pairs_;
  std::vector<Chain> chains_;  // of the frame being delivered; reserved for a whole ring
  std::vector<Watched> watched_;
  uint64_t watched_generation_ = UINT64_MAX;
  FlowSteering steering_;
  uint16_t next_pair_ = 0;  // where receive() begins: round robin
};

}  // namespace nobounce::backend
