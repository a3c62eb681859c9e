// Life of the objects: made, pinned, told of, finished, freed.
#include "tcp/machine.hpp"

namespace nobounce::tcp {

const char* name(TcpState state) noexcept {
  static constexpr const char* kNames[] = {
      "CLOSED",     "SYN-SENT",   "SYN-RECEIVED", "ESTABLISHED", "FIN-WAIT-1",
      "FIN-WAIT-2", "CLOSE-WAIT", "CLOSING",      "LAST-ACK",    "TIME-WAIT"};
  return kNames[static_cast<size_t>(state)];
}

MachineCounters::MachineCounters(CounterRegistry& r)
    : segments_in(r.counter("tcp.segments_in")),
      segments_out(r.counter("tcp.segments_out")),
      data_segments_out(r.counter("tcp.data_segments_out")),
      retransmitted(r.counter("tcp.retransmitted")),
      timeouts(r.counter("tcp.timeouts")),
      fast_retransmits(r.counter("tcp.fast_retransmits")),
      active_opens(r.counter("tcp.active_opens")),
      passive_opens(r.counter("tcp.passive_opens")),
      established(r.counter("tcp.established")),
      resets_in(r.counter("tcp.resets_in")),
      resets_out(r.counter("tcp.resets_out")),
      bad_header(r.counter("tcp.drop.bad_header")),
      bad_checksum(r.counter("tcp.drop.bad_checksum")),
      no_listener(r.counter("tcp.drop.no_connection")),
      not_unicast(r.counter("tcp.drop.not_unicast")),
      no_ack_flag(r.counter("tcp.drop.no_ack_flag")),
      paws(r.counter("tcp.drop.paws")),
      no_timestamp(r.counter("tcp.drop.no_timestamp")),
      unacceptable(r.counter("tcp.drop.unacceptable")),
      challenge_acks(r.counter("tcp.challenge_acks")),
      challenge_suppressed(r.counter("tcp.challenge_suppressed")),
      ack_invalid(r.counter("tcp.drop.ack_invalid")),
      out_of_order(r.counter("tcp.out_of_order")),
      duplicate(r.counter("tcp.duplicate")),
      limit_connections(r.counter("tcp.limit.connections")),
      limit_listeners(r.counter("tcp.limit.listeners")),
      limit_half_open(r.counter("tcp.limit.half_open")),
      limit_out_of_order(r.counter("tcp.limit.out_of_order")),
      limit_receive_queue(r.counter("tcp.limit.receive_queue")),
      limit_time_wait(r.counter("tcp.limit.time_wait")),
      limit_orphans(r.counter("tcp.limit.orphans")),
      limit_resets(r.counter("tcp.limit.resets")),
      accept_full_syn(r.counter("tcp.drop.accept_queue_full.syn")),
      accept_full_ack(r.counter("tcp.drop.accept_queue_full.ack")),
      accept_full_cookie(r.counter("tcp.drop.accept_queue_full.cookie")),
      cookie_sent(r.counter("tcp.cookie.sent")),
      cookie_accepted(r.counter("tcp.cookie.accepted")),
      cookie_unasked(r.counter("tcp.cookie.refused.unasked")),
      cookie_forged(r.counter("tcp.cookie.refused.forged")),
      cookie_expired(r.counter("tcp.cookie.refused.expired")),
      cookie_misplaced(r.counter("tcp.cookie.refused.misplaced")),
      no_packet(r.counter("tcp.no_packet")),
      blocked(r.counter("tcp.blocked")),
      no_route(r.counter("tcp.no_route")),
      too_big(r.counter("tcp.too_big")),
      sack_in(r.counter("tcp.sack.in")),
      sack_invalid(r.counter("tcp.sack.invalid")),
      sack_reneged(r.counter("tcp.sack.reneged")),
      limit_sack_ranges(r.counter("tcp.limit.sack_ranges")),
      dsack_in(r.counter("tcp.sack.duplicate_in")),
      dsack_out(r.counter("tcp.sack.duplicate_out")),
      rack_lost(r.counter("tcp.rack.lost")),
      rack_lost_again(r.counter("tcp.rack.lost_again")),
      rack_timeouts(r.counter("tcp.rack.timeouts")),
      rack_reordering(r.counter("tcp.rack.reordering")),
      tlp_probes(r.counter("tcp.tlp.probes")),
      tlp_repaired(r.counter("tcp.tlp.repaired")),
      tlp_needless(r.counter("tcp.tlp.needless")),
      needless(r.counter("tcp.retransmitted.needless")),
      undo_dsack(r.counter("tcp.undo.duplicates")),
      undo_timeout(r.counter("tcp.undo.timeout")),
      zero_window_probes(r.counter("tcp.zero_window_probes")),
      keepalive_probes(r.counter("tcp.keepalive_probes")),
      path_mtu_lowered(r.counter("tcp.path_mtu_lowered")),
      black_hole_guesses(r.counter("tcp.black_hole_guesses")),
      icmp_ignored(r.counter("tcp.icmp_ignored")),
      timed_out(r.counter("tcp.timed_out")) {}

namespace {

template <void (Machine::*kHandler)(Connection&) noexcept>
void fire(void* context, uint64_t) {
  auto& connection = *static_cast<Connection*>(context);
  (connection.machine.*kHandler)(connection);
}

}  // namespace

Connection::Connection(Machine& owning, const LayerOptions& layer, RangePool& ranges) noexcept
    : machine(owning),
      scoreboard(ranges),
      rtt(layer.rto_min_ns, layer.rto_max_ns),
      send_timer(&fire<&Machine::on_send_timer>, this),
      loss_timer(&fire<&Machine::on_loss_timer>, this),
      ack_timer(&fire<&Machine::on_ack_timer>, this),
      life_timer(&fire<&Machine::on_life_timer>, this) {}

Machine::Machine(ShardContext& context, ip::Layer& ip, const LayerOptions& options)
    : context_(context),
      ip_(ip),
      options_(options),
      counters_(context.counters),
      isn_key_(SipKey::make(context.random)),
      timestamp_key_(SipKey::make(context.random)),
      cookie_key_(SipKey::make(context.random)),
      ranges_(ranges_of(options.connections_max)),
      connections_(options.connections_max),
      listeners_(options.listeners_max),
      table_(options.connections_max, SipKey::make(context.random)) {}

Machine::~Machine() {
  while (Listener* listener = listener_table_.any()) close(*listener);
  while (Connection* c = all_.front()) {
    c->owner = nullptr;
    c->released = true;
    forget(*c);
  }
}

// When all objects are in use, the oldest in TIME-WAIT goes (T-58): its peer is the most likely to
// be done with it.
Connection* Machine::make_connection(const Endpoint& local, const Endpoint& remote) noexcept {
  if (connections_.room() == 0 && !time_wait_.empty()) {
    Connection& oldest = *time_wait_.front();
    counters_.limit_time_wait.add();
    finish(oldest, {});
    free_if_done(oldest);
  }
  Connection* c = connections_.acquire(*this, options_, ranges_);
  if (c == nullptr) {
    counters_.limit_connections.add();
    return nullptr;
  }
  c->local = local;
  c->remote = remote;
  c->heard_ns = c->progress_ns = now();
  table_.insert(*c);
  all_.push_back(*c);
  return c;
}

void Machine::unpin(Connection& c) noexcept {
  NB_ASSERT(c.pins > 0);
  if (c.pins == 1) tell_owner(c);  // still pinned: the owner may release() inside
  --c.pins;
  free_if_done(c);
}

void Machine::tell_owner(Connection& c) noexcept {
  for (;;) {
    if (c.owner == nullptr) return;
    if (std::exchange(c.tell_connected, false)) {
      c.owner->on_connected();
    } else if (const uint64_t bytes = std::exchange(c.tell_acked, 0); bytes > 0) {
      c.owner->on_acked(bytes);
    } else if (std::exchange(c.tell_readable, false)) {
      c.owner->on_readable();
    } else if (std::exchange(c.tell_closed, false)) {
      c.owner->on_closed(c.closed_reason);
    } else {
      return;
    }
  }
}

void Machine::finish(Connection& c, std::errc reason) noexcept {
  if (c.state == TcpState::closed) return;
  if (c.state == TcpState::time_wait) {
    time_wait_.remove(c);
  } else {
    if (c.listener != nullptr) {
      c.listener->half_open.remove(c);
      c.listener = nullptr;
      --half_open_;
    }
    c.tell_closed = true;
    c.closed_reason = reason;
  }
  c.state = TcpState::closed;
  table_.remove(c);
  c.send_timer.cancel();
  c.loss_timer.cancel();
  c.ack_timer.cancel();
  c.life_timer.cancel();
  if (static_cast<WorkHook&>(c).is_linked()) work_.remove(c);
  if (static_cast<BlockedHook&>(c).is_linked()) blocked_.remove(c);
  c.unsent = c.resend_cursor = nullptr;
  c.unsent_bytes = 0;
  c.send_queue.clear();
  c.scoreboard.clear();
  c.reassembly.clear();
}

void Machine::forget(Connection& c) noexcept {
  finish(c, {});
  free_if_done(c);
}

void Machine::free_if_done(Connection& c) noexcept {
  if (c.pins > 0 || c.state != TcpState::closed || c.owner != nullptr) return;
  if (c.is_orphan) --orphans_;
  all_.remove(c);
  connections_.release(&c);
}

void Machine::note_work(Connection& c) noexcept {
  if (c.state == TcpState::closed || static_cast<WorkHook&>(c).is_linked()) return;
  work_.push_back(c);
}

void Machine::note_blocked(Connection& c) noexcept {
  counters_.blocked.add();
  if (c.state == TcpState::closed || static_cast<BlockedHook&>(c).is_linked()) return;
  blocked_.push_back(c);
}

// Data first: it carries the acknowledgement.
void Machine::end_of_burst() noexcept {
  for (size_t left = work_.size(); left > 0; --left) {
    Connection* c = work_.pop_front();
    if (c == nullptr) return;
    pin(*c);
    if (std::exchange(c->needs_output, false)) output(*c);
    if (c->ack_need == AckNeed::now) send_ack(*c);
    unpin(*c);
  }
}

void Machine::transmit_ready() noexcept {
  for (size_t left = blocked_.size(); left > 0; --left) {
    Connection* c = blocked_.pop_front();
    if (c == nullptr) return;
    pin(*c);
    if (c->state == TcpState::syn_sent || c->state == TcpState::syn_received) {
      (void)send_syn(*c);  // refused again: its timer goes on
    } else {
      output(*c);
    }
    if (c->ack_need == AckNeed::now) send_ack(*c);
    unpin(*c);
  }
}

void Machine::fail_all(std::errc reason) noexcept {
  // Callbacks may free any connection, so the list is turned, not walked.
  for (size_t left = all_.size(); left > 0 && !all_.empty(); --left) {
    Connection& c = *all_.pop_front();
    all_.push_back(c);
    if (c.state == TcpState::closed) continue;
    pin(c);
    finish(c, reason);
    unpin(c);
  }
}

}  // namespace nobounce::tcp
