#include "virtio/transmit_queue.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "wire/ethernet.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

// virtio_net_hdr and a whole head, in cache lines of their own.
constexpr size_t kSlotBytes = 320;
static_assert(kSlotBytes >= wire::kNetHeaderBytes + kHeadBytes);
static_assert(kSlotBytes % 64 == 0);

constexpr size_t kVlanTagBytes = 4;
constexpr size_t kLinkBytesMax = wire::kEthernetHeaderSize + kVlanTagBytes;
// A device that holds packets for longer is reported (TM-24).
constexpr uint64_t kStallNs = 5 * kNsPerSecond;

constexpr std::array<const char*, kTxDrops> kDropNames{"none", "too_small", "too_large",
                                                       "unsupported", "unmappable"};

uint64_t feature_of(Gso gso) noexcept {
  return gso == Gso::tcp4 ? wire::kNetHostTso4 : wire::kNetHostTso6;
}

wire::VirtioNetHeader header_of(const Packet& packet) noexcept {
  wire::VirtioNetHeader header;
  if (packet.checksum == Checksum::partial) {
    header.flags = wire::kNetNeedsCsum;
    header.csum_start = packet.csum_start;
    header.csum_offset = packet.csum_offset;
  }
  if (packet.gso != Gso::none) {
    header.gso_type = packet.gso == Gso::tcp4 ? wire::kNetGsoTcp4 : wire::kNetGsoTcp6;
    header.gso_size = packet.gso_size;
    header.hdr_len = static_cast<uint16_t>(packet.head().size());
  }
  return header;
}

}  // namespace

Counter QueueEnvironment::counter(std::string_view name) const {
  return shard.counters.counter(fmt::format("{}.{}", counters, name));
}

size_t TransmitQueue::carve_bytes(uint16_t queue_size) noexcept {
  return carve_queue_bytes(queue_size) + kSlotBytes * queue_size;
}

Result<std::unique_ptr<TransmitQueue>> TransmitQueue::create(const QueueEnvironment& environment) {
  const auto index = static_cast<uint16_t>(2 * environment.pair + 1);
  auto layout = carve_queue_once(environment.memory.transmit, environment.region, index,
                                 environment.queue_size);
  if (!layout) return std::unexpected(layout.error());
  SharedBytes& slots = environment.memory.header_slots;
  if (slots.empty()) slots = environment.region.carve(kSlotBytes * environment.queue_size, 64);
  if (slots.empty()) {
    return fail(std::errc::not_enough_memory, fmt::format("lay out virtqueue {}", index),
                "the shared region is too small for the header slots",
                "use a larger --pool-size or smaller queues");
  }
  std::unique_ptr<TransmitQueue> queue(new TransmitQueue(environment, *layout, slots));
  if (auto done = environment.transport.set_up_queue(*layout); !done) {
    return std::unexpected(done.error());
  }
  return queue;
}

TransmitQueue::TransmitQueue(const QueueEnvironment& environment, const QueueLayout& layout,
                             const SharedBytes& header_slots)
    : environment_(environment),
      queue_(layout,
             (environment.features & wire::kRingEventIdx) != 0 ? Suppression::event_index
                                                               : Suppression::flags,
             environment.latch),
      header_slots_(header_slots),
      header_slots_iova_(static_cast<DmaAddr>(environment.region.iova_of(header_slots))),
      in_flight_(std::make_unique<InFlight[]>(layout.size)),
      queue_index_(layout.index),
      frame_max_(environment.mtu + kLinkBytesMax),
      packets_(environment.counter("tx_packets")),
      bytes_(environment.counter("tx_bytes")),
      completed_(environment.counter("tx_completed")),
      kicks_(environment.counter("tx_kicks")),
      ring_full_(environment.counter("tx_ring_full")),
      map_exhausted_(environment.counter("tx_map_exhausted")),
      stalls_(environment.counter("tx_stalled")) {
  for (size_t i = 1; i < kTxDrops; ++i) {
    drops_[i] = environment.counter(fmt::format("tx_drop.{}", kDropNames[i]));
  }
}

// ---- down -------------------------------------------------------------------------------------

size_t TransmitQueue::transmit(PacketBurst& burst) noexcept {
  reclaim();
  if (environment_.latch.is_broken()) return 0;
  if (queue_.outstanding() == 0) progress_ns_ = environment_.shard.now_ns;
  size_t left = 0;
  while (left < burst.size() && send(burst[left]) != Outcome::stays) ++left;
  burst.drop_front(left);
  if (queue_.publish()) {
    kicks_.add();
    environment_.transport.notify(queue_index_);
  }
  return left;
}

TxDrop TransmitQueue::judge(const Packet& packet) const noexcept {
  const size_t size = packet.size();
  if (size < wire::kEthernetHeaderSize) return TxDrop::too_small;
  if (packet.checksum == Checksum::partial) {
    if ((environment_.features & wire::kNetCsum) == 0) return TxDrop::unsupported;
    NB_ASSERT(size_t{packet.csum_start} + packet.csum_offset + 2 <= size);
  }
  if (packet.gso == Gso::none) return size <= frame_max_ ? TxDrop::none : TxDrop::too_large;
  if ((environment_.features & feature_of(packet.gso)) == 0) return TxDrop::unsupported;
  if (packet.checksum != Checksum::partial || packet.gso_size == 0) return TxDrop::unsupported;
  return size <= kPacketBytesMax ? TxDrop::none : TxDrop::too_large;
}

TransmitQueue::Outcome TransmitQueue::send(PacketPtr& packet) noexcept {
  NB_ASSERT(packet != nullptr);
  const TxDrop verdict = judge(*packet);
  if (verdict != TxDrop::none) {
    drops_[static_cast<size_t>(verdict)].add();
    return Outcome::dropped;
  }
  if (queue_.free() < 1 + packet->data().frag_count) {
    ring_full_.add();
    return Outcome::stays;
  }
  const uint16_t id = queue_.next_id();
  InFlight& slot = in_flight_[id];
  NB_ASSERT(slot.packet == nullptr);
  if (const Outcome mapped = map_frags(*packet, slot); mapped != Outcome::sent) return mapped;

  std::array<Segment, 1 + kFragsMax> chain;
  chain[0] = write_header(*packet, id);
  for (size_t i = 0; i < slot.count; ++i) {
    chain[1 + i] = {.address = slot.mappings[i].address, .size = slot.mappings[i].size};
  }
  const uint16_t posted = queue_.post(std::span(chain).first(1 + size_t{slot.count}));
  NB_ASSERT(posted == id);
  packets_.add();
  bytes_.add(packet->size());
  slot.packet = std::move(packet);
  return Outcome::sent;
}

TransmitQueue::Outcome TransmitQueue::map_frags(const Packet& packet, InFlight& slot) noexcept {
  const PacketData& data = packet.data();
  slot.count = 0;
  for (size_t i = 0; i < data.frag_count; ++i) {
    const Frag& frag = data.frags[i];
    if (frag.size == 0) continue;  // an empty descriptor would be a riddle to the device
    const auto mapped = environment_.dma.map({.address = page_address(*frag.page) + frag.offset,
                                              .size = frag.size,
                                              .direction = DmaDirection::to_device,
                                              .attrs = {}});
    if (mapped) {
      slot.mappings[slot.count++] = {.address = *mapped, .size = frag.size};
      continue;
    }
    unmap_frags(slot);
    if (mapped.error() == MapError::exhausted) {  // slots come back: try again later
      map_exhausted_.add();
      return Outcome::stays;
    }
    drops_[static_cast<size_t>(TxDrop::unmappable)].add();
    return Outcome::dropped;
  }
  return Outcome::sent;
}

void TransmitQueue::unmap_frags(InFlight& slot) noexcept {
  for (size_t i = 0; i < slot.count; ++i) {
    environment_.dma.unmap(slot.mappings[i].address, slot.mappings[i].size,
                           DmaDirection::to_device);
  }
  slot.count = 0;
}

Segment TransmitQueue::write_header(const Packet& packet, uint16_t slot) noexcept {
  std::array<std::byte, wire::kNetHeaderBytes + kHeadBytes> block;
  header_of(packet).emit(block);
  const Bytes head = packet.head();
  std::ranges::copy(head, block.begin() + wire::kNetHeaderBytes);
  const size_t size = wire::kNetHeaderBytes + head.size();
  const size_t offset = kSlotBytes * slot;
  header_slots_.copy_in(offset, Bytes(block).first(size));
  environment_.shard.copies.count(CopyKind::header, size);
  return {.address = header_slots_iova_ + offset, .size = static_cast<uint32_t>(size)};
}

// ---- back -------------------------------------------------------------------------------------

void TransmitQueue::reclaim() noexcept {
  const uint16_t count = queue_.completed();
  for (uint16_t i = 0; i < count; ++i) {
    const auto completion = queue_.take();
    if (!completion) return;
    finish(completion->id);
  }
  completed_.add(count);
  if (count > 0) {
    ever_completed_ = true;
    stalled_ = false;
    progress_ns_ = environment_.shard.now_ns;
  } else {
    watch();
  }
}

void TransmitQueue::finish(uint16_t id) noexcept {
  InFlight& slot = in_flight_[id];
  NB_ASSERT(slot.packet != nullptr);
  unmap_frags(slot);
  slot.packet.reset();
}

void TransmitQueue::watch() noexcept {
  if (stalled_ || queue_.outstanding() == 0) return;
  const uint64_t now_ns = environment_.shard.now_ns;
  if (now_ns < progress_ns_ + kStallNs) return;
  stalled_ = true;
  stalls_.add();
  if (!ever_completed_) {
    log_warning(
        fmt::format("virtqueue {}: the device has finished nothing in {} s: does it map "
                    "the shared region (mmap with MAP_SHARED of the fd it was given)?",
                    queue_index_, kStallNs / kNsPerSecond));
  } else {
    log_warning(fmt::format("virtqueue {}: the device has finished nothing in {} s", queue_index_,
                            kStallNs / kNsPerSecond));
  }
}

bool TransmitQueue::arm() noexcept {
  const uint16_t outstanding = queue_.outstanding();
  if (outstanding == 0) return true;
  // Woken when half is done: few wakes under load, and the last packet always brings one (C039).
  return queue_.arm(static_cast<uint16_t>((outstanding - 1) / 2));
}

void TransmitQueue::abandon() noexcept {
  queue_.abandon([this](uint16_t id) { finish(id); });
}

}  // namespace nobounce::virtio
