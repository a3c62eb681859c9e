// Closing (RFC 9293 3.6): FIN after the data, TIME-WAIT, and the ways that end at once.
#include "tcp/machine.hpp"

namespace nobounce::tcp {

void Machine::shutdown_send(Connection& c) noexcept {
  if (c.fin_queued) return;
  switch (c.state) {
    case TcpState::syn_sent:
    case TcpState::syn_received:
      c.fin_queued = true;  // FIN-WAIT-1 as soon as the handshake is done
      return;
    case TcpState::established:
      c.state = TcpState::fin_wait_1;
      break;
    case TcpState::close_wait:
      c.state = TcpState::last_ack;
      break;
    default:
      return;
  }
  c.fin_queued = true;
  c.hold_partial = false;
  push(c);
}

void Machine::release(Connection& c) noexcept {
  NB_ASSERT(!c.released);
  c.released = true;
  c.owner = nullptr;
  if (c.state == TcpState::closed || c.state == TcpState::syn_sent) return forget(c);
  const bool unread = !c.receive_queue.empty() || !c.reassembly.empty();
  if (unread && c.state != TcpState::time_wait) return reset_and_forget(c);  // T-57
  c.receive_queue.clear();
  if (c.state == TcpState::time_wait) return;  // its timer ends it
  if (orphans_ >= std::max<size_t>(options_.connections_max / 2, 1)) {
    counters_.limit_orphans.add();
    return reset_and_forget(c);
  }
  c.is_orphan = true;
  ++orphans_;
  pin(c);
  shutdown_send(c);
  if (c.state == TcpState::fin_wait_2) arm_life_timer(c);
  unpin(c);
}

void Machine::abort(Connection& c) noexcept {
  NB_ASSERT(!c.released);
  c.released = true;
  c.owner = nullptr;
  reset_and_forget(c);
}

void Machine::reset_and_forget(Connection& c) noexcept {
  c.receive_queue.clear();
  if (c.state != TcpState::closed && c.state != TcpState::time_wait) send_reset(c);
  forget(c);
}

namespace {

// Ours is said and acknowledged, or was never begun.
bool is_all_acked(TcpState state) noexcept {
  return state == TcpState::closed || state == TcpState::syn_sent ||
         state == TcpState::fin_wait_2 || state == TcpState::time_wait;
}

}  // namespace

bool Machine::is_draining() noexcept {
  if (orphans_ == 0) return false;
  for (Connection* c = all_.front(); c != nullptr; c = all_.next(*c)) {
    if (c->is_orphan && !is_all_acked(c->state)) return true;
  }
  return false;
}

// Latest last in the list.
bool Machine::repeat_last_acks() noexcept {
  bool any = false;
  for (Connection* c = time_wait_.back(); c != nullptr; c = time_wait_.previous(*c)) {
    if (now() - c->heard_ns > kLastAckNs) break;  // by age: the peer has spoken again since
    send_ack(*c);
    any = true;
  }
  return any;
}

// A peer that has all of a closed socket is left in peace: a reset could cost its program what it
// has not read yet. Half-open ones are their listener's to end.
void Machine::reset_all() noexcept {
  for (Connection* c = all_.front(); c != nullptr; c = all_.next(*c)) {
    const bool done = c->is_orphan && is_all_acked(c->state);
    const bool silent = c->state == TcpState::closed || c->state == TcpState::syn_sent ||
                        c->state == TcpState::time_wait || c->listener != nullptr;
    if (!done && !silent) send_reset(*c);
  }
}

// Both streams are done with: the owner hears of it now, the pair is kept for 2 MSL (T-58).
void Machine::enter_time_wait(Connection& c) noexcept {
  c.state = TcpState::time_wait;
  c.tell_closed = true;
  c.closed_reason = {};
  c.send_timer.cancel();
  c.send_timer_kind = SendTimer::off;
  time_wait_.push_back(c);
  if (c.is_orphan) {  // it needs nothing any more, and goes first when there is no room
    c.is_orphan = false;
    --orphans_;
  }
  c.life_timer.arm(context_.timers, now() + 2 * options_.msl_ns);
}

}  // namespace nobounce::tcp
