#include "ip/neighbours.hpp"

#include <algorithm>
#include <bit>

#include "wire/ethernet.hpp"

namespace nobounce::ip {

Neighbours::Neighbours(ShardContext& context, Output& output, Observer& observer,
                       const Routes& routes, const NeighbourOptions& options)
    : context_(context),
      output_(output),
      observer_(observer),
      routes_(routes),
      options_(options),
      key_(SipKey::make(context.random)),
      timer_([](void* self, uint64_t now_ns) { static_cast<Neighbours*>(self)->on_timer(now_ns); },
             this),
      requests_sent_(context.counters.counter("arp.requests_sent")),
      replies_sent_(context.counters.counter("arp.replies_sent")),
      received_(context.counters.counter("arp.received")),
      malformed_(context.counters.counter("arp.malformed")),
      ignored_(context.counters.counter("arp.ignored")),
      conflicts_(context.counters.counter("arp.conflicts")),
      unresolved_(context.counters.counter("arp.unresolved")),
      pending_dropped_(context.counters.counter("arp.pending_dropped")),
      table_full_(context.counters.counter("arp.table_full")),
      incomplete_limit_(context.counters.counter("arp.incomplete_limit")),
      evicted_(context.counters.counter("arp.evicted")),
      output_full_(context.counters.counter("arp.output_full")) {
  options_.entries_max = std::max<size_t>(options_.entries_max, 2);
  entries_ = std::make_unique<Entry[]>(options_.entries_max);
  buckets_.resize(std::bit_ceil(options_.entries_max * 2));
  for (size_t i = 0; i < options_.entries_max; ++i) free_.push_back(entries_[i]);
}

Neighbours::~Neighbours() {
  timer_.cancel();
  for (size_t i = 0; i < options_.entries_max; ++i) {
    if (entries_[i].status != Status::free) remove(entries_[i]);
  }
  while (free_.pop_front() != nullptr) {
  }
}

// ---- table --------------------------------------------------------------------------------------

Neighbours::Entry** Neighbours::bucket(const IpAddress& address) noexcept {
  const uint64_t hash = siphash(key_, std::as_bytes(std::span(address.bytes())));
  return &buckets_[hash & (buckets_.size() - 1)];
}

Neighbours::Entry* Neighbours::find(const IpAddress& address) noexcept {
  Entry* entry = *bucket(address);
  while (entry != nullptr && entry->address != address) entry = entry->chain;
  return entry;
}

List<Neighbours::Entry>* Neighbours::list_of(Status status) noexcept {
  switch (status) {
    case Status::free:
      return &free_;
    case Status::learned:
      return &learned_;
    case Status::reachable:
      return &reachable_;
    case Status::incomplete:
    case Status::probing:
      return &asking_;
  }
  return &free_;
}

void Neighbours::move_to(Entry& entry, Status status) noexcept {
  list_of(entry.status)->remove(entry);
  if (entry.status == Status::incomplete) --incomplete_;
  entry.status = status;
  if (status == Status::incomplete) ++incomplete_;
  list_of(status)->push_back(entry);
}

// Room for a new entry: an unused one, or one that may go. Null when all are in use.
Neighbours::Entry* Neighbours::evict() noexcept {
  Entry* oldest = learned_.front();
  if (oldest != nullptr && oldest->has_asked &&
      context_.now_ns - oldest->asked_ns < kRequestIntervalNs) {
    oldest = nullptr;  // invariant 2
  }
  if (oldest == nullptr) {
    oldest = reachable_.front();
    if (oldest != nullptr && context_.now_ns - oldest->confirmed_ns < kIdleNs) oldest = nullptr;
  }
  if (oldest == nullptr) return nullptr;
  evicted_.add();
  remove(*oldest);
  return oldest;
}

// A new entry in state learned; null when the table is full (counted).
Neighbours::Entry* Neighbours::add(const IpAddress& address) noexcept {
  Entry* entry = free_.empty() ? evict() : free_.front();
  if (entry == nullptr) {
    table_full_.add();
    return nullptr;
  }
  NB_ASSERT(entry->status == Status::free);
  entry->address = address;
  entry->requests = 0;
  entry->has_asked = false;
  Entry** head = bucket(address);
  entry->chain = *head;
  *head = entry;
  move_to(*entry, Status::learned);
  return entry;
}

void Neighbours::remove(Entry& entry) noexcept {
  Entry** link = bucket(entry.address);
  while (*link != &entry) link = &(*link)->chain;
  *link = entry.chain;
  entry.chain = nullptr;
  while (!entry.pending.empty()) drop_oldest(entry);
  move_to(entry, Status::free);
}

// ---- sending ------------------------------------------------------------------------------------

void Neighbours::forward(const MacAddress& to, PacketPtr packet) noexcept {
  const wire::EthernetHeader header{
      .destination = to, .source = options_.mac, .ether_type = wire::kEtherTypeIpv4};
  header.emit(packet->push(wire::kEthernetHeaderSize));
  if (packet->checksum == Checksum::partial) {
    packet->csum_start = static_cast<uint16_t>(packet->csum_start + wire::kEthernetHeaderSize);
  }
  output_.push(std::move(packet));
}

void Neighbours::send(const IpAddress& next_hop, PacketPtr packet) noexcept {
  Entry* entry = find(next_hop);
  if (entry != nullptr && entry->status != Status::incomplete) {
    const MacAddress to = entry->mac;
    refresh(*entry);
    if (output_.full()) {  // the request took the last place
      pending_dropped_.add();
      return;
    }
    forward(to, std::move(packet));
    return;
  }
  if (entry == nullptr) {
    if (incomplete_ >= options_.entries_max / 2) {
      incomplete_limit_.add();
      return;
    }
    entry = add(next_hop);
    if (entry == nullptr) return;
    move_to(*entry, Status::incomplete);
    ask(*entry);
    rearm();
  }
  keep_pending(*entry, std::move(packet));
}

// An entry in use whose MAC was not confirmed lately is asked again, unicast, while it serves.
void Neighbours::refresh(Entry& entry) noexcept {
  const uint64_t now = context_.now_ns;
  const bool is_old = entry.status == Status::reachable && now - entry.confirmed_ns >= kReachableNs;
  const bool may_ask = !entry.has_asked || now - entry.asked_ns >= kRequestIntervalNs;
  if ((!is_old && entry.status != Status::learned) || !may_ask) return;
  entry.requests = 0;
  move_to(entry, Status::probing);
  ask(entry);
  rearm();
}

void Neighbours::keep_pending(Entry& entry, PacketPtr packet) noexcept {
  if (entry.pending.size() == kPendingMax) {
    drop_oldest(entry);
    pending_dropped_.add();
  } else if (pending_ == kPendingTotalMax) {
    pending_dropped_.add();
    return;
  }
  entry.pending.push_back(*packet.release());
  ++pending_;
}

void Neighbours::drop_oldest(Entry& entry) noexcept {
  const PacketPtr gone(entry.pending.pop_front());
  --pending_;
}

void Neighbours::send_arp(const wire::ArpPacket& arp, const MacAddress& to) noexcept {
  if (output_.full()) {
    output_full_.add();
    return;
  }
  PacketPtr packet = context_.packets.make();
  if (packet == nullptr) return;  // counted by the pool; asked again in a second
  arp.emit(packet->append(wire::kArpSize));
  const wire::EthernetHeader header{
      .destination = to, .source = options_.mac, .ether_type = wire::kEtherTypeArp};
  header.emit(packet->push(wire::kEthernetHeaderSize));
  output_.push(std::move(packet));
}

void Neighbours::announce() noexcept {
  for (const IpPrefix& own : routes_.addresses()) announce(own.address);
}

void Neighbours::announce(const IpAddress& address) noexcept {
  requests_sent_.add();
  send_arp({.operation = wire::ArpOperation::request,
            .sender_mac = options_.mac,
            .sender_ip = address,
            .target_mac = {},
            .target_ip = address},
           MacAddress::broadcast());
}

// ---- asking -------------------------------------------------------------------------------------

// One request; the entry is (or goes) at the end of the asking queue.
void Neighbours::ask(Entry& entry) noexcept {
  ++entry.requests;
  entry.has_asked = true;
  entry.asked_ns = context_.now_ns;
  entry.deadline_ns = context_.now_ns + kRequestIntervalNs;
  requests_sent_.add();
  const bool is_probe = entry.status == Status::probing;
  send_arp({.operation = wire::ArpOperation::request,
            .sender_mac = options_.mac,
            .sender_ip = routes_.source_on_link(entry.address),
            .target_mac = is_probe ? entry.mac : MacAddress{},
            .target_ip = entry.address},
           is_probe ? entry.mac : MacAddress::broadcast());
}

void Neighbours::on_timer(uint64_t now_ns) noexcept {
  context_.now_ns = std::max(context_.now_ns, now_ns);
  for (Entry* entry = asking_.front(); entry != nullptr && entry->deadline_ns <= now_ns;
       entry = asking_.front()) {
    if (entry->requests < kRequestsMax) {
      move_to(*entry, entry->status);  // to the end: its next deadline is the latest
      ask(*entry);
    } else {
      give_up(*entry);
    }
  }
  rearm();
}

void Neighbours::give_up(Entry& entry) noexcept {
  unresolved_.add();
  // The observer may send again to this address: the entry goes first.
  List<Packet> dropped;
  while (Packet* packet = entry.pending.pop_front()) {
    --pending_;
    dropped.push_back(*packet);
  }
  remove(entry);
  while (Packet* next = dropped.pop_front()) {
    const PacketPtr packet(next);
    pending_dropped_.add();
    observer_.unresolved(*packet);
  }
}

void Neighbours::rearm() noexcept {
  if (const Entry* first = asking_.front(); first != nullptr) {
    timer_.arm(context_.timers, first->deadline_ns);
  } else {
    timer_.cancel();
  }
}

// ---- receiving ----------------------------------------------------------------------------------

void Neighbours::receive(const Packet& packet) noexcept {
  received_.add();
  const auto arp = wire::ArpView::parse(packet.head());
  if (!arp) {
    malformed_.add();
    return;
  }
  if (arp->sender_mac() == options_.mac) return;  // our own, looped back
  if (routes_.is_ours(arp->sender_ip())) {
    conflicts_.add();
    defend(arp->sender_ip());
    return;
  }
  if (arp->operation() == wire::ArpOperation::reply) {
    accept_reply(*arp);
    return;
  }
  learn(*arp);
  const IpAddress target = arp->target_ip();
  if (!routes_.is_ours(target) || arp->sender_mac().is_multicast() || arp->sender_mac().is_zero()) {
    return;
  }
  replies_sent_.add();
  send_arp({.operation = wire::ArpOperation::reply,
            .sender_mac = options_.mac,
            .sender_ip = target,
            .target_mac = arp->sender_mac(),
            .target_ip = arp->sender_ip()},
           arp->sender_mac());
}

bool Neighbours::is_learnable(const wire::ArpView& arp) const noexcept {
  const MacAddress mac = arp.sender_mac();
  return !mac.is_multicast() && !mac.is_zero() && routes_.is_neighbour(arp.sender_ip());
}

// A reply counts while we ask its sender, and only when it is addressed to us.
void Neighbours::accept_reply(const wire::ArpView& arp) noexcept {
  Entry* entry = find(arp.sender_ip());
  const bool is_asked =
      entry != nullptr && (entry->status == Status::incomplete || entry->status == Status::probing);
  if (!is_asked || !routes_.is_ours(arp.target_ip()) || arp.target_mac() != options_.mac ||
      arp.sender_mac().is_multicast() || arp.sender_mac().is_zero()) {
    ignored_.add();
    return;
  }
  confirm(*entry, arp.sender_mac());
}

void Neighbours::confirm(Entry& entry, const MacAddress& mac) noexcept {
  entry.mac = mac;
  entry.requests = 0;
  entry.confirmed_ns = context_.now_ns;
  move_to(entry, Status::reachable);
  rearm();
  while (Packet* next = entry.pending.pop_front()) {
    PacketPtr packet(next);
    --pending_;
    if (output_.full()) {
      pending_dropped_.add();
      continue;
    }
    forward(mac, std::move(packet));
  }
}

// A request tells who asks. New entries only from requests to us; known ones also move with
// gratuitous requests (the neighbour's address went to another machine), after which the next
// packet asks the new place for confirmation.
void Neighbours::learn(const wire::ArpView& arp) noexcept {
  const bool is_to_us = routes_.is_ours(arp.target_ip());
  const bool is_gratuitous = arp.target_ip() == arp.sender_ip();
  if (!is_learnable(arp) || (!is_to_us && !is_gratuitous)) {
    ignored_.add();
    return;
  }
  Entry* entry = find(arp.sender_ip());
  if (entry == nullptr) {
    if (!is_to_us) {
      ignored_.add();
      return;
    }
    entry = add(arp.sender_ip());
    if (entry != nullptr) entry->mac = arp.sender_mac();
    return;
  }
  if (entry->status == Status::incomplete) {
    if (is_to_us) confirm(*entry, arp.sender_mac());
    return;
  }
  if (entry->mac == arp.sender_mac()) return;
  const bool is_fresh = entry->status == Status::reachable &&
                        context_.now_ns - entry->confirmed_ns < kRequestIntervalNs;
  if (is_fresh) {
    ignored_.add();
    return;
  }
  entry->mac = arp.sender_mac();
  if (entry->status == Status::reachable) move_to(*entry, Status::learned);
}

// Each address by itself: a claim to one does not use up the defence of another.
void Neighbours::defend(const IpAddress& address) noexcept {
  const auto own = routes_.addresses();
  const auto at = std::ranges::find(own, address, &IpPrefix::address);
  NB_ASSERT(at != own.end());
  std::optional<uint64_t>& defended_ns = defended_ns_[static_cast<size_t>(at - own.begin())];
  if (defended_ns && context_.now_ns - *defended_ns < kDefendIntervalNs) return;
  defended_ns = context_.now_ns;
  announce(address);
}

}  // namespace nobounce::ip
