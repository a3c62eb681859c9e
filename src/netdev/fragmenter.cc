#include "netdev/fragmenter.hpp"

#include <algorithm>

#include "base/checksum.hpp"
#include "wire/ethernet.hpp"
#include "wire/ipv4.hpp"

namespace nobounce {
namespace {

constexpr size_t kHeaders = wire::kEthernetHeaderSize + wire::kIpv4HeaderSize;
constexpr uint16_t kMoreFragments = 0x2000;

}  // namespace

size_t Fragmenter::piece_bytes(size_t mtu) noexcept {
  return mtu < wire::kIpv4HeaderSize ? 0 : (mtu - wire::kIpv4HeaderSize) / 8 * 8;
}

// The first fragment has payload too, so that each is a split of it.
bool Fragmenter::fits(const Packet& packet, size_t mtu) noexcept {
  return packet.head().size() < piece_bytes(mtu) && packet.payload_size() > 0;
}

Fragmenter::Fragmenter(PacketPtr frame) noexcept {
  NB_ASSERT(frame->gso == Gso::fragments4);
  NB_ASSERT(frame->checksum == Checksum::none);
  const Bytes head = frame->head();
  piece_ = piece_bytes(frame->gso_size);
  NB_ASSERT(head.size() >= kHeaders && head.size() - kHeaders < piece_);
  std::ranges::copy(head, head_.begin());
  head_size_ = head.size();
  frame->pull(head.size());  // every fragment gets the whole headroom and a head of its own
  frame->gso = Gso::none;
  frame->gso_size = 0;
  rest_ = std::move(frame);
}

PacketPtr Fragmenter::next() noexcept {
  if (rest_ == nullptr) return {};
  const size_t in_head = offset_ == 0 ? head_size_ - kHeaders : 0;
  PacketPtr fragment;
  if (rest_->payload_size() > piece_ - in_head) {
    PacketPtr rest = rest_->pool().split(*rest_, piece_ - in_head);
    if (rest == nullptr) return {};
    fragment = std::exchange(rest_, std::move(rest));
    rest_->queue = fragment->queue;
  } else {
    fragment = std::move(rest_);
  }
  write_head(*fragment, rest_ == nullptr);
  offset_ += piece_;
  return fragment;
}

void Fragmenter::write_head(Packet& fragment, bool is_last) noexcept {
  const size_t size = offset_ == 0 ? head_size_ : kHeaders;
  const size_t total = size - wire::kEthernetHeaderSize + fragment.payload_size();
  const MutableBytes head = fragment.push(size);
  std::copy_n(head_.begin(), size, head.begin());
  const MutableBytes ip = head.subspan(wire::kEthernetHeaderSize, wire::kIpv4HeaderSize);
  store_be<uint16_t>(ip, 2, static_cast<uint16_t>(total));
  store_be<uint16_t>(ip, 6, static_cast<uint16_t>((is_last ? 0 : kMoreFragments) | offset_ / 8));
  store_be<uint16_t>(ip, 10, 0);
  store_be<uint16_t>(ip, 10, checksum_finish(checksum_add(0, ip)));
}

}  // namespace nobounce
