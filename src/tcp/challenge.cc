// Acknowledgements that are owed, and those a blind attacker would like to provoke (RFC 5961, T-21).
#include "tcp/machine.hpp"

namespace nobounce::tcp {

void Machine::need_ack(Connection& c, AckNeed need) noexcept {
  if (need == AckNeed::now) {
    c.ack_need = AckNeed::now;
    note_work(c);
  } else if (need == AckNeed::delayed && c.ack_need == AckNeed::none) {
    c.ack_need = AckNeed::delayed;
    c.ack_timer.arm(context_.timers, now() + options_.delayed_ack_ns);
  }
}

void Machine::challenge(Connection& c) noexcept {
  if (now() < c.challenge_ns || !challenges_.take(now(), context_.random)) {
    counters_.challenge_suppressed.add();
    return;
  }
  c.challenge_ns = now() + kChallengeGapNs;
  counters_.challenge_acks.add();
  send_ack(c);
}

}  // namespace nobounce::tcp
