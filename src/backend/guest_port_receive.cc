// From the guest's transmit rings to packets.
#include <algorithm>
#include <array>

#include "backend/guest_port.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

constexpr size_t kLinkHeaderBytes = 14;
constexpr size_t kFrameBytesMax = kPacketBytesMax;
constexpr size_t kTcpHeaderMin = 20;
// Frames that are dropped take no room in the burst; this bounds them.
constexpr size_t kChainsMax = 2 * kBurstMax;

static_assert((kFrameBytesMax + kPageSize - 1) / kPageSize <= kFragsMax);

// How many wire segments a super-frame stands for. The TCP header is read from the private copy and
// only ever changes this count.
uint16_t segments_of(const Packet& packet, size_t frame_bytes) noexcept {
  size_t headers = packet.csum_start + kTcpHeaderMin;
  const Bytes head = packet.head();
  const size_t data_offset = size_t{packet.csum_start} + 12;
  if (data_offset < head.size()) {
    const size_t words = static_cast<size_t>(head[data_offset]) >> 4;
    headers = packet.csum_start + std::max(words * 4, kTcpHeaderMin);
  }
  if (frame_bytes <= headers) return 1;
  const size_t payload = frame_bytes - headers;
  const size_t count = (payload + packet.gso_size - 1) / packet.gso_size;
  return static_cast<uint16_t>(std::min<size_t>(count, UINT16_MAX));
}

}  // namespace

size_t GuestPort::receive(uint16_t, PacketBurst& burst) noexcept {
  size_t received = 0;
  const auto count = static_cast<uint16_t>(pairs_.size());
  for (uint16_t i = 0; i < count && !burst.full(); ++i) {
    received += receive_pair(static_cast<uint16_t>((next_pair_ + i) % count), burst);
  }
  next_pair_ = static_cast<uint16_t>((next_pair_ + 1) % count);
  return received;
}

size_t GuestPort::receive_pair(uint16_t pair, PacketBurst& burst) noexcept {
  Vring& vring = session_.transmit_ring(pair);
  DeviceQueue& queue = vring.queue;
  size_t received = 0;
  Chain chain;
  for (size_t i = 0; i < kChainsMax && !burst.full() && queue.walk(chain); ++i) {
    auto packet = vring.enabled ? take_frame(queue, chain) : std::unexpected(Drop::disabled);
    queue.check_memory();
    if (packet && !queue.is_usable()) packet = std::unexpected(Drop::memory_fault);
    queue.complete(chain, 0);
    if (!packet) {
      counters_.drop(packet.error());
      continue;
    }
    counters_.guest_tx_frames.add();
    counters_.guest_tx_bytes.add((*packet)->size());
    if (pairs_.size() > 1) steering_.learn((*packet)->head(), pair);
    burst.push(std::move(*packet));
    ++received;
  }
  queue.publish();
  return received;
}

std::expected<PacketPtr, Drop> GuestPort::take_frame(DeviceQueue& queue,
                                                     const Chain& chain) noexcept {
  if (chain.bytes < wire::kNetHeaderBytes + kLinkHeaderBytes) {
    return std::unexpected(Drop::short_frame);
  }
  const uint64_t frame_bytes = chain.bytes - wire::kNetHeaderBytes;
  if (frame_bytes > kFrameBytesMax) return std::unexpected(Drop::long_frame);
  PacketPtr packet = context_.packets.make(0);
  if (packet == nullptr) return std::unexpected(Drop::no_packets);
  PieceCursor cursor(queue.pieces(chain));
  std::array<std::byte, wire::kNetHeaderBytes> copy;
  cursor.read(copy);
  if (const Checked filled = fill(*packet, cursor, frame_bytes); !filled) {
    return std::unexpected(filled.error());
  }
  const Checked checked = apply_header(*wire::VirtioNetHeader::parse(copy), *packet, frame_bytes);
  if (!checked) return std::unexpected(checked.error());
  packet->time_ns = context_.now_ns;
  return packet;
}

// One copy from the guest into private pages; the head is copied from there.
GuestPort::Checked GuestPort::fill(Packet& packet, PieceCursor& from, size_t frame_bytes) noexcept {
  std::array<Page*, kFragsMax> pages;
  const size_t count = (frame_bytes + kPageSize - 1) / kPageSize;
  const size_t got = context_.arena.alloc_bulk(pages.data(), count);
  if (got < count) {
    for (size_t i = 0; i < got; ++i) page_put(*pages[i]);
    return std::unexpected(Drop::no_pages);
  }
  const size_t window = std::min(frame_bytes, kHeaderWindow);
  const MutableBytes head = packet.append(window);
  for (size_t i = 0; i < count; ++i) {
    const size_t part = std::min(frame_bytes - i * kPageSize, kPageSize);
    const MutableBytes bytes = private_bytes(*pages[i], 0, part);
    from.read(bytes);
    size_t begin = 0;
    if (i == 0) {
      std::ranges::copy(bytes.first(window), head.begin());
      begin = window;
    }
    // The first frag is added even when it is empty: the head may be given back to it.
    const bool added = packet.add_frag(*pages[i], static_cast<uint32_t>(begin),
                                       static_cast<uint32_t>(part - begin));
    NB_ASSERT(added);
  }
  return {};
}

// What the guest says about checksum and segmentation: believed where it was negotiated and fits.
GuestPort::Checked GuestPort::apply_header(const wire::VirtioNetHeader& header, Packet& packet,
                                           size_t frame_bytes) const noexcept {
  const bool partial = (header.flags & wire::kNetNeedsCsum) != 0;
  if (partial) {
    if (!session_.has(wire::kNetCsum)) return std::unexpected(Drop::csum_not_negotiated);
    const size_t end = size_t{header.csum_start} + header.csum_offset + sizeof(uint16_t);
    if (header.csum_start < kLinkHeaderBytes || end > frame_bytes) {
      return std::unexpected(Drop::csum_range);
    }
    packet.checksum = Checksum::partial;
    packet.csum_start = header.csum_start;
    packet.csum_offset = header.csum_offset;
  }
  switch (header.gso_type) {
    case wire::kNetGsoNone:
      return {};
    case wire::kNetGsoTcp4:
      if (!session_.has(wire::kNetHostTso4)) return std::unexpected(Drop::gso_not_negotiated);
      packet.gso = Gso::tcp4;
      break;
    case wire::kNetGsoTcp6:
      if (!session_.has(wire::kNetHostTso6)) return std::unexpected(Drop::gso_not_negotiated);
      packet.gso = Gso::tcp6;
      break;
    default:  // UFO, USO, ECN: never offered
      return std::unexpected(Drop::gso_not_negotiated);
  }
  if (!partial || header.gso_size == 0) return std::unexpected(Drop::gso_invalid);
  packet.gso_size = header.gso_size;
  packet.gso_segments = segments_of(packet, frame_bytes);
  return {};
}

}  // namespace nobounce::backend
