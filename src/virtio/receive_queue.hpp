// The receive half of a queue pair.
//
// Buffers are pages of a page_pool of this queue's own, one descriptor each; the pool keeps them
// mapped. A frame is one buffer, or several when mergeable buffers were negotiated.
//
//   buffer 0: | virtio_net_hdr 12 | window, at most 192 | rest ...      |   buffer 1: | more ... |
//               copied out: checked  copied out: head of   first frag begins here     second frag
//                                    the packet            (give_back_head() may move it back)
//
// Every page that leaves the ring is owned by exactly one of: this call (until the frame is judged),
// the packet (a reference a frag), the pool (when the frame was dropped).
//
// The ring never runs dry because others hold the pages: at its floor a frame is only handed up when
// its pages can be replaced; else its pages are posted again, and what fits the window goes up as a
// head without a frag, the rest is dropped (TM-66, TM-69).
//
// Threads: the pair's. Cost: O(buffers taken) a call, no allocation; refill in bulks.
// Spec: TM-9, TM-10, TM-13, TM-38..TM-42, TM-69; virtio.md 8.2; C016, C020, C115.
#pragma once

#include <array>
#include <memory>
#include <thread>

#include "netdev/net_device.hpp"
#include "page_pool/page_pool.hpp"
#include "virtio/queue_environment.hpp"
#include "virtio/receive_check.hpp"
#include "virtio/split_queue.hpp"
#include "wire/virtio_net_hdr.hpp"

namespace nobounce::virtio {

class ReceiveQueue {
 public:
  // Carves the rings, makes the pool, posts the first buffers, announces the queue. Fails when not
  // even the floor can be filled.
  static Result<std::unique_ptr<ReceiveQueue>> create(const QueueEnvironment& environment);
  [[nodiscard]] static size_t carve_bytes(uint16_t queue_size) noexcept {
    return carve_queue_bytes(queue_size);
  }

  size_t receive(PacketBurst& burst) noexcept;
  [[nodiscard]] bool arm() noexcept { return queue_.arm(); }
  void disarm() noexcept { queue_.disarm(); }
  // The device is stopped: every posted page goes home to the pool.
  void abandon() noexcept;

 private:
  // Buffers of the largest frame, and one for a device that begins the first one late.
  static constexpr size_t kBuffersMax =
      (wire::kNetHeaderBytes + kPacketBytesMax + kPageSize - 1) / kPageSize + 1;
  static_assert(kBuffersMax <= kFragsMax);

  struct Buffer {  // unwritten until taken: a frame is made for every packet
    Page* page;
    uint32_t length;
  };
  // The buffers of one frame, taken off the ring.
  struct Frame {
    std::array<Buffer, kBuffersMax> buffers;
    size_t count = 0;
    size_t bytes = 0;  // without the virtio header
  };

  ReceiveQueue(const QueueEnvironment& environment, const QueueLayout& layout, PagePoolHandle pool);

  void bind_thread() noexcept;
  [[nodiscard]] bool take(Frame& frame) noexcept;
  // Takes the next frame's buffers off the ring; at most `available`, at least one. False when the
  // frame was dropped or the queue broke: then nothing is left in `frame`.
  [[nodiscard]] bool take_frame(uint16_t& available, Frame& frame,
                                wire::VirtioNetHeader& header) noexcept;
  [[nodiscard]] PacketPtr make_packet(Frame& frame, const ReceiveOffload& offload) noexcept;
  [[nodiscard]] PacketPtr copy_out(Frame& frame, const ReceiveOffload& offload) noexcept;
  [[nodiscard]] static bool is_small(const Frame& frame) noexcept;
  void describe(Packet& packet, const ReceiveOffload& offload) const noexcept;
  [[nodiscard]] bool keeps_floor() noexcept;
  void drop(Frame& frame, RxDrop reason) noexcept;
  void recycle(Frame& frame) noexcept;
  void refill() noexcept;

  QueueEnvironment environment_;
  SplitQueue queue_;
  PagePoolHandle pool_;
  std::unique_ptr<Page*[]> pages_;  // by descriptor; null when it is not posted
  std::thread::id consumer_{};
  uint16_t queue_index_;
  uint16_t floor_;  // buffers that stay in the ring whatever happens
  bool mergeable_;

  Counter packets_, bytes_, kicks_, refill_short_, copied_out_;
  std::array<Counter, kRxDrops> drops_;
};

}  // namespace nobounce::virtio
