// What the back-end counts, by name and reason. One registry, made at set-up; the data path only adds.
//
// Names: "backend.<what>", "backend.drop.<reason>", "backend.ring_broken.<reason>",
// "backend.refused.<reason>".
// Threads: the back-end's service thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/counters.hpp"

namespace nobounce::backend {

// Why one frame was dropped: a content error (class V1) or a bound that was hit.
enum class Drop : uint8_t {
  short_frame,          // no room for a net header and an Ethernet header
  long_frame,           // longer than any frame may be
  csum_not_negotiated,  // partial checksum without the feature
  csum_range,           // the checksum field lies outside the frame
  gso_not_negotiated,   // segmentation of a type that was not agreed
  gso_invalid,          // no segment size, or no partial checksum with it
  no_packets,           // our packet pool is empty
  no_pages,             // our private pages are used up
  not_ready,            // towards a guest whose rings do not run
  disabled,             // from a ring that is started but not enabled
  cannot_fit,           // larger than the receive buffers of the guest can ever be
  rx_stalled,           // waited too long for receive buffers that would hold it
  memory_fault,         // the guest took its memory away during the copy
};
inline constexpr size_t kDrops = 13;
[[nodiscard]] const char* to_string(Drop reason) noexcept;

// Why a ring is not looked at any more (class V2): latched until the front-end sets it up anew.
enum class RingBreak : uint8_t {
  none,
  avail_index,       // further ahead than the ring has entries
  head_range,        // an avail entry names no descriptor
  next_range,        // a chain link names no descriptor
  chain_too_long,    // more descriptors than the ring has: a loop
  chain_bytes,       // more than 2^32 bytes
  indirect,          // an indirect table, which we do not offer
  direction,         // readable where writable is expected, or the reverse
  unmapped,          // a buffer outside the memory table
  too_many_pieces,   // chains that share descriptors
  buffer_too_small,  // a receive buffer without room for the net header
  memory_fault,      // the guest took its memory away
};
inline constexpr size_t kRingBreaks = 12;
[[nodiscard]] const char* to_string(RingBreak reason) noexcept;

struct BackendCounters {
  explicit BackendCounters(CounterRegistry& registry);

  void drop(Drop reason, uint64_t frames = 1) noexcept {
    drops[static_cast<size_t>(reason)].add(frames);
  }

  Counter guest_tx_frames;  // taken from the guest
  Counter guest_tx_bytes;
  Counter guest_rx_frames;  // given to the guest
  Counter guest_rx_bytes;
  Counter kicks;  // wake-ups by the guest
  Counter calls;  // notifications sent
  Counter calls_suppressed;
  Counter calls_saturated;  // the event was full: the guest has a notification it has not taken
  Counter calls_rescued;    // the guest made a call block; the watchdog ended it
  Counter messages;
  Counter messages_refused;  // legal form, illegal now
  Counter protocol_faults;   // illegal form: the connection is closed
  Counter connections;
  Counter disconnections;
  std::array<Counter, kDrops> drops;
  std::array<Counter, kRingBreaks> ring_broken;
};

}  // namespace nobounce::backend
