// The last stop before the device: one burst of frames, and what the device cannot do itself.
//
// A super-packet is cut here when the device has no TSO, a datagram above the MTU always; a partial
// checksum is completed when the device has no checksum offload. The queue is the burst (kBurstMax
// frames) plus at most one packet that is being cut; when it does not empty because the device is
// full, full() holds the senders back.
//
// Threads: the shard's. Cost: O(1) a frame. Spec: G-1, G-4; C047, C123.
#pragma once

#include <cstdint>
#include <string>

#include "netdev/fragmenter.hpp"
#include "netdev/gso.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce {

class Output {
 public:
  // Counters are "NAME.tx.*" and "NAME.drop.*"; several may share a name. The device outlives it.
  Output(ShardContext& context, NetDevice& device, const std::string& name);

  // No further frame can be taken now.
  [[nodiscard]] bool full() const noexcept { return burst_.full() || is_cutting(); }
  [[nodiscard]] bool empty() const noexcept { return burst_.empty() && !is_cutting(); }
  // Takes a whole frame, head at the Ethernet header. Asserts !full().
  void push(PacketPtr frame) noexcept;
  // Hands everything to the device; what does not fit stays.
  void transmit() noexcept;

 private:
  void enqueue(PacketPtr frame) noexcept;
  [[nodiscard]] bool is_cutting() const noexcept {
    return !splitter_.done() || !fragmenter_.done();
  }
  void cut() noexcept;
  [[nodiscard]] bool device_takes(const Packet& frame) const noexcept;

  NetDevice& device_;
  PacketBurst burst_;
  GsoSplitter splitter_;  // of the two one at most has something
  Fragmenter fragmenter_;
  Counter sent_;
  Counter bursts_;
  Counter held_;         // transmit() left frames behind
  Counter segmented_;    // super-packets cut in software
  Counter fragmented_;   // datagrams cut into fragments
  Counter checksummed_;  // checksums completed in software
  Counter cut_waits_;    // the packet pool was empty while cutting
  Counter dropped_bad_gso_;
  Counter dropped_checksum_;
  Counter dropped_broken_;
};

}  // namespace nobounce
