#include "skb/packet.hpp"

#include <algorithm>

namespace nobounce {

// ---- head -------------------------------------------------------------------------------------

Packet::Packet(PacketPool& pool, PacketData& data, size_t headroom) noexcept
    : pool_(&pool), data_(&data), head_start_(static_cast<uint16_t>(headroom)) {
  NB_ASSERT(headroom <= kHeadBytes);
}

Packet::~Packet() { pool_->drop_data(*data_); }

MutableBytes Packet::push(size_t bytes) noexcept {
  NB_ASSERT(bytes <= head_start_);
  head_start_ = static_cast<uint16_t>(head_start_ - bytes);
  head_size_ = static_cast<uint16_t>(head_size_ + bytes);
  return mutable_head().first(bytes);
}

void Packet::pull(size_t bytes) noexcept {
  NB_ASSERT(bytes <= head_size_);
  head_start_ = static_cast<uint16_t>(head_start_ + bytes);
  head_size_ = static_cast<uint16_t>(head_size_ - bytes);
}

MutableBytes Packet::append(size_t bytes) noexcept {
  NB_ASSERT(bytes <= tailroom());
  NB_ASSERT(data_->frag_count == 0);
  head_size_ = static_cast<uint16_t>(head_size_ + bytes);
  return mutable_head().last(bytes);
}

// ---- whole packet -----------------------------------------------------------------------------

void Packet::trim(size_t bytes) noexcept {
  if (bytes >= size()) return;
  const size_t head_cut = head_size_ - std::min<size_t>(head_size_, bytes);
  head_size_ = static_cast<uint16_t>(head_size_ - head_cut);
  size_t keep = bytes - head_size_;
  NB_ASSERT(!is_cloned() || keep == data_->bytes);
  PacketData& d = *data_;
  uint8_t index = 0;
  for (; index < d.frag_count && keep > 0; ++index) {
    Frag& frag = d.frags[index];
    frag.size = static_cast<uint32_t>(std::min<size_t>(frag.size, keep));
    keep -= frag.size;
  }
  // A received packet keeps an empty first frag: give_back_head() may still grow it.
  // It lies right behind the head's last byte, also after the head was cut.
  if (index == 0 && d.frag_count > 0) {
    d.frags[0].size = 0;
    d.frags[0].offset -= static_cast<uint32_t>(std::min<size_t>(d.frags[0].offset, head_cut));
    index = 1;
  }
  for (uint8_t i = index; i < d.frag_count; ++i) page_return(*d.frags[i].page);
  d.frag_count = index;
  d.bytes = static_cast<uint32_t>(bytes - head_size_);
}

void Packet::pull_frags(size_t bytes) noexcept {
  PacketData& d = *data_;
  NB_ASSERT(!is_cloned());
  NB_ASSERT(bytes <= d.bytes);
  d.bytes -= static_cast<uint32_t>(bytes);
  uint8_t gone = 0;
  while (gone < d.frag_count && bytes >= d.frags[gone].size) {
    bytes -= d.frags[gone].size;
    page_return(*d.frags[gone].page);
    ++gone;
  }
  if (bytes > 0) {
    NB_ASSERT(gone < d.frag_count);
    d.frags[gone].offset += static_cast<uint32_t>(bytes);
    d.frags[gone].size -= static_cast<uint32_t>(bytes);
  }
  std::move(d.frags.begin() + gone, d.frags.begin() + d.frag_count, d.frags.begin());
  d.frag_count = static_cast<uint8_t>(d.frag_count - gone);
}

void Packet::give_back_head(size_t keep) noexcept {
  NB_ASSERT(keep <= head_size_);
  const auto surplus = static_cast<uint32_t>(head_size_ - keep);
  if (surplus == 0) return;
  NB_ASSERT(!is_cloned());
  PacketData& d = *data_;
  NB_ASSERT(d.frag_count > 0);
  NB_ASSERT(d.frags[0].offset >= surplus);
  d.frags[0].offset -= surplus;
  d.frags[0].size += surplus;
  d.bytes += surplus;
  head_size_ = static_cast<uint16_t>(keep);
}

bool payload_to_frags(Packet& packet, size_t keep, PrivateArena& arena) noexcept {
  NB_ASSERT(keep <= packet.head().size());
  if (packet.head().size() == keep) return true;
  if (packet.data().frag_count > 0) {
    packet.give_back_head(keep);
    return true;
  }
  Page* page = arena.alloc(0);
  if (page == nullptr) return false;
  const Bytes payload = packet.head().subspan(keep);
  const auto bytes = static_cast<uint32_t>(payload.size());
  page_write(*page, 0, payload);
  packet.trim(keep);
  const bool added = packet.add_frag(*page, 0, bytes);
  NB_ASSERT(added);
  return true;
}

void Packet::read(size_t offset, MutableBytes to) const noexcept {
  NB_ASSERT(offset + to.size() <= size());
  if (offset < head_size_) {
    const size_t part = std::min<size_t>(to.size(), head_size_ - offset);
    std::copy_n(head().begin() + static_cast<ptrdiff_t>(offset), part, to.begin());
    to = to.subspan(part);
    offset += part;
  }
  offset -= head_size_;
  for (uint8_t i = 0; i < data_->frag_count && !to.empty(); ++i) {
    const Frag& frag = data_->frags[i];
    if (offset >= frag.size) {
      offset -= frag.size;
      continue;
    }
    const size_t part = std::min<size_t>(to.size(), frag.size - offset);
    page_read(*frag.page, frag.offset + offset, to.first(part));
    to = to.subspan(part);
    offset = 0;
  }
}

uint64_t Packet::sum(size_t offset, size_t bytes) const noexcept {
  NB_ASSERT(offset + bytes <= size());
  uint64_t total = 0;
  size_t done = 0;  // position in the summed range, for odd joins
  if (offset < head_size_) {
    const size_t part = std::min<size_t>(bytes, head_size_ - offset);
    total = checksum_add(0, head().subspan(offset, part));
    done = part;
    offset += part;
  }
  offset -= head_size_;
  for (uint8_t i = 0; i < data_->frag_count && done < bytes; ++i) {
    const Frag& frag = data_->frags[i];
    if (offset >= frag.size) {
      offset -= frag.size;
      continue;
    }
    const size_t part = std::min<size_t>(bytes - done, frag.size - offset);
    total = checksum_join(total, page_sum(*frag.page, frag.offset + offset, part, 0), done);
    done += part;
    offset = 0;
  }
  return total;
}

// ---- frags ------------------------------------------------------------------------------------

bool Packet::add_frag(Page& page, uint32_t offset, uint32_t size) noexcept {
  NB_ASSERT(!is_cloned());
  PacketData& d = *data_;
  if (d.frag_count > 0) {
    Frag& last = d.frags[d.frag_count - 1];
    if (last.page == &page && last.offset + last.size == offset) {
      last.size += size;
      d.bytes += size;
      page_return(page);
      return true;
    }
  }
  if (d.frag_count == kFragsMax) return false;
  d.frags[d.frag_count++] = {&page, offset, size};
  d.bytes += size;
  return true;
}

// ---- pool -------------------------------------------------------------------------------------

void PacketReleaser::operator()(Packet* packet) const noexcept {
  packet->pool().packets_.release(packet);
}

PacketPool::PacketPool(size_t packets, CounterRegistry& counters)
    : packets_(packets), datas_(packets), exhausted_(counters.counter("skb.pool_exhausted")) {}

PacketPtr PacketPool::make(size_t headroom) noexcept {
  if (packets_.room() == 0 || datas_.room() == 0) {
    exhausted_.add();
    return {};
  }
  return PacketPtr(packets_.acquire(*this, *datas_.acquire(), headroom));
}

PacketPtr PacketPool::clone(Packet& packet, size_t headroom) noexcept {
  if (packets_.room() == 0) {
    exhausted_.add();
    return {};
  }
  ++packet.data_->references;
  PacketPtr copy(packets_.acquire(*this, *packet.data_, headroom));
  copy->checksum = packet.checksum;
  copy->gso = packet.gso;
  copy->gso_size = packet.gso_size;
  copy->gso_segments = packet.gso_segments;
  copy->csum_start = packet.csum_start;
  copy->csum_offset = packet.csum_offset;
  copy->queue = packet.queue;
  copy->time_ns = packet.time_ns;
  copy->transport = packet.transport;
  return copy;
}

// Gives `packet` a data area of its own with the same frags (one more reference each) and the same
// notifier, so that the frags of a clone can change (ZN-6, PP-79).
bool PacketPool::unshare(Packet& packet) noexcept {
  if (!packet.is_cloned()) return true;
  PacketData* own = datas_.acquire();
  if (own == nullptr) {
    exhausted_.add();
    return false;
  }
  PacketData& old = *packet.data_;
  own->flags = old.flags;
  own->bytes = old.bytes;
  own->frag_count = old.frag_count;
  for (uint8_t i = 0; i < old.frag_count; ++i) {
    own->frags[i] = old.frags[i];
    page_hold(*old.frags[i].page);
  }
  if (old.notifier != nullptr) {
    own->notifier = old.notifier;
    ++old.notifier->references;
  }
  --old.references;
  packet.data_ = own;
  return true;
}

PacketPtr PacketPool::split(Packet& packet, size_t bytes) noexcept {
  NB_ASSERT(bytes > 0);
  NB_ASSERT(bytes < packet.payload_size());
  if (packets_.room() == 0 || datas_.room() < 2) {
    exhausted_.add();
    return {};
  }
  if (!unshare(packet)) return {};
  PacketPtr rest = make(packet.headroom());
  NB_ASSERT(rest != nullptr);
  PacketData& from = *packet.data_;
  PacketData& to = *rest->data_;
  to.flags = from.flags;
  if (from.notifier != nullptr) {
    to.notifier = from.notifier;
    ++from.notifier->references;
  }
  rest->transport = packet.transport;
  uint8_t index = 0;
  size_t kept = 0;
  while (kept + from.frags[index].size <= bytes) kept += from.frags[index++].size;
  const auto cut = static_cast<uint32_t>(bytes - kept);
  for (uint8_t i = index; i < from.frag_count; ++i) {
    Frag moved = from.frags[i];
    if (i == index && cut > 0) {  // this frag is in both: one reference each
      page_hold(*moved.page);
      from.frags[i].size = cut;
      moved.offset += cut;
      moved.size -= cut;
    }
    to.frags[to.frag_count++] = moved;
    to.bytes += moved.size;
  }
  from.frag_count = static_cast<uint8_t>(index + (cut > 0 ? 1 : 0));
  from.bytes -= to.bytes;
  NB_ASSERT(from.bytes == bytes);
  return rest;
}

void PacketPool::drop_data(PacketData& data) noexcept {
  NB_ASSERT(data.references > 0);
  if (--data.references > 0) return;
  for (uint8_t i = 0; i < data.frag_count; ++i) page_return(*data.frags[i].page);
  clear_notifier(data, true);
  datas_.release(&data);
}

// ---- notifiers --------------------------------------------------------------------------------

void attach_notifier(PacketData& data, Notifier& notifier) noexcept {
  if (data.notifier != nullptr) return;
  data.notifier = &notifier;
  data.flags |= notifier.flags;
  ++notifier.references;
}

void clear_notifier(PacketData& data, bool success) noexcept {
  Notifier* notifier = std::exchange(data.notifier, nullptr);
  data.flags &= static_cast<uint8_t>(~kAllZerocopy);
  if (notifier != nullptr) notifier->ops->complete(*notifier, success);
}

}  // namespace nobounce
