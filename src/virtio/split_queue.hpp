// Split virtqueue, the driver's side, against a device that writes what it likes.
//
// The truth is private: which descriptors are free, chained, outstanding, how many bytes each chain
// may receive, and both ring positions. The ring in shared memory is mail: what we write there is
// never read back (TM-3), what the device writes is read once, checked against the truth, and only
// then used.
//
//   free --post()--> outstanding (head, followers) --publish()--> the device may use it
//     ^                   |
//     +----- take() ------+   used id checked: in range, a head, outstanding; length checked
//     +---- abandon() ----+   the device is stopped: everything comes home
//
// Invariants
//  1. free + followers + heads = size; a descriptor is in one of these states.
//  2. The free list and the chain links live in the shadow; the table's `next` is never read.
//  3. A breach latches (see breach.hpp); a latched queue takes and posts nothing.
//  4. No loop depends on a value of the device: a call takes at most what is outstanding.
//
// Threads: one. Cost: O(descriptors) a chain, one release store a publish; allocates at set-up.
// Spec: TM-3, TM-5..TM-13, TM-23, TM-34; virtio.md 4, 6, 7 (VIRTIO 1.2 2.7).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/error.hpp"
#include "dma/dma_device.hpp"
#include "memory/shared_region.hpp"
#include "virtio/breach.hpp"
#include "virtio/transport.hpp"

namespace nobounce::virtio {

// Takes the three parts of a queue from the region. `size` is a power of two.
Result<QueueLayout> carve_queue(SharedRegion& region, uint16_t index, uint16_t size);
// The same once: what `kept` has already is used again.
Result<QueueLayout> carve_queue_once(std::optional<QueueLayout>& kept, SharedRegion& region,
                                     uint16_t index, uint16_t size);
[[nodiscard]] size_t carve_queue_bytes(uint16_t size) noexcept;

enum class Access : uint8_t { device_reads, device_writes };
enum class Suppression : uint8_t { flags, event_index };  // event_index: EVENT_IDX was negotiated

struct Segment {
  DmaAddr address{};
  uint32_t size = 0;
  Access access = Access::device_reads;
};

struct Completion {
  uint16_t id = 0;  // head of the chain, as post() returned it
  uint32_t length =
      0;  // bytes written: at most what was posted. 0 for chains the device only reads
};

class SplitQueue {
 public:
  // Zeroes the rings (TM-34). Starts with notifications off.
  SplitQueue(const QueueLayout& layout, Suppression suppression, BreachLatch& latch);

  // ---- driver -> device ----
  [[nodiscard]] uint16_t size() const noexcept { return size_; }
  [[nodiscard]] uint16_t free() const noexcept { return free_count_; }          // descriptors
  [[nodiscard]] uint16_t outstanding() const noexcept { return outstanding_; }  // chains
  // The id that the next post() returns. Asserts that a descriptor is free.
  [[nodiscard]] uint16_t next_id() const noexcept;
  // Writes one chain; the device does not see it before publish(). Asserts that it fits.
  uint16_t post(std::span<const Segment> chain) noexcept;
  // Shows everything posted since the last call; true when the device wants a kick.
  [[nodiscard]] bool publish() noexcept;

  // ---- device -> driver ----
  // Completions that wait, at most outstanding(). One load of the used index. 0 when broken.
  [[nodiscard]] uint16_t completed() noexcept;
  // The next of them: its chain is free when this returns. Nothing when it breaks a rule (latched).
  // Asserts that there is one by an earlier completed().
  [[nodiscard]] std::optional<Completion> take() noexcept;
  // Takes back everything outstanding without the device, which must be stopped. Calls
  // home(id) for each chain, once.
  template <class Home>
  void abandon(Home&& home) noexcept {
    for (uint16_t id = 0; id < size_; ++id) {
      if (shadow_[id].state != State::head) continue;
      release(id);
      home(id);
    }
    waiting_ = 0;
  }

  // ---- notifications ----
  // Asks to be told when the completion after the next `after` ones arrives. False when it already
  // has: do not sleep (TM-23).
  [[nodiscard]] bool arm(uint16_t after = 0) noexcept;
  void disarm() noexcept;

 private:
  enum class State : uint8_t { free, head, follower };
  struct Shadow {
    uint32_t writable = 0;  // head: bytes the device may write
    uint16_t next = 0;      // in the chain or the free list
    uint16_t last = 0;      // head: last descriptor of the chain
    uint16_t count = 0;     // head: descriptors of the chain
    State state = State::free;
  };

  void write_descriptor(uint16_t index, const Segment& segment, bool has_next,
                        uint16_t next) noexcept;
  void release(uint16_t head) noexcept;
  [[nodiscard]] Breach judge(uint32_t id, uint32_t length) const noexcept;

  SharedBytes descriptors_;
  SharedBytes avail_;
  SharedBytes used_;
  BreachLatch& latch_;
  std::unique_ptr<Shadow[]> shadow_;
  uint16_t index_;  // virtqueue number, for messages
  uint16_t size_;
  uint16_t mask_;
  Suppression suppression_;
  uint16_t free_head_ = 0;
  uint16_t free_count_;
  uint16_t outstanding_ = 0;
  uint16_t avail_index_ = 0;      // next slot to fill
  uint16_t published_index_ = 0;  // what the device was shown
  uint16_t last_used_ = 0;        // next element to take: authoritative (TM-6)
  uint16_t waiting_ = 0;          // completions reported by completed() and not yet taken
};

}  // namespace nobounce::virtio
