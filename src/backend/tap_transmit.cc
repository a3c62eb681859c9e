// From packets to the TAP.
#include <algorithm>
#include <cerrno>

#include "backend/tap.hpp"

namespace nobounce::backend {

size_t TapDevice::transmit(uint16_t, PacketBurst& burst) noexcept {
  size_t gone = 0;
  while (gone < burst.size() && send(*burst[gone]) == Sending::done) ++gone;
  burst.drop_front(gone);
  return gone;
}

TapDevice::Sending TapDevice::send(Packet& packet) noexcept {
  if (broken_) {
    counters_.tx_refusals[static_cast<size_t>(TapRefusal::gone)].add();
    return Sending::done;
  }
  const NetOffloads possible = header_bytes_ > 0 ? TapInterface::kAllOffloads : NetOffloads{};
  auto header = make_net_header(packet, possible);
  if (packet.size() > kPacketBytesMax) header = std::unexpected(Drop::long_frame);
  if (!header) {
    counters_.tx_drops[static_cast<size_t>(header.error())].add();
    return Sending::done;
  }
  header->flags &= static_cast<uint8_t>(~wire::kNetDataValid);  // never said when sending (8.1)
  if (fix_ipv4_checksum(packet)) counters_.tx_ipv4_checksum_fixed.add();
  std::array<std::byte, wire::kNetHeaderBytes> bytes;
  header->emit(bytes);
  pieces_[0] = {bytes.data(), header_bytes_};
  const size_t count = gather(packet);
  Queue& queue = queues_.size() == 1 ? queues_[0] : queues_[steering_.pair_of(packet.head())];
  if (::writev(queue.fd, pieces_.data(), static_cast<int>(count)) < 0) {
    return on_write_error(queue, errno);
  }
  queue.is_full = false;
  counters_.tx_frames.add();
  counters_.tx_bytes.add(packet.size());
  if (packet.gso != Gso::none) counters_.tx_super_frames.add();
  return Sending::done;
}

// The frame's bytes behind the net header; how many pieces there are. Shared memory is not handed to
// a system call: such frames are copied out first. (A stack on this side has none.)
size_t TapDevice::gather(Packet& packet) noexcept {
  PacketData& data = packet.data();
  const std::span<const Frag> frags = std::span(data.frags).first(data.frag_count);
  if (std::ranges::any_of(frags, [](const Frag& frag) { return is_shared(*frag.page); })) {
    const MutableBytes flat(flat_.get(), packet.size());
    packet.read(0, flat);
    pieces_[1] = {flat.data(), flat.size()};
    return 2;
  }
  pieces_[1] = {packet.mutable_head().data(), packet.head().size()};
  size_t count = 2;
  for (const Frag& frag : frags) {
    if (frag.size == 0) continue;
    pieces_[count++] = {private_bytes(*frag.page, frag.offset, frag.size).data(), frag.size};
  }
  return count;
}

TapDevice::Sending TapDevice::on_write_error(Queue& queue, int error) noexcept {
  TapRefusal reason = TapRefusal::other;
  switch (error) {
    case EAGAIN:
    case EINTR:
      queue.is_full = true;
      counters_.tx_eagain.add();
      return Sending::waits;
    case EIO:
      reason = TapRefusal::interface_down;
      break;
    case EINVAL:
    case EMSGSIZE:
      reason = TapRefusal::invalid;
      break;
    case ENOBUFS:
    case ENOMEM:
      reason = TapRefusal::no_memory;
      break;
    case EBADFD:
    case EBADF:
    case ENODEV:
      reason = TapRefusal::gone;
      give_up();
      break;
    default:
      break;
  }
  counters_.tx_refusals[static_cast<size_t>(reason)].add();
  return Sending::done;
}

}  // namespace nobounce::backend
