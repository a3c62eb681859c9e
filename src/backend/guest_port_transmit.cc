// From packets to the guest's receive rings.
#include <algorithm>
#include <array>

#include "backend/guest_port.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

// Buffers of one page are what drivers post when they are mergeable.
constexpr size_t kBuffersOfLargest = kFragsMax;

}  // namespace

size_t GuestPort::transmit(uint16_t, PacketBurst& burst) noexcept {
  size_t gone = 0;
  for (; gone < burst.size(); ++gone) {
    if (deliver(*burst[gone], pair_for(*burst[gone])) == Delivery::waits) break;
  }
  for (uint16_t pair = 0; pair < pairs_.size(); ++pair) {
    session_.receive_ring(pair).queue.publish();
  }
  burst.drop_front(gone);
  return gone;
}

size_t GuestPort::transmit_room(uint16_t) noexcept {
  if (!link_up()) return kBurstMax;  // nothing waits for a guest that is not there
  const size_t chains = session_.receive_ring(0).queue.count_available();
  if (!session_.has(wire::kNetMrgRxbuf) || chains == 0) return chains;
  return std::max<size_t>(chains / kBuffersOfLargest, 1);  // small rings must not look full
}

// A pair that the guest uses; the first when nothing better is known.
uint16_t GuestPort::pair_for(const Packet& packet) const noexcept {
  if (pairs_.size() == 1) return 0;
  const uint16_t pair = steering_.pair_of(packet.head());
  return pair < pairs_.size() && Session::is_live(session_.receive_ring(pair)) ? pair : 0;
}

GuestPort::Delivery GuestPort::deliver(Packet& packet, uint16_t pair) noexcept {
  const auto drop = [this](Drop reason) {
    counters_.drop(reason);
    return Delivery::dropped;
  };
  Vring& vring = session_.receive_ring(pair);
  DeviceQueue& queue = vring.queue;
  if (!Session::is_live(vring)) return drop(Drop::not_ready);
  const auto header = make_net_header(packet, to_guest());
  if (!header) return drop(header.error());
  switch (collect(queue, wire::kNetHeaderBytes + packet.size())) {
    case Delivery::sent:
      break;
    case Delivery::waits:
      return wait_or_drop(queue, pair);
    case Delivery::dropped:
      queue.rewind();
      return drop(queue.is_usable() ? Drop::cannot_fit : Drop::not_ready);
  }
  pairs_[pair] = {};
  write_frame(queue, *header, packet);
  if (!queue.is_usable()) return drop(Drop::memory_fault);
  counters_.guest_rx_frames.add();
  counters_.guest_rx_bytes.add(packet.size());
  return Delivery::sent;
}

NetOffloads GuestPort::to_guest() const noexcept {
  const bool checksum = session_.has(wire::kNetGuestCsum);
  return {.checksum = checksum,
          .tso4 = session_.has(wire::kNetGuestTso4),
          .tso6 = session_.has(wire::kNetGuestTso6),
          .data_valid = checksum};
}

GuestPort::Delivery GuestPort::collect(DeviceQueue& queue, size_t bytes) noexcept {
  const bool mergeable = session_.has(wire::kNetMrgRxbuf);
  chains_.clear();
  uint64_t room = 0;
  Chain chain;
  while (room < bytes) {
    if (chains_.size() == queue.size()) return Delivery::dropped;
    if (!queue.walk(chain)) return queue.is_usable() ? Delivery::waits : Delivery::dropped;
    if (chain.bytes < wire::kNetHeaderBytes) {
      queue.latch(RingBreak::buffer_too_small);
      return Delivery::dropped;
    }
    chains_.push_back(chain);
    room += chain.bytes;
    if (!mergeable && room < bytes) return Delivery::dropped;
  }
  return Delivery::sent;
}

// No buffer at all: the guest is slow or down, and the stack keeps the frame. Some, but not enough
// for a long time: this frame blocks others that would fit.
GuestPort::Delivery GuestPort::wait_or_drop(DeviceQueue& queue, uint16_t pair) noexcept {
  const bool some = !chains_.empty();
  queue.rewind();
  Pair& state = pairs_[pair];
  state.waits_for_buffers = true;
  state.seen = queue.seen();
  if (!some) {
    state.stalled_since_ns = 0;
    return Delivery::waits;
  }
  if (state.stalled_since_ns == 0) state.stalled_since_ns = std::max<uint64_t>(context_.now_ns, 1);
  if (context_.now_ns - state.stalled_since_ns < kStallNs) return Delivery::waits;
  state = {};
  counters_.drop(Drop::rx_stalled);
  return Delivery::dropped;
}

// All 12 bytes of the net header are written.
void GuestPort::write_frame(DeviceQueue& queue, const wire::VirtioNetHeader& header,
                            const Packet& packet) noexcept {
  std::array<std::byte, wire::kNetHeaderBytes> bytes;
  wire::VirtioNetHeader complete = header;
  complete.num_buffers = static_cast<uint16_t>(chains_.size());
  complete.emit(bytes);
  PieceCursor cursor(queue.walked_pieces());
  cursor.write(Bytes(bytes));
  cursor.write(packet.head());
  const PacketData& data = packet.data();
  for (size_t i = 0; i < data.frag_count; ++i) {
    const Frag& frag = data.frags[i];
    if (is_shared(*frag.page)) {
      cursor.write(shared_bytes(*frag.page, frag.offset, frag.size));
    } else {
      cursor.write(Bytes(private_bytes(*frag.page, frag.offset, frag.size)));
    }
  }
  queue.check_memory();
  uint64_t left = wire::kNetHeaderBytes + packet.size();
  for (const Chain& chain : chains_) {
    const uint64_t written = std::min(left, chain.bytes);
    queue.complete(chain, static_cast<uint32_t>(written));
    left -= written;
  }
}

}  // namespace nobounce::backend
