// The table: which fragments are kept, for how long, and who goes when room is needed. How a whole
// datagram becomes one packet is in reassembly_join.cc.
#include "ip/reassembly.hpp"

#include <algorithm>

namespace nobounce::ip {
namespace {

constexpr size_t kBuckets = 2 * Reassembly::kDatagramsMax;
static_assert((kBuckets & (kBuckets - 1)) == 0);

// True size of what a packet pins: whole blocks (TM-67).
uint32_t pages_of(const Packet& packet) noexcept {
  uint32_t pages = 0;
  const PacketData& data = packet.data();
  for (uint8_t i = 0; i < data.frag_count; ++i) {
    pages += 1u << page_head(*data.frags[i].page).order;
  }
  return std::max(pages, 1u);
}

// A small packet may be all head: what waits lies in a page, with the head's bytes in front of it, as
// a device that had one would have left it.
bool lies_in_pages(Packet& packet, PrivateArena& arena) noexcept {
  if (packet.data().frag_count > 0) return true;
  Page* page = arena.alloc(0);
  if (page == nullptr) return false;
  page_write(*page, 0, packet.head());
  const bool is_added = packet.add_frag(*page, static_cast<uint32_t>(packet.head().size()), 0);
  NB_ASSERT(is_added);
  return true;
}

}  // namespace

Reassembly::Reassembly(ShardContext& context, Observer& observer, size_t pages_max)
    : context_(context),
      observer_(observer),
      pages_max_(std::max<size_t>(pages_max, 2)),
      pages_per_source_max_(std::max(pages_max_ / 2, std::min(pages_max_, kFragmentsMax))),
      key_(SipKey::make(context.random)),
      buckets_(kBuckets),
      timer_([](void* self, uint64_t now_ns) { static_cast<Reassembly*>(self)->on_timer(now_ns); },
             this),
      fragments_(context.counters.counter("ip.reassembly.fragments")),
      whole_(context.counters.counter("ip.reassembly.whole")),
      compacted_(context.counters.counter("ip.reassembly.compacted")),
      compacted_bytes_(context.counters.counter("ip.reassembly.compacted_bytes")),
      duplicates_(context.counters.counter("ip.reassembly.duplicates")),
      timed_out_(context.counters.counter("ip.reassembly.timed_out")),
      bad_length_(context.counters.counter("ip.reassembly.drop.bad_length")),
      too_long_(context.counters.counter("ip.reassembly.drop.too_long")),
      overlap_(context.counters.counter("ip.reassembly.drop.overlap")),
      two_ends_(context.counters.counter("ip.reassembly.drop.two_ends")),
      mixed_ecn_(context.counters.counter("ip.reassembly.drop.mixed_ecn")),
      late_(context.counters.counter("ip.reassembly.drop.late")),
      no_memory_(context.counters.counter("ip.reassembly.drop.no_memory")),
      limit_fragments_(context.counters.counter("ip.reassembly.limit.fragments")),
      limit_datagrams_(context.counters.counter("ip.reassembly.limit.datagrams")),
      limit_source_datagrams_(context.counters.counter("ip.reassembly.limit.source_datagrams")),
      limit_pages_(context.counters.counter("ip.reassembly.limit.pages")),
      limit_source_pages_(context.counters.counter("ip.reassembly.limit.source_pages")) {}

Reassembly::~Reassembly() {
  timer_.cancel();
  while (!by_age_.empty()) remove(*by_age_.front());
  NB_ASSERT(pages_ == 0);
}

std::optional<Reassembly::Whole> Reassembly::add(PacketPtr packet,
                                                 const wire::Ipv4View& header) noexcept {
  NB_ASSERT(header.is_fragment());
  fragments_.add();
  const auto range = range_of(*packet, header);
  if (!range) return std::nullopt;
  Datagram* found = find(header);
  Datagram& datagram = found != nullptr ? *found : make(header);
  if (datagram.is_poisoned) {
    late_.add();
    return std::nullopt;
  }
  if (!fits_ends(datagram, *range)) {
    two_ends_.add();
    poison(datagram);
    return std::nullopt;
  }
  if (!insert(datagram, std::move(packet), header, *range)) return std::nullopt;
  if (datagram.total == 0 || datagram.held < datagram.total) return std::nullopt;
  return complete(datagram);
}

// ---- one fragment -------------------------------------------------------------------------------

// Each length is judged before it is added to another: nothing here wraps.
std::optional<Reassembly::Range> Reassembly::range_of(const Packet& packet,
                                                      const wire::Ipv4View& header) noexcept {
  NB_ASSERT(packet.size() == header.total_length());
  const uint32_t bytes =
      uint32_t{header.total_length()} - static_cast<uint32_t>(header.header_size());
  if (bytes == 0 || (header.more_fragments() && bytes % 8 != 0)) {
    bad_length_.add();
    return std::nullopt;
  }
  const uint32_t begin = header.fragment_offset();
  if (header.header_size() + begin + bytes > kPacketMax) {
    too_long_.add();
    return std::nullopt;
  }
  return Range{.begin = begin, .end = begin + bytes, .is_last = !header.more_fragments()};
}

// A datagram has one end, and nothing lies beyond it.
bool Reassembly::fits_ends(Datagram& datagram, const Range& range) noexcept {
  if (datagram.total != 0 && range.end > datagram.total) return false;
  if (!range.is_last) return true;
  if (datagram.total != 0 && range.end != datagram.total) return false;
  const Packet* farthest = datagram.fragments.back();
  if (farthest != nullptr && farthest->transport.end_sequence > range.end) return false;
  datagram.total = range.end;
  return true;
}

// False: the fragment is not kept (a duplicate, an overlap, a bound); then `datagram` may be gone.
bool Reassembly::insert(Datagram& datagram, PacketPtr packet, const wire::Ipv4View& header,
                        const Range& range) noexcept {
  Packet* behind = nullptr;
  const Packet* farthest = datagram.fragments.back();
  if (farthest != nullptr && farthest->transport.end_sequence > range.begin) {
    behind = datagram.fragments.front();
    while (behind->transport.end_sequence <= range.begin) behind = datagram.fragments.next(*behind);
    if (behind->transport.sequence == range.begin && behind->transport.end_sequence == range.end) {
      duplicates_.add();
      return false;
    }
    if (behind->transport.sequence < range.end) {
      overlap_.add();
      poison(datagram);
      return false;
    }
  }
  if (datagram.fragments.size() == kFragmentsMax) {
    limit_fragments_.add();
    poison(datagram);
    return false;
  }
  const uint32_t pages = pages_of(*packet);
  if (!make_room(datagram, pages)) return false;
  if (!lies_in_pages(*packet, context_.arena)) {
    no_memory_.add();
    return false;
  }
  keep(datagram, std::move(packet), header, range, behind);
  datagram.pages += pages;
  datagram.source->pages += pages;
  pages_ += pages;
  return true;
}

// The first fragment's private head is the transport header; all else of a fragment is payload, which
// is read where it lies.
void Reassembly::keep(Datagram& datagram, PacketPtr packet, const wire::Ipv4View& header,
                      const Range& range, Packet* behind) noexcept {
  const size_t header_size = header.header_size();
  if (range.begin == 0) {
    std::ranges::copy(packet->head().first(header_size), datagram.header.begin());
    datagram.header_size = static_cast<uint8_t>(header_size);
  }
  packet->pull(header_size);
  if (range.begin != 0) packet->give_back_head(0);
  packet->transport = {.sequence = range.begin, .end_sequence = range.end};
  datagram.held += range.end - range.begin;
  datagram.ecn_seen |= static_cast<uint8_t>(1u << (header.tos() & 3));
  Packet& kept = *packet.release();
  behind != nullptr ? datagram.fragments.insert_before(*behind, kept)
                    : datagram.fragments.push_back(kept);
}

// ---- the table ----------------------------------------------------------------------------------

Reassembly::Source** Reassembly::bucket(const IpAddress& address) noexcept {
  const uint64_t hash = siphash(key_, std::as_bytes(std::span(address.bytes())));
  return &buckets_[hash & (kBuckets - 1)];
}

Reassembly::Source* Reassembly::find_source(const IpAddress& address) noexcept {
  Source* source = *bucket(address);
  while (source != nullptr && source->address != address) source = source->chain;
  return source;
}

// At most kDatagramsPerSource steps.
Reassembly::Datagram* Reassembly::find(const wire::Ipv4View& header) noexcept {
  Source* source = find_source(header.source());
  if (source == nullptr) return nullptr;
  for (Datagram* d = source->datagrams.front(); d != nullptr; d = source->datagrams.next(*d)) {
    if (d->id == header.identification() && d->protocol == header.protocol() &&
        d->destination == header.destination()) {
      return d;
    }
  }
  return nullptr;
}

Reassembly::Datagram& Reassembly::make(const wire::Ipv4View& header) noexcept {
  Source* source = find_source(header.source());
  if (source != nullptr && source->datagrams.size() == kDatagramsPerSource) {
    limit_source_datagrams_.add();
    remove(*source->datagrams.front());
  } else if (datagrams_.room() == 0) {
    limit_datagrams_.add();
    remove(*by_age_.front());
    source = find_source(header.source());  // it may have gone with its last datagram
  }
  if (source == nullptr) {
    source = sources_.acquire();
    NB_ASSERT(source != nullptr);  // not more sources than datagrams
    source->address = header.source();
    Source** head = bucket(source->address);
    source->chain = *head;
    *head = source;
    live_sources_.push_back(*source);
  }
  Datagram* datagram = datagrams_.acquire();
  NB_ASSERT(datagram != nullptr);
  datagram->source = source;
  datagram->destination = header.destination();
  datagram->id = header.identification();
  datagram->protocol = header.protocol();
  datagram->deadline_ns = context_.now_ns + kTimeoutNs;
  source->datagrams.push_back(*datagram);
  by_age_.push_back(*datagram);
  rearm();
  return *datagram;
}

Reassembly::Source& Reassembly::heaviest() noexcept {
  Source* heaviest = live_sources_.front();
  NB_ASSERT(heaviest != nullptr);
  for (Source* source = heaviest; source != nullptr; source = live_sources_.next(*source)) {
    if (source->pages > heaviest->pages) heaviest = source;
  }
  return *heaviest;
}

bool Reassembly::make_room(Datagram& datagram, uint32_t pages) noexcept {
  for (;;) {
    const bool is_source_full = datagram.source->pages + pages > pages_per_source_max_;
    if (!is_source_full && pages_ + pages <= pages_max_) return true;
    (is_source_full ? limit_source_pages_ : limit_pages_).add();
    Source& source = is_source_full ? *datagram.source : heaviest();
    Datagram* oldest = source.datagrams.front();
    const bool is_itself = oldest == &datagram;
    remove(*oldest);
    if (is_itself) return false;
  }
}

void Reassembly::release_fragments(Datagram& datagram) noexcept {
  while (Packet* fragment = datagram.fragments.pop_front()) const PacketPtr gone(fragment);
  datagram.source->pages -= datagram.pages;
  pages_ -= datagram.pages;
  datagram.pages = 0;
  datagram.held = 0;
  datagram.header_size = 0;
}

// What comes of it later is known, and dropped, until its time is over.
void Reassembly::poison(Datagram& datagram) noexcept {
  release_fragments(datagram);
  datagram.is_poisoned = true;
}

void Reassembly::remove(Datagram& datagram) noexcept {
  release_fragments(datagram);
  Source& source = *datagram.source;
  source.datagrams.remove(datagram);
  by_age_.remove(datagram);
  datagrams_.release(&datagram);
  if (source.datagrams.empty()) {
    NB_ASSERT(source.pages == 0);
    Source** link = bucket(source.address);
    while (*link != &source) link = &(*link)->chain;
    *link = source.chain;
    live_sources_.remove(source);
    sources_.release(&source);
  }
  rearm();
}

// ---- time ---------------------------------------------------------------------------------------

void Reassembly::on_timer(uint64_t now_ns) noexcept {
  context_.now_ns = std::max(context_.now_ns, now_ns);
  for (Datagram* datagram = by_age_.front(); datagram != nullptr && datagram->deadline_ns <= now_ns;
       datagram = by_age_.front()) {
    if (!datagram->is_poisoned) timed_out_.add();
    if (datagram->header_size > 0) {
      const auto header =
          wire::Ipv4View::parse_quoted(Bytes(datagram->header).first(datagram->header_size));
      NB_ASSERT(header.has_value());  // it was parsed when it came
      observer_.timed_out(*datagram->fragments.front(), *header);
    }
    remove(*datagram);
  }
  rearm();
}

void Reassembly::rearm() noexcept {
  if (Datagram* oldest = by_age_.front(); oldest != nullptr) {
    timer_.arm(context_.timers, oldest->deadline_ns);
  } else {
    timer_.cancel();
  }
}

}  // namespace nobounce::ip
