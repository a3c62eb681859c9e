// How a device that copies makes a packet of a frame: the frame in private pages, its first bytes
// again in the packet's head, the first frag beginning behind them (skb/packet.hpp), so that
// give_back_head() works as with any driver.
//
//   page 0                               page 1
//   | window (in the head too) | frag 0  | frag 1 ...
//
// Ownership: pages carry one reference each, which the packet takes over.
// Threads: the shard's. Cost: one copy of the window (copy_frame: of the frame); no allocation.
#pragma once

#include <span>

#include "memory/private_arena.hpp"
#include "netdev/shard_context.hpp"
#include "skb/packet.hpp"

namespace nobounce {

// Single pages that the largest frame lies in.
inline constexpr size_t kFramePagesMax = (kPacketBytesMax + kPageSize - 1) / kPageSize;
static_assert(kFramePagesMax <= kFragsMax);

// Fills `pages` from the arena: all or none.
[[nodiscard]] bool take_pages(PrivateArena& arena, std::span<Page*> pages) noexcept;

// `packet` is empty and not cloned; `pages` hold `frame_bytes` > 0 from their starts, and no page
// is without a byte.
void assemble_frame(Packet& packet, std::span<Page* const> pages, size_t frame_bytes) noexcept;

// A packet of the same bytes that shares nothing with `packet`; fields are defaults but for queue
// and time. Null when packets or pages are used up.
[[nodiscard]] PacketPtr copy_frame(ShardContext& context, const Packet& packet) noexcept;

}  // namespace nobounce
