#include "netdev/received_frame.hpp"

#include <algorithm>
#include <array>

namespace nobounce {

bool take_pages(PrivateArena& arena, std::span<Page*> pages) noexcept {
  const size_t got = arena.alloc_bulk(pages.data(), pages.size());
  if (got == pages.size()) return true;
  for (Page* page : pages.first(got)) page_put(*page);
  return false;
}

void assemble_frame(Packet& packet, std::span<Page* const> pages, size_t frame_bytes) noexcept {
  NB_ASSERT(packet.size() == 0);
  NB_ASSERT(frame_bytes > 0);
  NB_ASSERT(pages.size() == (frame_bytes + kPageSize - 1) / kPageSize);
  const size_t window = std::min(frame_bytes, kHeaderWindow);
  const MutableBytes head = packet.append(window);
  std::ranges::copy(private_bytes(*pages[0], 0, window), head.begin());
  size_t begin = window;
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t part = std::min(frame_bytes - i * kPageSize, kPageSize);
    // The first frag is added even when it is empty: the head may be given back to it.
    const bool added = packet.add_frag(*pages[i], static_cast<uint32_t>(begin),
                                       static_cast<uint32_t>(part - begin));
    NB_ASSERT(added);
    begin = 0;
  }
}

PacketPtr copy_frame(ShardContext& context, const Packet& packet) noexcept {
  const size_t bytes = packet.size();
  NB_ASSERT(bytes > 0);
  std::array<Page*, kFragsMax> space;
  const size_t count = (bytes + kPageSize - 1) / kPageSize;
  NB_ASSERT(count <= space.size());
  PacketPtr copy = context.packets.make(kHeadBytes - kHeaderWindow);
  const std::span<Page*> pages = std::span(space).first(count);
  if (copy == nullptr || !take_pages(context.arena, pages)) return {};
  for (size_t i = 0; i < count; ++i) {
    const size_t part = std::min(bytes - i * kPageSize, kPageSize);
    packet.read(i * kPageSize, private_bytes(*pages[i], 0, part));
  }
  assemble_frame(*copy, pages, bytes);
  copy->queue = packet.queue;
  copy->time_ns = packet.time_ns;
  return copy;
}

}  // namespace nobounce
