#include "tcp/reassembly.hpp"

#include <algorithm>

namespace nobounce::tcp {
namespace {

// How far contiguous packets are followed to find the edges of a SACK block.
constexpr int kEdgeWalkMax = 32;

Seq begin_of(const Packet& packet) noexcept { return Seq(packet.transport.sequence); }
Seq end_of(const Packet& packet) noexcept { return Seq(packet.transport.end_sequence); }

void set_range(Packet& packet, Seq begin) noexcept {
  packet.transport.sequence = begin.value();
  packet.transport.end_sequence = (begin + static_cast<uint32_t>(packet.payload_size())).value();
}

}  // namespace

bool absorb(Packet& to, Packet& from) noexcept {
  if (to.is_cloned() || from.is_cloned()) return false;
  if (to.frag_room() < from.data().frag_count) return false;
  if (to.payload_size() + from.payload_size() > kPacketBytesMax) return false;
  const PacketData& data = from.data();
  for (size_t i = 0; i < data.frag_count; ++i) {
    const Frag& frag = data.frags[i];
    if (frag.size == 0) continue;
    page_hold(*frag.page);
    const bool added = to.add_frag(*frag.page, frag.offset, frag.size);
    NB_ASSERT(added);
  }
  return true;
}

// The list is walked from where the last packet went: streams with one hole append there, and a
// sender that counts backwards inserts there.
Packet* Reassembly::first_ending_after(Seq seq) noexcept {
  Packet* packet = hint_ != nullptr ? hint_ : queue_.front();
  if (packet == nullptr) return nullptr;
  while (packet != nullptr && end_of(*packet) <= seq) packet = queue_.next(*packet);
  if (packet == nullptr) return nullptr;
  for (Packet* before = queue_.previous(*packet); before != nullptr && end_of(*before) > seq;
       before = queue_.previous(*before)) {
    packet = before;
  }
  return packet;
}

Reassembly::Result Reassembly::insert(PacketPtr packet, Seq seq, const Limits& limits) noexcept {
  Result result = Result::duplicate;
  set_range(*packet, seq);
  Packet* following = first_ending_after(seq);
  while (packet != nullptr) {
    if (following != nullptr && begin_of(*following) <= begin_of(*packet)) {
      // The front is there already.
      const uint32_t have = bytes_between(begin_of(*packet), end_of(*following));
      if (have >= packet->payload_size()) {
        if (result == Result::duplicate)
          note_range(*following);  // the block around it is told next
        break;
      }
      packet->pull_frags(have);
      set_range(*packet, end_of(*following));
      following = queue_.next(*following);
      continue;
    }
    PacketPtr rest;
    if (following != nullptr && begin_of(*following) < end_of(*packet)) {
      const uint32_t room = bytes_between(begin_of(*packet), begin_of(*following));
      const Seq split_at = begin_of(*following);
      if (end_of(*packet) > end_of(*following)) {
        rest = packet->pool().split(*packet, room);
        if (rest != nullptr) set_range(*rest, split_at);
      }
      if (rest == nullptr) packet->trim(room);  // the rest is there, or comes again
      set_range(*packet, begin_of(*packet));
    }
    const Result placed = place(following, std::move(packet), limits);
    if (placed == Result::full) return Result::full;
    result = Result::queued;
    packet = std::move(rest);
  }
  return result;
}

Reassembly::Result Reassembly::place(Packet* following, PacketPtr packet,
                                     const Limits& limits) noexcept {
  if (frags_ + packet->data().frag_count > limits.frags) return Result::full;
  Packet* before = following != nullptr ? queue_.previous(*following) : queue_.back();
  if (before != nullptr && end_of(*before) == begin_of(*packet)) {
    const int64_t size_before = static_cast<int64_t>(before->payload_size());
    const size_t frags_before = before->data().frag_count;
    if (absorb(*before, *packet)) {
      queue_.resized(static_cast<int64_t>(before->payload_size()) - size_before);
      frags_ += before->data().frag_count - frags_before;
      set_range(*before, begin_of(*before));
      hint_ = before;
      note_range(*before);
      return Result::queued;
    }
  }
  if (queue_.count() >= limits.packets) return Result::full;
  Packet& placed = *packet;
  frags_ += placed.data().frag_count;
  queue_.insert_before(following, std::move(packet));
  hint_ = &placed;
  note_range(placed);
  return Result::queued;
}

PacketPtr Reassembly::take(Seq next) noexcept {
  while (Packet* first = queue_.front()) {
    if (begin_of(*first) > next) return nullptr;
    if (hint_ == first) hint_ = nullptr;
    PacketPtr packet = queue_.pop_front();
    frags_ -= packet->data().frag_count;
    if (end_of(*packet) <= next) continue;
    const uint32_t old = bytes_between(begin_of(*packet), next);
    if (old > 0) packet->pull_frags(old);
    set_range(*packet, next);
    return packet;
  }
  return nullptr;
}

// Puts the block around `packet` in front of the blocks told last (RFC 2018 4).
void Reassembly::note_range(Packet& packet) noexcept {
  Seq left = begin_of(packet);
  Seq right = end_of(packet);
  int steps = kEdgeWalkMax;
  for (Packet* p = queue_.previous(packet); p != nullptr && steps-- > 0 && end_of(*p) == left;
       p = queue_.previous(*p)) {
    left = begin_of(*p);
  }
  steps = kEdgeWalkMax;
  for (Packet* p = queue_.next(packet); p != nullptr && steps-- > 0 && begin_of(*p) == right;
       p = queue_.next(*p)) {
    right = end_of(*p);
  }
  std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax> kept{};
  size_t count = 0;
  for (size_t i = 0; i < recent_count_; ++i) {
    const Seq other_left(recent_[i].left);
    const Seq other_right(recent_[i].right);
    if (other_left <= right && left <= other_right) {  // touches: it is one block now
      left = min(left, other_left);
      right = max(right, other_right);
    } else {
      kept[count++] = recent_[i];
    }
  }
  recent_[0] = {left.value(), right.value()};
  recent_count_ = 1;
  for (size_t i = 0; i < count && recent_count_ < recent_.size(); ++i) {
    recent_[recent_count_++] = kept[i];
  }
}

size_t Reassembly::blocks(std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax>& out, Seq next,
                          size_t count_max) noexcept {
  size_t kept = 0;
  for (size_t i = 0; i < recent_count_; ++i) {
    if (Seq(recent_[i].left) > next) recent_[kept++] = recent_[i];
  }
  recent_count_ = kept;
  const size_t count = std::min({recent_count_, count_max, out.size()});
  std::copy_n(recent_.begin(), count, out.begin());
  return count;
}

void Reassembly::clear() noexcept {
  queue_.clear();
  frags_ = 0;
  hint_ = nullptr;
  recent_count_ = 0;
}

}  // namespace nobounce::tcp
