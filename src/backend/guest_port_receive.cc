// From the guest's transmit rings to packets.
#include <algorithm>
#include <array>

#include "backend/guest_port.hpp"
#include "netdev/received_frame.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

constexpr size_t kFrameBytesMax = kPacketBytesMax;
// Frames that are dropped take no room in the burst; this bounds them.
constexpr size_t kChainsMax = 2 * kBurstMax;

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
  const Checked checked =
      apply_net_header(*wire::VirtioNetHeader::parse(copy), *packet, frame_bytes, from_guest());
  if (!checked) return std::unexpected(checked.error());
  packet->time_ns = context_.now_ns;
  return packet;
}

// One copy from the guest into private pages; the head is copied from there.
GuestPort::Checked GuestPort::fill(Packet& packet, PieceCursor& from, size_t frame_bytes) noexcept {
  std::array<Page*, kFramePagesMax> space;
  const std::span<Page*> pages = std::span(space).first((frame_bytes + kPageSize - 1) / kPageSize);
  if (!take_pages(context_.arena, pages)) return std::unexpected(Drop::no_pages);
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t part = std::min(frame_bytes - i * kPageSize, kPageSize);
    from.read(private_bytes(*pages[i], 0, part));
  }
  assemble_frame(packet, pages, frame_bytes);
  return {};
}

// What the guest may say about checksum and segmentation. It verifies nothing for us.
NetOffloads GuestPort::from_guest() const noexcept {
  return {.checksum = session_.has(wire::kNetCsum),
          .tso4 = session_.has(wire::kNetHostTso4),
          .tso6 = session_.has(wire::kNetHostTso6)};
}

}  // namespace nobounce::backend
