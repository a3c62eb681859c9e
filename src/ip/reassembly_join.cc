// A datagram whose fragments are all there, as one packet.
#include <algorithm>

#include "base/checksum.hpp"
#include "ip/reassembly.hpp"

namespace nobounce::ip {
namespace {

constexpr uint8_t kNotEct = 1u << 0;
constexpr uint8_t kCe = 1u << 3;

// The header of a packet that was never cut: whole length, no offset, no flags.
void make_whole(MutableBytes header, size_t total) noexcept {
  store_be<uint16_t>(header, 2, static_cast<uint16_t>(total));
  store_be<uint16_t>(header, 6, 0);
  store_be<uint16_t>(header, 10, 0);
  store_be<uint16_t>(header, 10, checksum_finish(checksum_add(0, header)));
}

// Appends pieces of packets to fresh private pages.
class PageWriter {
 public:
  explicit PageWriter(std::span<Page* const> pages) noexcept : pages_(pages) {}

  void copy(Bytes from) noexcept {
    while (!from.empty()) {
      const MutableBytes room = next(from.size());
      std::ranges::copy(from.first(room.size()), room.begin());
      from = from.subspan(room.size());
    }
  }
  void copy(const Frag& frag) noexcept {
    for (uint32_t done = 0; done < frag.size;) {
      const MutableBytes room = next(frag.size - done);
      page_read(*frag.page, frag.offset + done, room);
      done += static_cast<uint32_t>(room.size());
    }
  }

 private:
  MutableBytes next(size_t wanted) noexcept {
    const size_t offset = written_ % kPageSize;
    const size_t size = std::min(wanted, kPageSize - offset);
    const MutableBytes room = private_bytes(*pages_[written_ / kPageSize], offset, size);
    written_ += size;
    return room;
  }

  std::span<Page* const> pages_;
  size_t written_ = 0;
};

}  // namespace

// In every case the datagram is gone afterwards.
std::optional<Reassembly::Whole> Reassembly::complete(Datagram& datagram) noexcept {
  NB_ASSERT(datagram.header_size > 0);
  const size_t total = datagram.header_size + datagram.total;
  Whole whole;
  whole.header_bytes = datagram.header;
  whole.header_size = datagram.header_size;
  const MutableBytes header = MutableBytes(whole.header_bytes).first(whole.header_size);
  if (total > kPacketMax) {  // the first fragment's header is longer than the others'
    too_long_.add();
  } else if (!settle_ecn(datagram, header)) {
    mixed_ecn_.add();
  } else {
    make_whole(header, total);
    whole.packet = join(datagram);
    if (whole.packet == nullptr) no_memory_.add();
  }
  remove(datagram);
  if (whole.packet == nullptr) return std::nullopt;
  whole_.add();
  return whole;
}

// RFC 3168 5.3: congestion met by one fragment was met by the datagram; a mark on what did not ask for
// marks is an error.
bool Reassembly::settle_ecn(const Datagram& datagram, MutableBytes header) noexcept {
  if ((datagram.ecn_seen & kCe) == 0) return true;
  if ((datagram.ecn_seen & kNotEct) != 0) return false;
  store_be<uint8_t>(header, 1, static_cast<uint8_t>(load_be<uint8_t>(header, 1) | 3));
  return true;
}

PacketPtr Reassembly::join(Datagram& datagram) noexcept {
  size_t frags = 0;
  for (Packet* part = datagram.fragments.front(); part != nullptr;
       part = datagram.fragments.next(*part)) {
    frags += part->data().frag_count;
  }
  if (frags > kFragsMax) return compact(datagram);
  PacketPtr whole(datagram.fragments.pop_front());
  while (Packet* next = datagram.fragments.pop_front()) {
    const PacketPtr part(next);
    const PacketData& data = part->data();
    for (uint8_t i = 0; i < data.frag_count; ++i) {
      const Frag& frag = data.frags[i];
      if (frag.size == 0) continue;
      page_hold(*frag.page);
      const bool is_added = whole->add_frag(*frag.page, frag.offset, frag.size);
      NB_ASSERT(is_added);
    }
  }
  // One packet that no device has judged.
  whole->transport = {};
  whole->checksum = Checksum::none;
  whole->gso = Gso::none;
  whole->gso_size = 0;
  whole->gso_segments = 1;
  NB_ASSERT(whole->size() == datagram.total);
  return whole;
}

// Too many pieces for one packet: all of it goes into private pages, each byte read once. The
// transport header stays what the private head said, in the head and in front of the first frag.
PacketPtr Reassembly::compact(Datagram& datagram) noexcept {
  constexpr size_t kPagesMax = (kPacketMax + kPageSize - 1) / kPageSize;
  static_assert(kPagesMax <= kFragsMax);
  const size_t count = (datagram.total + kPageSize - 1) / kPageSize;
  std::array<Page*, kPagesMax> pages;
  PacketPtr whole = context_.packets.make(kHeadBytes - kHeaderWindow);
  if (whole == nullptr) return whole;
  const size_t got = context_.arena.alloc_bulk(pages.data(), count);
  if (got < count) {
    for (size_t i = 0; i < got; ++i) page_put(*pages[i]);
    return {};
  }
  PageWriter writer(std::span<Page* const>(pages.data(), count));
  const Packet& first = *datagram.fragments.front();
  const Bytes head = first.head();
  std::ranges::copy(head, whole->append(head.size()).begin());
  writer.copy(head);
  for (Packet* part = datagram.fragments.front(); part != nullptr;
       part = datagram.fragments.next(*part)) {
    const PacketData& data = part->data();
    for (uint8_t i = 0; i < data.frag_count; ++i) writer.copy(data.frags[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    const auto skip = i == 0 ? static_cast<uint32_t>(head.size()) : 0u;
    const auto size = static_cast<uint32_t>(std::min(datagram.total - i * kPageSize, kPageSize));
    const bool is_added = whole->add_frag(*pages[i], skip, size - skip);
    NB_ASSERT(is_added);
  }
  NB_ASSERT(whole->size() == datagram.total);
  whole->link_header = first.link_header;
  whole->queue = first.queue;
  whole->time_ns = first.time_ns;
  compacted_.add();
  compacted_bytes_.add(datagram.total);
  return whole;
}

}  // namespace nobounce::ip
