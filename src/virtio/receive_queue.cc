#include "virtio/receive_queue.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "wire/ethernet.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

constexpr size_t kRefillBulk = 64;
// Fewer free descriptors than this wait for the next call: refills come in handfuls.
constexpr uint16_t kRefillWorth = 16;
// The packet's headroom: the window and the headroom fill its head exactly.
constexpr size_t kReceiveHeadroom = kHeadBytes - kHeaderWindow;

}  // namespace

Result<std::unique_ptr<ReceiveQueue>> ReceiveQueue::create(const QueueEnvironment& environment) {
  const auto index = static_cast<uint16_t>(2 * environment.pair);
  auto layout = carve_queue_once(environment.memory.receive, environment.region, index,
                                 environment.queue_size);
  if (!layout) return std::unexpected(layout.error());
  const std::string pool_name = environment.counters + ".pool";
  auto pool = PagePool::create({.device = &environment.dma,
                                .map = true,
                                .sync_for_device = true,
                                .direction = DmaDirection::from_device,
                                .offset = 0,
                                .max_len = kPageSize,
                                .arena = &environment.shard.arena,
                                .use = BlockUse::receive,
                                .name = pool_name.c_str(),
                                .counters = &environment.shard.counters});
  if (!pool) return std::unexpected(pool.error());
  std::unique_ptr<ReceiveQueue> queue(new ReceiveQueue(environment, *layout, std::move(*pool)));
  queue->refill();
  (void)queue->queue_.publish();  // the transport kicks once at its start
  if (queue->queue_.outstanding() < queue->floor_) {
    const auto posted = queue->queue_.outstanding();
    queue->abandon();
    return fail(
        std::errc::not_enough_memory, fmt::format("fill virtqueue {}", index),
        fmt::format("only {} receive buffers of at least {} were to be had", posted, queue->floor_),
        "use a larger --pool-size");
  }
  if (auto done = environment.transport.set_up_queue(*layout); !done) {
    queue->abandon();
    return std::unexpected(done.error());
  }
  return queue;
}

ReceiveQueue::ReceiveQueue(const QueueEnvironment& environment, const QueueLayout& layout,
                           PagePoolHandle pool)
    : environment_(environment),
      queue_(layout,
             (environment.features & wire::kRingEventIdx) != 0 ? Suppression::event_index
                                                               : Suppression::flags,
             environment.latch),
      pool_(std::move(pool)),
      pages_(std::make_unique<Page*[]>(layout.size)),
      queue_index_(layout.index),
      floor_(std::max<uint16_t>(layout.size / 8, kBuffersMax)),
      mergeable_((environment.features & wire::kNetMrgRxbuf) != 0),
      packets_(environment.counter("rx_packets")),
      bytes_(environment.counter("rx_bytes")),
      kicks_(environment.counter("rx_kicks")),
      refill_short_(environment.counter("rx_refill_short")),
      copied_out_(environment.counter("rx_copied_out")) {
  for (size_t i = 0; i < kRxDrops; ++i) {
    drops_[i] = environment.counter(fmt::format("rx_drop.{}", name(static_cast<RxDrop>(i))));
  }
}

// ---- up ---------------------------------------------------------------------------------------

size_t ReceiveQueue::receive(PacketBurst& burst) noexcept {
  bind_thread();
  uint16_t available = queue_.completed();
  size_t received = 0;
  while (available > 0 && !burst.full()) {
    Frame frame;
    wire::VirtioNetHeader header;
    if (!take_frame(available, frame, header)) continue;
    const auto offload = check_receive(header, environment_.features, frame.bytes);
    if (!offload) {
      drop(frame, offload.error());
      continue;
    }
    const bool keep_page = keeps_floor();
    if (!keep_page && !is_small(frame)) {
      drop(frame, RxDrop::low_buffers);
      continue;
    }
    PacketPtr packet = keep_page ? make_packet(frame, *offload) : copy_out(frame, *offload);
    if (packet == nullptr) {
      drop(frame, RxDrop::no_packet);
      continue;
    }
    packets_.add();
    bytes_.add(packet->size());
    burst.push(std::move(packet));
    ++received;
  }
  if (queue_.free() >= std::min<uint16_t>(kRefillWorth, queue_.size() / 4)) refill();
  if (queue_.publish()) {
    kicks_.add();
    environment_.transport.notify(queue_index_);
  }
  return received;
}

// The pool recycles directly on the thread that drives this queue; an inline shard may move.
void ReceiveQueue::bind_thread() noexcept {
  const auto self = std::this_thread::get_id();
  if (consumer_ == self) return;
  consumer_ = self;
  pool_->bind_consumer_thread();
}

bool ReceiveQueue::take(Frame& frame) noexcept {
  const auto completion = queue_.take();
  if (!completion) return false;
  Page* page = std::exchange(pages_[completion->id], nullptr);
  NB_ASSERT(page != nullptr);
  frame.buffers[frame.count++] = {.page = page, .length = completion->length};
  return true;
}

bool ReceiveQueue::take_frame(uint16_t& available, Frame& frame,
                              wire::VirtioNetHeader& header) noexcept {
  const auto broken = [&] {
    recycle(frame);
    available = 0;
    return false;
  };
  if (!take(frame)) return broken();
  --available;
  const Buffer& first = frame.buffers[0];
  if (first.length <= wire::kNetHeaderBytes) {
    drop(frame, RxDrop::runt);
    return false;
  }
  pool_->sync_for_cpu(*first.page, 0, first.length);
  std::array<std::byte, wire::kNetHeaderBytes> bytes;
  page_read(*first.page, 0, bytes);
  header = *wire::VirtioNetHeader::parse(bytes);
  // Without mergeable buffers the field is not ours to judge (C115).
  const size_t wanted = mergeable_ ? header.num_buffers : 1;
  if (wanted == 0 || wanted > kBuffersMax) {
    drop(frame, RxDrop::buffer_count);
    return false;
  }
  bool has_empty = false;
  while (frame.count < wanted && available > 0) {
    if (!take(frame)) return broken();
    --available;
    const Buffer& more = frame.buffers[frame.count - 1];
    has_empty |= more.length == 0;
    if (more.length > 0) pool_->sync_for_cpu(*more.page, 0, more.length);
  }
  // All buffers of a frame become visible together: what is not there now never comes.
  if (frame.count < wanted) {
    drop(frame, RxDrop::incomplete);
    return false;
  }
  for (size_t i = 0; i < frame.count; ++i) frame.bytes += frame.buffers[i].length;
  frame.bytes -= wire::kNetHeaderBytes;
  if (has_empty || frame.bytes < wire::kEthernetHeaderSize || frame.bytes > kPacketBytesMax) {
    drop(frame, has_empty                                 ? RxDrop::empty_buffer
                : frame.bytes < wire::kEthernetHeaderSize ? RxDrop::runt
                                                          : RxDrop::too_long);
    return false;
  }
  return true;
}

PacketPtr ReceiveQueue::make_packet(Frame& frame, const ReceiveOffload& offload) noexcept {
  PacketPtr packet = environment_.shard.packets.make(kReceiveHeadroom);
  if (packet == nullptr) return packet;
  const Buffer& first = frame.buffers[0];
  const uint32_t in_first = first.length - static_cast<uint32_t>(wire::kNetHeaderBytes);
  const auto window = std::min<uint32_t>(in_first, kHeaderWindow);
  page_read(*first.page, wire::kNetHeaderBytes, packet->append(window));
  environment_.shard.copies.count(CopyKind::header, wire::kNetHeaderBytes + window);
  // The first frag may be empty: give_back_head() grows it.
  const auto behind = static_cast<uint32_t>(wire::kNetHeaderBytes) + window;
  bool added = packet->add_frag(*first.page, behind, in_first - window);
  for (size_t i = 1; i < frame.count; ++i) {
    added = added && packet->add_frag(*frame.buffers[i].page, 0, frame.buffers[i].length);
  }
  NB_ASSERT(added);
  NB_ASSERT(packet->size() == frame.bytes);
  frame.count = 0;  // the packet has the pages now
  describe(*packet, offload);
  return packet;
}

// Below the floor pages stay with the queue, but acknowledgements, ARP and pings must get in: they are
// what frees pages elsewhere (TM-66). A small frame goes up as a head alone. It gets no private page
// either: unread data may hold all of those too, and only who wants to keep payload needs one.
PacketPtr ReceiveQueue::copy_out(Frame& frame, const ReceiveOffload& offload) noexcept {
  NB_ASSERT(is_small(frame));
  PacketPtr packet = environment_.shard.packets.make(kReceiveHeadroom);
  if (packet == nullptr) return packet;
  page_read(*frame.buffers[0].page, wire::kNetHeaderBytes, packet->append(frame.bytes));
  environment_.shard.copies.count(CopyKind::header, wire::kNetHeaderBytes + frame.bytes);
  recycle(frame);
  copied_out_.add();
  describe(*packet, offload);
  return packet;
}

bool ReceiveQueue::is_small(const Frame& frame) noexcept {
  return frame.count == 1 && frame.bytes <= kHeaderWindow;
}

void ReceiveQueue::describe(Packet& packet, const ReceiveOffload& offload) const noexcept {
  packet.checksum = offload.checksum;
  packet.csum_start = offload.csum_start;
  packet.csum_offset = offload.csum_offset;
  packet.gso = offload.gso;
  packet.gso_size = offload.gso_size;
  packet.gso_segments = offload.gso_segments;
  packet.queue = environment_.pair;
  packet.time_ns = environment_.shard.now_ns;
}

// ---- buffers ----------------------------------------------------------------------------------

bool ReceiveQueue::keeps_floor() noexcept {
  if (queue_.outstanding() >= floor_) return true;
  refill();
  return queue_.outstanding() >= floor_;
}

void ReceiveQueue::drop(Frame& frame, RxDrop reason) noexcept {
  drops_[static_cast<size_t>(reason)].add();
  recycle(frame);
}

void ReceiveQueue::recycle(Frame& frame) noexcept {
  for (size_t i = 0; i < frame.count; ++i) pool_->put_direct(*frame.buffers[i].page);
  frame.count = 0;
}

void ReceiveQueue::refill() noexcept {
  if (environment_.latch.is_broken()) return;
  std::array<Page*, kRefillBulk> pages;
  while (queue_.free() > 0) {
    const size_t wanted = std::min<size_t>(queue_.free(), kRefillBulk);
    const size_t got = pool_->alloc_bulk(pages.data(), wanted);
    for (size_t i = 0; i < got; ++i) {
      const Segment buffer{.address = PagePool::dma_address(*pages[i]),
                           .size = kPageSize,
                           .access = Access::device_writes};
      const uint16_t id = queue_.post({&buffer, 1});
      NB_ASSERT(pages_[id] == nullptr);
      pages_[id] = pages[i];
    }
    if (got < wanted) {  // tried again at the next call
      refill_short_.add();
      return;
    }
  }
}

void ReceiveQueue::abandon() noexcept {
  queue_.abandon([this](uint16_t id) {
    Page* page = std::exchange(pages_[id], nullptr);
    NB_ASSERT(page != nullptr);
    PagePool::put(*page);
  });
}

}  // namespace nobounce::virtio
