// In-memory network for deterministic tests: no threads, no wall clock, one seed.
//
//   StackEnd      what one shard owns (pools, timers, counters) with a ShardContext on it
//   WireLink      two NetDevices joined by a wire that loses, reorders, duplicates and corrupts
//   ScriptDevice  a NetDevice whose transmitted frames a test pops and into which it injects frames
//
// Received packets keep the convention of skb/packet.hpp: the first kHeaderWindow bytes in the
// private head, the whole frame in private pages of the receiving end, the first frag begins behind
// the window (it may be empty), so that give_back_head() works.
//
//   ManualClock clock;
//   StackEnd left(clock, 1), right(clock, 2);
//   WireLink link(clock, /*seed=*/7, left.context, right.context, {.loss = 20});
//   ip::Layer ip(left.context, link.left(), {...});
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce::test {

using ByteVector = std::vector<std::byte>;

// ---- one shard's belongings --------------------------------------------------------------------

struct StackEndOptions {
  uint64_t seed = 1;
  size_t packets = 2048;
  uint64_t arena_bytes = 16 << 20;
  size_t timers = 8192;
};

// Everything is returned when it is destroyed, or the test fails ("all pools full again").
struct StackEnd {
  explicit StackEnd(Clock& clock, uint64_t seed = 1)
      : StackEnd(clock, StackEndOptions{.seed = seed}) {}
  StackEnd(Clock& clock, const StackEndOptions& options);
  ~StackEnd();

  // Takes the clock's time as the round's time and fires due timers.
  void begin_round();
  [[nodiscard]] uint64_t count(const std::string& name) const { return counters.value(name); }
  // A private page with these bytes at its start, as a frag that owns one reference.
  [[nodiscard]] Frag make_frag(Bytes bytes, uint32_t offset = 0);

  CounterRegistry counters;
  SeededRandom random;
  TimerQueue timers;
  PacketPool packets;
  std::unique_ptr<PrivateArena> arena;
  CopyLedger copies;
  ShardContext context;
};

// ---- frames
// --------------------------------------------------------------------------------------

// A frame in flight: plain bytes and what the sender left to the device.
struct WireFrame {
  ByteVector bytes;
  Checksum checksum = Checksum::none;
  uint16_t csum_start = 0;
  uint16_t csum_offset = 0;
  Gso gso = Gso::none;
  uint16_t gso_size = 0;
};

// All bytes of a packet: head, then frags.
[[nodiscard]] ByteVector flatten(const Packet& packet);
// The frame a packet is, with its offload fields.
[[nodiscard]] WireFrame to_frame(const Packet& packet);
// A received packet in `context`'s pools. Null when a pool is empty.
[[nodiscard]] PacketPtr make_received(ShardContext& context, const WireFrame& frame);

// ---- the link
// ------------------------------------------------------------------------------------

struct WireOptions {
  uint16_t mtu = 1500;
  DeviceFeatures features{.tx_checksum = true, .tso4 = true};  // of both ends
  uint32_t loss = 0;                                           // per mille, each frame
  uint32_t reorder = 0;    // per mille: the frame takes reorder_delay_ns longer
  uint32_t duplicate = 0;  // per mille
  // Per mille: one bit behind the Ethernet header of an IPv4 frame is flipped, after checksums were
  // completed. (ARP has no checksum, and a real wire's own check guards the Ethernet header.)
  uint32_t corrupt = 0;
  uint64_t delay_ns = 0;
  uint64_t reorder_delay_ns = 100'000;
  uint64_t bytes_per_second = 0;  // 0: no limit
  size_t queue_depth = 1024;      // frames sent and not yet taken by the receiver; then it blocks
};

class WireLink {
 public:
  // Both contexts outlive the link.
  WireLink(Clock& clock, uint64_t seed, ShardContext& left, ShardContext& right,
           const WireOptions& options = {});
  ~WireLink();

  [[nodiscard]] NetDevice& left() noexcept;
  [[nodiscard]] NetDevice& right() noexcept;

  // May be changed at any time; features are read by the layers at construction. options.mtu is
  // for tests of MTU changes.
  WireOptions options;

  // Time at which the next frame arrives anywhere; nothing when the wire is empty.
  [[nodiscard]] std::optional<uint64_t> next_arrival_ns() const;
  [[nodiscard]] size_t in_flight() const;
  void set_link_up(bool up) noexcept { link_up_ = up; }
  void break_device() noexcept { broken_ = true; }

  struct Facts {
    uint64_t frames = 0;  // put on the wire, after segmentation
    uint64_t lost = 0;
    uint64_t reordered = 0;
    uint64_t duplicated = 0;
    uint64_t corrupted = 0;
    uint64_t too_big = 0;       // dropped at transmit
    uint64_t no_buffer = 0;     // dropped at receive: pools empty
    uint64_t super_frames = 0;  // segmented here or handed over whole
  };
  Facts facts;
  // Sees every frame as it is put on the wire, before impairments. End 0 is left.
  std::move_only_function<void(int from, const WireFrame&)> tap;

 private:
  class End;
  friend class End;
  void put(int from, WireFrame frame);
  void impair(int from, WireFrame frame);

  Clock& clock_;
  SeededRandom random_;
  bool link_up_ = true;
  bool broken_ = false;
  uint64_t sequence_ = 0;
  std::array<std::unique_ptr<End>, 2> ends_;
};

// ---- the script device
// ---------------------------------------------------------------------------

class ScriptDevice final : public NetDevice {
 public:
  struct Options {
    MacAddress mac{{0x02, 0, 0, 0, 0, 1}};
    uint16_t mtu = 1500;
    DeviceFeatures features;
    size_t room = 1024;  // frames it holds until the test pops them
  };
  ScriptDevice(ShardContext& context, Options options);

  // ---- the test's side ----
  void inject(WireFrame frame);
  void inject(ByteVector bytes) { inject(WireFrame{.bytes = std::move(bytes)}); }
  // The oldest transmitted frame, or nothing.
  [[nodiscard]] std::optional<WireFrame> pop();
  [[nodiscard]] size_t sent() const noexcept { return sent_.size(); }
  void set_room(size_t frames) noexcept { options_.room = frames; }
  void set_link_up(bool up) noexcept { link_up_ = up; }
  void set_broken(bool broken) noexcept { broken_ = broken; }
  uint64_t transmit_calls = 0;

  // ---- NetDevice ----
  [[nodiscard]] const char* name() const noexcept override { return "script"; }
  [[nodiscard]] MacAddress mac() const noexcept override { return options_.mac; }
  [[nodiscard]] uint16_t mtu() const noexcept override { return options_.mtu; }
  [[nodiscard]] DeviceFeatures features() const noexcept override { return options_.features; }
  [[nodiscard]] bool link_up() const noexcept override { return link_up_; }
  [[nodiscard]] bool is_broken() const noexcept override { return broken_; }
  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t) noexcept override {}
  [[nodiscard]] size_t transmit_room(uint16_t) noexcept override {
    return options_.room - std::min(options_.room, sent_.size());
  }
  [[nodiscard]] bool arm(uint16_t) noexcept override { return injected_.empty(); }
  void disarm(uint16_t) noexcept override {}
  [[nodiscard]] WaitHandle wait_handle(uint16_t) noexcept override { return {}; }
  void acknowledge(uint16_t) noexcept override {}

 private:
  ShardContext& context_;
  Options options_;
  std::deque<WireFrame> sent_;
  std::deque<WireFrame> injected_;
  bool link_up_ = true;
  bool broken_ = false;
};

}  // namespace nobounce::test
