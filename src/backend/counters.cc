#include "backend/counters.hpp"

#include <string>

namespace nobounce::backend {

const char* to_string(Drop reason) noexcept {
  switch (reason) {
    case Drop::short_frame:
      return "short_frame";
    case Drop::long_frame:
      return "long_frame";
    case Drop::csum_not_negotiated:
      return "csum_not_negotiated";
    case Drop::csum_range:
      return "csum_range";
    case Drop::gso_not_negotiated:
      return "gso_not_negotiated";
    case Drop::gso_invalid:
      return "gso_invalid";
    case Drop::no_packets:
      return "no_packets";
    case Drop::no_pages:
      return "no_pages";
    case Drop::not_ready:
      return "not_ready";
    case Drop::disabled:
      return "disabled";
    case Drop::cannot_fit:
      return "cannot_fit";
    case Drop::rx_stalled:
      return "rx_stalled";
    case Drop::memory_fault:
      return "memory_fault";
  }
  return "unknown";
}

const char* to_string(RingBreak reason) noexcept {
  switch (reason) {
    case RingBreak::none:
      return "none";
    case RingBreak::avail_index:
      return "avail_index";
    case RingBreak::head_range:
      return "head_range";
    case RingBreak::next_range:
      return "next_range";
    case RingBreak::chain_too_long:
      return "chain_too_long";
    case RingBreak::chain_bytes:
      return "chain_bytes";
    case RingBreak::indirect:
      return "indirect";
    case RingBreak::direction:
      return "direction";
    case RingBreak::unmapped:
      return "unmapped";
    case RingBreak::too_many_pieces:
      return "too_many_pieces";
    case RingBreak::buffer_too_small:
      return "buffer_too_small";
    case RingBreak::memory_fault:
      return "memory_fault";
  }
  return "unknown";
}

BackendCounters::BackendCounters(CounterRegistry& registry)
    : guest_tx_frames(registry.counter("backend.guest_tx_frames")),
      guest_tx_bytes(registry.counter("backend.guest_tx_bytes")),
      guest_rx_frames(registry.counter("backend.guest_rx_frames")),
      guest_rx_bytes(registry.counter("backend.guest_rx_bytes")),
      kicks(registry.counter("backend.kicks")),
      calls(registry.counter("backend.calls")),
      calls_suppressed(registry.counter("backend.calls_suppressed")),
      calls_saturated(registry.counter("backend.calls_saturated")),
      calls_rescued(registry.counter("backend.calls_rescued")),
      messages(registry.counter("backend.messages")),
      messages_refused(registry.counter("backend.messages_refused")),
      protocol_faults(registry.counter("backend.protocol_faults")),
      connections(registry.counter("backend.connections")),
      disconnections(registry.counter("backend.disconnections")) {
  for (size_t i = 0; i < kDrops; ++i) {
    drops[i] = registry.counter(std::string("backend.drop.") + to_string(static_cast<Drop>(i)));
  }
  for (size_t i = 1; i < kRingBreaks; ++i) {
    ring_broken[i] = registry.counter(std::string("backend.ring_broken.") +
                                      to_string(static_cast<RingBreak>(i)));
  }
}

}  // namespace nobounce::backend
