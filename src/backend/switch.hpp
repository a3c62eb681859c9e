// A learning switch: joins guests with each other and, when there is one, with an uplink (a TAP).
//
//   guest ports --\                         /-- queue -> fall-backs -> guest ports
//                  >-- forward by MAC table -
//   uplink -------/                         \-- queue -> fall-backs -> uplink
//
// Two live ports are a wire: what one gives the other gets, and when that one is full nothing more is
// taken in (back-pressure: the frame stays in the guest's ring or in the TAP's queue; nothing is lost
// here and nobody spins). With more ports one slow guest must not hold up the others: a frame for a full
// queue is dropped and counted. An uplink with nobody behind the switch is not read at all.
//
// Super-frames and partial checksums pass through as they are; a port whose device cannot take them
// gets wire frames (G-1, C123). Frames are references to pages: a flooded frame is cloned, not copied.
//
// Counters: "switch.frames", "switch.flooded", "switch.held_back", "switch.ports",
// "switch.table_evictions", "switch.drop.*"; of all ports together "switch.tx.*".
// Threads: the back-end's service thread. Cost: a round is O(ports + frames * destinations);
// everything but a port is allocated at open().
// Spec: design "backend/"; C024, C061, C067, C123.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/mac_table.hpp"
#include "backend/network.hpp"
#include "backend/port_wrapper.hpp"
#include "backend/switch_port.hpp"
#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce::backend {

// Makes a device on the switch's packets and pages.
using UplinkFactory = std::function<Result<std::unique_ptr<NetDevice>>(ShardContext& context)>;

struct SwitchOptions {
  size_t guests_max = 64;
  MacAddress mac{{0x02, 0x6e, 0x62, 0x00, 0x00, 0x00}};  // of the ports; never on the wire
  // What ports hold at most, and a burst in and out of each device (and clones of flooded frames).
  size_t packets = 32768;
  uint64_t private_bytes = 512 << 20;  // of pages for frames on their way; touched on use only
  PortWrapper wrap{};
  UplinkFactory uplink{};
};

class Switch final : public Network {
 public:
  static Result<std::unique_ptr<Network>> open(const SwitchOptions& options,
                                               const NetworkPlace& place);
  ~Switch() override;

  [[nodiscard]] size_t guests_max() const noexcept override { return options_.guests_max; }
  [[nodiscard]] Result<void> join(Session& session) override;
  void leave(Session& session) noexcept override;
  [[nodiscard]] bool serves(const Session& session) const noexcept override;
  size_t round() noexcept override;
  void sleep(uint64_t limit_ns) noexcept override;

 private:
  struct Guest {
    const Session* session;
    SwitchPort* port;
  };

  Switch(const SwitchOptions& options, const NetworkPlace& place, UniqueFd epoll,
         std::unique_ptr<PrivateArena> arena);
  [[nodiscard]] Result<SwitchPort*> add_port(std::unique_ptr<NetDevice> device);
  [[nodiscard]] bool must_hold_back(SwitchPort& from) noexcept;
  size_t receive(SwitchPort& from) noexcept;
  void forward(SwitchPort& from, PacketPtr frame) noexcept;
  void flood(SwitchPort& from, PacketPtr frame) noexcept;
  void offer(SwitchPort& to, PacketPtr frame) noexcept;
  [[nodiscard]] SwitchPort* only_other(const SwitchPort& from) noexcept;

  const SwitchOptions options_;
  BackendCounters& backend_counters_;
  CounterRegistry& registry_;
  MonotonicClock clock_;
  SystemRandom random_;
  TimerQueue timers_;
  PacketPool packets_;
  std::unique_ptr<PrivateArena> arena_;
  CopyLedger copies_;
  ShardContext context_;
  UniqueFd epoll_;  // the wake fd and every port's handles
  MacTable table_;
  std::vector<std::unique_ptr<SwitchPort>> ports_;
  std::vector<Guest> guests_;
  SwitchPort* uplink_ = nullptr;
  uint16_t next_number_ = 0;
  PacketBurst burst_;
  Counter frames_, flooded_, held_back_, ports_gauge_, evictions_;
  Counter dropped_short_, dropped_gso_, dropped_full_, dropped_alone_, dropped_same_port_,
      dropped_no_packets_;
};

}  // namespace nobounce::backend
