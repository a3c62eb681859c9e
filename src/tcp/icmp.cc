// ICMP errors about our segments (T-53, T-54, RFC 5927): believed only when they quote a sequence
// number that is outstanding.
#include "tcp/machine.hpp"

namespace nobounce::tcp {
namespace {

std::errc reason_of(ip::IcmpError::Kind kind) noexcept {
  using Kind = ip::IcmpError::Kind;
  switch (kind) {
    case Kind::net_unreachable:
      return std::errc::network_unreachable;
    case Kind::protocol_unreachable:
    case Kind::port_unreachable:
      return std::errc::connection_refused;
    default:
      return std::errc::host_unreachable;
  }
}

bool is_hard(ip::IcmpError::Kind kind) noexcept {
  using Kind = ip::IcmpError::Kind;
  return kind == Kind::protocol_unreachable || kind == Kind::port_unreachable;
}

}  // namespace

void Machine::icmp_error(const ip::IcmpError& error) noexcept {
  if (error.quote.size() < 8) {
    counters_.icmp_ignored.add();
    return;
  }
  const Endpoint local{error.source, load_be<uint16_t>(error.quote, 0)};
  const Endpoint remote{error.destination, load_be<uint16_t>(error.quote, 2)};
  const Seq seq(load_be<uint32_t>(error.quote, 4));
  Connection* c = table_.find(local, remote);
  if (c == nullptr || seq < c->snd_una || seq >= c->snd_nxt) {
    counters_.icmp_ignored.add();
    return;
  }
  pin(*c);
  if (error.kind == ip::IcmpError::Kind::fragmentation_needed) {
    on_path_mtu(*c, error.next_hop_mtu);
  } else if (is_hard(error.kind) && !is_synchronized(c->state)) {
    finish(*c, reason_of(error.kind));
  } else {
    c->soft_error = reason_of(error.kind);
  }
  unpin(*c);
}

}  // namespace nobounce::tcp
