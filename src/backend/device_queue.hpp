// The device's side of one split virtqueue, written against a hostile driver.
//
// What it is: walks the avail ring and its descriptor chains into private, checked, translated
// pieces; returns chains through the used ring in order; decides who must be woken. It moves no
// payload and knows no packet.
//
//   walk() ... walk()        chains seen, not yet returned; their pieces are valid meanwhile
//   complete() ... complete()  the oldest walked chain goes to the used ring (private until publish)
//   rewind()                 forgets walked chains that are not completed: they are walked again
//   publish()                one store of used.idx, at most one call
//
// Invariants
//  1. Every word of the ring is read once, into a private copy, checked, then used (TM-79).
//  2. Progress is private: indices come from here, never from what the guest sees.
//  3. A chain has at most `size` descriptors and 2^32 bytes; all its bytes are mapped; all of them
//     are of the queue's direction; indirect tables are not offered and not followed.
//  4. A breach latches the ring broken: walk() finds nothing any more, and nothing is parsed twice.
//
// Threads: one. Cost: O(descriptors) a chain; allocates in the constructor only.
// Spec: virtio.md 4, 6, 7, 14; TM-79, TM-86; VIRTIO 1.2 2.7.
#pragma once

#include <cstdint>
#include <span>

#include "backend/counters.hpp"
#include "backend/guest_memory.hpp"
#include "base/log.hpp"
#include "base/peer_event.hpp"
#include "memory/shared.hpp"

namespace nobounce::backend {

// What the device does with the queue's buffers.
enum class QueueDirection : uint8_t { device_reads, device_writes };

struct RingParts {
  SharedBytes descriptors;
  SharedBytes avail;
  SharedBytes used;
};

struct RingSetUp {
  uint16_t size = 0;  // power of two, at most the queue's limit
  uint16_t base = 0;  // avail index to begin at
  bool event_idx = false;
  RingParts parts;
  const GuestMemory* memory = nullptr;  // outlives the run, or is replaced by move_to()
};

// One walked chain. Its pieces are pieces(chain) until it is completed or rewound.
struct Chain {
  uint16_t head = 0;
  uint32_t first_piece = 0;
  uint32_t piece_count = 0;
  uint64_t bytes = 0;
};

class DeviceQueue {
 public:
  DeviceQueue(QueueDirection direction, uint16_t size_limit, BackendCounters& counters);

  // ---- set-up ----
  void start(const RingSetUp& set_up) noexcept;
  // Returns the avail index at which a later start() continues. Nothing of the ring is touched after.
  uint16_t stop() noexcept;
  // The same ring in a new memory table.
  void move_to(const RingParts& parts, const GuestMemory& memory) noexcept;
  // Whom to tell of used buffers and of a broken ring; replaced at any time.
  [[nodiscard]] PeerEvent& call() noexcept { return call_; }
  [[nodiscard]] PeerEvent& err() noexcept { return err_; }

  [[nodiscard]] bool is_started() const noexcept { return started_; }
  [[nodiscard]] RingBreak broken() const noexcept { return broken_; }
  [[nodiscard]] bool is_usable() const noexcept { return started_ && broken_ == RingBreak::none; }
  [[nodiscard]] uint16_t size() const noexcept { return size_; }
  [[nodiscard]] uint16_t next_avail() const noexcept { return last_avail_; }
  [[nodiscard]] uint16_t seen() const noexcept { return avail_seen_; }  // avail.idx, last read

  // ---- chains ----
  // The next chain, or nothing: none there, or the ring is broken.
  // Chains that could be walked; reads the ring once.
  [[nodiscard]] size_t count_available() noexcept;
  // Chains of one frame are walked together and completed before those of the next.
  [[nodiscard]] bool walk(Chain& chain) noexcept;
  [[nodiscard]] std::span<const SharedBytes> pieces(const Chain& chain) const noexcept {
    return pieces_.range(chain.first_piece, chain.piece_count);
  }
  // The pieces of all chains walked and not completed, in order. Valid while none is completed.
  [[nodiscard]] std::span<const SharedBytes> walked_pieces() const noexcept {
    return pieces_.range(0, pieces_.size());
  }
  // Chains walked and not completed.
  [[nodiscard]] uint16_t walked() const noexcept { return walked_; }
  // `chain` is the oldest walked one. `written` bytes were put into it.
  void complete(const Chain& chain, uint32_t written) noexcept;
  void rewind() noexcept;
  void publish() noexcept;

  // ---- wake-ups ----
  // Asks to be kicked when the avail index moves past `known`: next_avail() for whoever takes every
  // chain, or where seen() stood when there were too few. False: it has moved already.
  [[nodiscard]] bool arm(uint16_t known) noexcept;
  void disarm() noexcept;

  // After the copies of a round: a guest whose memory went away has broken the ring (TM-64).
  void check_memory() noexcept;
  void latch(RingBreak reason) noexcept;

 private:
  [[nodiscard]] bool has_seen() const noexcept {
    return static_cast<uint16_t>(last_avail_ + walked_) != avail_seen_;
  }
  [[nodiscard]] bool refresh_avail() noexcept;
  [[nodiscard]] RingBreak walk_descriptors(uint16_t head, Chain& chain) noexcept;
  [[nodiscard]] bool wants_call() noexcept;
  [[nodiscard]] uint16_t slot_of(uint16_t index) const noexcept {
    return static_cast<uint16_t>(index & (size_ - 1));
  }

  const QueueDirection direction_;
  const uint16_t size_limit_;
  BackendCounters& counters_;
  PeerEvent call_;
  PeerEvent err_;
  PieceList pieces_;

  const GuestMemory* memory_ = nullptr;
  RingParts parts_;
  uint16_t size_ = 0;
  bool event_idx_ = false;
  bool started_ = false;
  bool armed_ = false;
  RingBreak broken_ = RingBreak::none;
  LogLimit log_limit_;

  uint16_t avail_seen_ = 0;  // avail.idx as last read and checked
  uint16_t last_avail_ = 0;  // next chain that is not completed
  uint16_t walked_ = 0;      // chains between last_avail_ and the next to walk
  uint16_t used_ = 0;        // our used index; free-running
  uint16_t published_ = 0;   // what the guest has been shown of it
  bool call_due_ = false;    // first publication after a start: always tell
};

}  // namespace nobounce::backend
