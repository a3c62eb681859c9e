// TapDevice: the kernel at the other end of a TAP, as a NetDevice.
//
//   receive()   TAP -> packets: one readv(2) a frame, straight into private pages that lie ready for
//               the largest; the head is copied from there (netdev/received_frame.hpp).
//   transmit()  packets -> TAP: one writev(2) of net header, head and frags.
//
// What the kernel says about checksum and segmentation is judged as a guest's word is
// (net_header.hpp). A frame that finds no packet or no pages is read and dropped, counted, so that
// the TAP does not stay readable. When the TAP is full (EAGAIN) the packet stays with the caller,
// transmit_room() is 0 until it can be written, and arm() watches for that; every other failure
// drops the frame with a counter. A TAP that was deleted breaks the device.
// A super-frame whose IPv4 header checksum is not right is mended on the way out (C123).
//
// All queues of the interface appear as one: each is served, and frames go out by the queue on which
// their flow came in.
// An owner without room behind it says set_receive_wanted(false): the TAP is then neither read nor
// watched, and what floods it is dropped by the kernel at the interface's own bound (C067).
//
// Counters: "tap.rx.frames", ".bytes", ".super_frames", ".drop.<reason>"; "tap.tx." the same,
// "tap.tx.eagain", "tap.tx.ipv4_checksum_fixed".
// Threads: the one that drives it. Cost: one system call a frame, and no copy but the kernel's and
// the head's; allocates in open() only.
// Spec: virtio.md 8; C024, C061, C067, C115, C123.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>
#include <vector>

#include "backend/flow_steering.hpp"
#include "backend/tap_interface.hpp"
#include "netdev/net_device.hpp"
#include "netdev/received_frame.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce::backend {

// What the kernel had against a frame that was written.
enum class TapRefusal : uint8_t {
  interface_down,  // EIO
  invalid,         // EINVAL: a header that does not fit its frame
  no_memory,       // ENOBUFS, ENOMEM
  gone,            // the interface was deleted
  other,
};
inline constexpr size_t kTapRefusals = 5;
[[nodiscard]] const char* to_string(TapRefusal reason) noexcept;

struct TapCounters {
  explicit TapCounters(CounterRegistry& registry);

  Counter rx_frames, rx_bytes, rx_super_frames;
  Counter tx_frames, tx_bytes, tx_super_frames, tx_eagain, tx_ipv4_checksum_fixed;
  std::array<Counter, kDrops> rx_drops;  // of the reasons that can occur here
  std::array<Counter, kDrops> tx_drops;
  std::array<Counter, kTapRefusals> tx_refusals;
};

class TapDevice final : public NetDevice {
 public:
  // Interface and context outlive the device. `mac`: of this side, for a stack on top.
  static Result<std::unique_ptr<TapDevice>> open(TapInterface& interface, ShardContext& context,
                                                 CounterRegistry& counters, MacAddress mac);
  ~TapDevice() override;

  [[nodiscard]] const char* name() const noexcept override { return interface_.name().c_str(); }
  [[nodiscard]] MacAddress mac() const noexcept override { return mac_; }
  [[nodiscard]] uint16_t mtu() const noexcept override { return interface_.mtu(); }
  [[nodiscard]] DeviceFeatures features() const noexcept override;
  [[nodiscard]] bool link_up() const noexcept override { return !broken_; }
  [[nodiscard]] bool is_broken() const noexcept override { return broken_; }

  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t) noexcept override {}
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override;

  [[nodiscard]] bool arm(uint16_t queue) noexcept override;
  // The epoll set is level-triggered: it is no burden while nobody waits on it.
  void disarm(uint16_t) noexcept override {}
  void set_receive_wanted(bool wanted) noexcept override { receive_wanted_ = wanted; }
  [[nodiscard]] WaitHandle wait_handle(uint16_t) noexcept override { return {epoll_.get()}; }
  void acknowledge(uint16_t) noexcept override { static_cast<void>(look()); }

 private:
  struct Queue {
    int fd = -1;
    uint32_t watched = 0;  // epoll events asked for
    bool is_full = false;  // the last write found no room
  };
  enum class Sending : uint8_t { done, waits };  // done: sent or dropped

  TapDevice(TapInterface& interface, ShardContext& context, CounterRegistry& counters,
            MacAddress mac, UniqueFd epoll);

  [[nodiscard]] size_t look() noexcept;
  void give_up() noexcept;

  // tap_receive.cc
  size_t receive_queue(uint16_t index, PacketBurst& burst) noexcept;
  [[nodiscard]] bool lay_out_pages() noexcept;
  [[nodiscard]] std::expected<PacketPtr, Drop> make_packet(PacketPtr packet, size_t bytes) noexcept;
  [[nodiscard]] std::expected<void, Drop> settle_offloads(Packet& packet) const noexcept;

  // tap_transmit.cc
  [[nodiscard]] Sending send(Packet& packet) noexcept;
  [[nodiscard]] size_t gather(Packet& packet) noexcept;
  [[nodiscard]] Sending on_write_error(Queue& queue, int error) noexcept;

  TapInterface& interface_;
  ShardContext& context_;
  TapCounters counters_;
  const MacAddress mac_;
  const size_t header_bytes_;  // 12 or 0
  UniqueFd epoll_;
  std::vector<Queue> queues_;
  FlowSteering steering_;
  uint16_t next_queue_ = 0;  // where receive() begins: round robin
  bool receive_wanted_ = true;
  bool broken_ = false;

  // Where the next frame lands; null where the last frame took its page.
  std::array<Page*, kFramePagesMax> pages_{};
  std::array<std::byte, wire::kNetHeaderBytes> header_;
  std::array<iovec, 1 + kFramePagesMax> landing_;
  std::array<iovec, 2 + kFragsMax> pieces_;  // of the frame being sent: net header, head, frags
  std::unique_ptr<std::byte[]> flat_;        // a frame with shared frags, copied out
};

}  // namespace nobounce::backend
