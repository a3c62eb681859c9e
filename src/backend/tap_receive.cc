// From the TAP to packets.
#include <algorithm>
#include <cerrno>

#include "backend/tap.hpp"
#include "netdev/checksum.hpp"

namespace nobounce::backend {
namespace {

// Frames that are dropped take no room in the burst; this bounds them.
constexpr size_t kFramesMax = 2 * kBurstMax;

}  // namespace

size_t TapDevice::receive(uint16_t, PacketBurst& burst) noexcept {
  if (!receive_wanted_ || broken_) return 0;
  size_t received = 0;
  const size_t count = queues_.size();
  for (size_t i = 0; i < count && !burst.full(); ++i) {
    received += receive_queue(static_cast<uint16_t>((next_queue_ + i) % count), burst);
  }
  next_queue_ = static_cast<uint16_t>((next_queue_ + 1) % count);
  return received;
}

size_t TapDevice::receive_queue(uint16_t index, PacketBurst& burst) noexcept {
  const auto drop = [this](Drop reason) { counters_.rx_drops[static_cast<size_t>(reason)].add(); };
  size_t received = 0;
  for (size_t i = 0; i < kFramesMax && !burst.full(); ++i) {
    PacketPtr packet = context_.packets.make(0);
    const bool has_pages = lay_out_pages();
    const bool has_room = packet != nullptr && has_pages;
    // Without room the first bytes are read alone; the kernel drops the rest of that frame.
    iovec scrap{header_.data(), header_.size()};
    const std::span<iovec> to = has_room ? std::span<iovec>(landing_) : std::span(&scrap, 1);
    const ssize_t bytes = ::readv(queues_[index].fd, to.data(), static_cast<int>(to.size()));
    if (bytes < 0) {
      if (errno == EBADFD || errno == EBADF) give_up();
      break;
    }
    if (!has_room) {
      drop(packet == nullptr ? Drop::no_packets : Drop::no_pages);
      continue;
    }
    auto made = make_packet(std::move(packet), static_cast<size_t>(bytes));
    if (!made) {
      drop(made.error());
      continue;
    }
    counters_.rx_frames.add();
    counters_.rx_bytes.add((*made)->size());
    if ((*made)->gso != Gso::none) counters_.rx_super_frames.add();
    if (queues_.size() > 1) steering_.learn((*made)->head(), index);
    burst.push(std::move(*made));
    ++received;
  }
  return received;
}

bool TapDevice::lay_out_pages() noexcept {
  header_.fill(std::byte{0});  // what the kernel leaves as it was is 0 (C115)
  landing_[0] = {header_.data(), header_bytes_};
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i] == nullptr && !take_pages(context_.arena, {&pages_[i], 1})) return false;
    landing_[i + 1] = {private_bytes(*pages_[i], 0, kPageSize).data(), kPageSize};
  }
  return true;
}

std::expected<PacketPtr, Drop> TapDevice::make_packet(PacketPtr packet, size_t bytes) noexcept {
  if (bytes < header_bytes_ + kLinkHeaderBytes) return std::unexpected(Drop::short_frame);
  const size_t frame_bytes = bytes - header_bytes_;
  if (frame_bytes > kPacketBytesMax) return std::unexpected(Drop::long_frame);
  const std::span<Page*> used = std::span(pages_).first((frame_bytes + kPageSize - 1) / kPageSize);
  assemble_frame(*packet, used, frame_bytes);
  std::ranges::fill(used, nullptr);
  packet->time_ns = context_.now_ns;
  if (header_bytes_ > 0) {
    const auto header = wire::VirtioNetHeader::parse(header_);
    const auto applied =
        apply_net_header(*header, *packet, frame_bytes, TapInterface::kAllOffloads);
    if (!applied) return std::unexpected(applied.error());
  }
  if (const auto settled = settle_offloads(*packet); !settled) {
    return std::unexpected(settled.error());
  }
  return packet;
}

// Frames that the kernel queued before an offload was taken back.
std::expected<void, Drop> TapDevice::settle_offloads(Packet& packet) const noexcept {
  const NetOffloads& offloads = interface_.offloads();
  const bool is_agreed =
      packet.gso == Gso::none ||
      (offloads.checksum && (packet.gso == Gso::tcp4 ? offloads.tso4 : offloads.tso6));
  if (!is_agreed) return std::unexpected(Drop::gso_not_negotiated);
  if (!offloads.checksum && !complete_checksum(packet)) return std::unexpected(Drop::csum_range);
  return {};
}

}  // namespace nobounce::backend
