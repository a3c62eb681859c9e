// The link goes down and comes back (virtio.md 13, C058).
//
// While it is down whatever is sent is lost, so nothing is sent again and nothing counts towards giving
// up: no retry, no keepalive probe, no loss that would close the congestion window. Only time ends a
// connection then: its user time-out (RFC 5482), for an opening one R2 of the SYN, for one whose owner
// has left R2 of data. Others wait as long as the link does; the far end has its own limits.
//
// When it is back every connection speaks at once instead of sitting out a backed-off timer: SYNs and
// everything outstanding go again, from the restart window (RFC 5681 4.1: what was in flight is gone, and
// that says nothing about congestion); who has nothing to send acknowledges, because a window update of
// ours may be among what was lost, and the far end would probe for it ever more rarely.
//
// A connection with ourselves has no link and goes on through all of it.
#include "tcp/machine.hpp"

namespace nobounce::tcp {

void Machine::link_up() noexcept {
  link_is_up_ = true;
  // Callbacks may free any connection, so the list is turned, not walked.
  for (size_t left = all_.size(); left > 0 && !all_.empty(); --left) {
    Connection& c = *all_.pop_front();
    all_.push_back(c);
    if (c.state == TcpState::closed || c.state == TcpState::time_wait) continue;
    if (ip_.is_ours(c.remote.address)) continue;
    pin(c);
    resume(c);
    unpin(c);
  }
}

void Machine::resume(Connection& c) noexcept {
  c.rtt.progress();
  c.persist_backoff = 0;
  if (!is_synchronized(c.state)) {
    if (send_syn(c)) {
      ++c.retransmissions;
      counters_.retransmitted.add();
    } else {
      note_blocked(c);
    }
    restart_retransmit_timer(c);
    return;
  }
  if (c.snd_una != c.snd_nxt) {
    send_all_again(c);
    c.congestion.idle_restart();
  }
  const uint64_t sent_before = counters_.segments_out.value();
  output(c);
  restart_retransmit_timer(c);
  if (counters_.segments_out.value() == sent_before) send_ack(c);
}

// Instead of what its send timer would do.
void Machine::wait_for_link(Connection& c, SendTimer kind) noexcept {
  const bool opening = !is_synchronized(c.state);
  const uint64_t since_ns = opening                         ? c.syn_sent_ns
                            : kind == SendTimer::retransmit ? c.progress_ns
                                                            : c.heard_ns;
  const uint64_t user = c.options.user_timeout_ns;
  const bool over = user != 0    ? now() - since_ns >= user
                    : opening    ? now() - since_ns >= kSynGiveUpNs
                    : c.released ? now() - since_ns >= kDataGiveUpNs
                                 : false;
  if (over) {
    counters_.timed_out.add();
    finish(c, c.soft_error == std::errc{} ? std::errc::timed_out : c.soft_error);
    return;
  }
  kind == SendTimer::persist ? void(++c.persist_backoff)
                             : c.rtt.back_off();  // looks ever more rarely
  arm_send_timer(c);
}

}  // namespace nobounce::tcp
