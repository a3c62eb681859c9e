// How application threads talk to a shard: one single-producer ring a (thread, shard), in private
// memory, made on a thread's first use of the shard and reused after the thread has gone.
//
//   thread 1 --SPSC--+
//   thread 2 --SPSC--+--> shard: drains all rings once a round
//   thread 3 --SPSC--+
//
// Order: operations of one socket carry a sequence number taken under that socket's send lock, at
// the time of the push. The shard applies them in that order whichever ring they are in; an
// operation whose turn has not come stays at the head of its ring for a moment. This cannot lock
// up: pushes and numbers are taken together, so the earliest push not yet applied is always next.
//
// Threads: push by the owning thread, drain by the shard. Bound: kEntries a ring; a full ring makes
// the sender wait for the shard (counted by the ring).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/event.hpp"
#include "base/spsc_ring.hpp"
#include "memory/page.hpp"
#include "nobounce/socket.hpp"

namespace nobounce {

struct SocketCore;

struct alignas(kCacheLine) Submission {
  enum class Op : uint8_t { none, send, datagram, consumed, shutdown, close, abort };
  Op op = Op::none;
  More more = More::no;  // send
  // datagram: folded sum of the payload (0 as 0xffff), taken with the copy; 0: not taken
  uint16_t payload_sum = 0;
  uint32_t sequence = 0;  // all but consumed: the socket's order
  SocketCore* socket = nullptr;
  Page* page = nullptr;  // send, datagram: one reference travels along
  uint32_t offset = 0;
  uint32_t size = 0;
  Endpoint to;  // datagram
};
static_assert(sizeof(Submission) == kCacheLine);

class SubmissionQueue {
 public:
  static constexpr uint32_t kEntries = 1024;

  SpscRing<Submission> ring{kEntries};
  std::atomic<bool> wants_room{false};  // the owner waits on `room`
  Event room;                           // signalled when the shard has drained some
  std::atomic<bool> has_owner{true};    // false after the thread has gone
  uint32_t submitted = 0;               // owner's; runs free
  // ---- shard's ----
  uint32_t applied = 0;     // runs free
  uint32_t owed = 0;        // when it leaves: `applied` by then
  bool is_blocked = false;  // the head could not be applied
  [[nodiscard]] bool has_applied(uint32_t count) const noexcept {
    return static_cast<int32_t>(applied - count) >= 0;
  }
};

// All rings of one shard.
class SubmissionQueues {
 public:
  static constexpr size_t kThreadsMax = 1024;

  // The calling thread's ring; null when there are too many threads (counted).
  [[nodiscard]] SubmissionQueue* mine() noexcept;

  // Shard's side.
  [[nodiscard]] size_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  [[nodiscard]] SubmissionQueue& at(size_t index) noexcept {
    return *queues_[index].load(std::memory_order_acquire);
  }
  [[nodiscard]] bool any_pending() noexcept;
  [[nodiscard]] uint64_t refused() const noexcept {
    return refused_.load(std::memory_order_relaxed);
  }

  SubmissionQueues();
  ~SubmissionQueues();

 private:
  [[nodiscard]] std::shared_ptr<SubmissionQueue> adopt_or_make();

  const uint64_t id_;  // never reused, so that a thread's cached ring cannot be taken for ours
  std::mutex lock_;    // registration only
  std::array<std::atomic<SubmissionQueue*>, kThreadsMax> queues_{};
  std::array<std::shared_ptr<SubmissionQueue>, kThreadsMax> owners_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> refused_{0};
};

}  // namespace nobounce
