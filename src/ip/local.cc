// What is sent to an address of our own. The packet waits, with its IP header, in a bounded queue until
// the shard's next look: a transport that sends is never called back from inside its own call, and what
// is answered meanwhile waits for the look after that. One queue, first in first out: nothing overtakes.
//
// The receiver gets a packet of its own with private pages of its own (NC-57, ZN-7): the sender keeps its
// packet for retransmission or gets its buffer back at once, the receiver trims what it got, and no host
// rewrites what one part of us said to another. Nothing was on a wire: a partial checksum counts as
// verified, datagrams are not cut, super-packets go up whole.
#include <algorithm>
#include <bit>

#include "ip/layer_state.hpp"

namespace nobounce::ip {
namespace {

constexpr size_t kLocalHeadroom = kHeadBytes - kHeaderWindow;
static_assert(kLocalHeadroom >= wire::kIpv4HeaderSize);
static_assert((kFragsMax - 1) * kPageSize >= 0xffff);

// Room for `bytes` of payload: one block, or single pages when memory is in pieces. False: there is none,
// what was found goes with the packet.
bool add_room(Packet& packet, PrivateArena& arena, uint32_t bytes) noexcept {
  if (bytes == 0) return true;
  const auto pages = static_cast<uint32_t>((bytes + kPageSize - 1) / kPageSize);
  if (Page* block = arena.alloc(static_cast<unsigned>(std::bit_width(pages - 1)))) {
    return packet.add_frag(*block, 0, bytes);
  }
  while (pages > 1 && bytes > 0) {
    Page* page = arena.alloc(0);
    if (page == nullptr) return false;
    const uint32_t part = std::min<uint32_t>(bytes, kPageSize);
    const bool is_added = packet.add_frag(*page, 0, part);
    NB_ASSERT(is_added);  // the static_assert above
    bytes -= part;
  }
  return bytes == 0;
}

}  // namespace

SendResult Layer::State::send_local(PacketPtr packet, const Egress& egress) noexcept {
  if (wire::kIpv4HeaderSize + packet->size() > 0xffff) {
    return refuse(Drop::too_big, SendResult::too_big);
  }
  if (!has_room(egress.destination)) return refuse(Drop::local_full, SendResult::would_block);
  PacketPtr own = copy_for_us(*packet);
  if (own == nullptr) return refuse(Drop::local_no_memory, SendResult::sent);  // lost, as on a wire
  write_header(*own, egress, 0);
  sent.add();
  local.push_back(*own.release());
  return SendResult::sent;
}

// Null when there is no packet or no page.
PacketPtr Layer::State::copy_for_us(const Packet& packet) noexcept {
  PacketPtr own = context.packets.make(kLocalHeadroom);
  if (own == nullptr) return nullptr;
  const Bytes head = packet.head();
  NB_ASSERT(head.size() <= own->tailroom());  // headers, or a packet that fits the window
  std::ranges::copy(head, own->append(head.size()).begin());
  if (!add_room(*own, context.arena, static_cast<uint32_t>(packet.payload_size()))) return nullptr;
  size_t offset = head.size();
  const PacketData& data = own->data();
  for (uint8_t i = 0; i < data.frag_count; ++i) {
    const Frag& frag = data.frags[i];
    packet.read(offset, private_bytes(*frag.page, frag.offset, frag.size));
    offset += frag.size;
  }
  NB_ASSERT(offset == packet.size());
  context.copies.count(CopyKind::local, packet.payload_size());
  own->checksum = packet.checksum == Checksum::partial ? Checksum::verified : packet.checksum;
  own->gso = packet.gso;
  own->gso_size = packet.gso_size;
  own->gso_segments = packet.gso_segments;
  own->time_ns = context.now_ns;
  return own;
}

// Only what waits now: what is sent meanwhile comes the next time.
size_t Layer::State::receive_local() noexcept {
  const size_t count = local.size();
  for (size_t i = 0; i < count; ++i) {
    PacketPtr packet(local.pop_front());
    const auto header = wire::Ipv4View::parse(packet->head(), packet->size());
    NB_ASSERT(header.has_value());  // our own
    const Ingress ingress = ingress_of(*header);
    packet->pull(header->header_size());
    received.add();
    dispatch(std::move(packet), ingress);
  }
  return count;
}

}  // namespace nobounce::ip
