// What a segment may measure on its way (T-53): told by routers, or guessed when they keep silent.
#include <algorithm>

#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

// A black hole is guessed at in these steps: after the third time-out of the same large segment, and
// after the sixth. Tunnels of every kind leave 1280 (RFC 8200 5), nothing leaves less than the floor.
constexpr uint32_t kBlackHoleRetries = 3;
constexpr uint16_t kBlackHoleMtu = 1280;

// RFC 1191 7.1: for routers that do not say.
uint16_t next_plateau(uint16_t mtu) noexcept {
  static constexpr uint16_t kPlateaus[] = {32000, 17914, 8166, 4352, 2002, 1492, 1006, 576};
  for (const uint16_t plateau : kPlateaus) {
    if (plateau < mtu) return plateau;
  }
  return kPathMtuFloor;
}

}  // namespace

// Only ever down, never below the floor; what is out goes again in the new size, and the congestion
// window stays: nothing was lost to congestion. All that goes to that destination is told.
void Machine::on_path_mtu(Connection& c, uint16_t next_hop_mtu) noexcept {
  uint16_t mtu = next_hop_mtu != 0 ? next_hop_mtu : next_plateau(c.path_mtu);
  mtu = std::max(mtu, kPathMtuFloor);
  if (mtu >= c.path_mtu || !may_send(c.state)) {
    counters_.icmp_ignored.add();
    return;
  }
  counters_.path_mtu_lowered.add();
  ip_.lower_path_mtu(c.remote.address, mtu);
  c.path_mtu = mtu;
  c.path_mtu_until_ns = now() + kPathMtuAgeNs;
  refresh_mss(c);
  send_all_again(c);
  c.needs_output = true;
  note_work(c);
}

// One time-out says nothing about size; several of a segment that is larger than every path must take
// do (RFC 4821 7.7, RFC 8899 4.3). A guess is this connection's own: an outage looks the same.
void Machine::guess_black_hole(Connection& c) noexcept {
  if (c.retries % kBlackHoleRetries != 0 || !is_synchronized(c.state)) return;
  const uint16_t guess = c.retries == kBlackHoleRetries ? kBlackHoleMtu : kPathMtuFloor;
  const Packet* first = c.send_queue.front();
  if (c.path_mtu <= guess || first == nullptr || first == c.unsent) return;
  const uint32_t sent = bytes_between(c.snd_una, Seq(first->transport.end_sequence));
  const uint32_t others = c.path_mtu - std::min<uint32_t>(c.mss, c.path_mtu);  // headers, options
  if (std::min(sent, c.mss) + others <= guess) return;
  counters_.black_hole_guesses.add();
  c.path_mtu = guess;
  c.path_mtu_until_ns = now() + kPathMtuAgeNs;
  refresh_mss(c);
}

}  // namespace nobounce::tcp
