#include "backend/guest_port.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <array>

#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;  // beside the ring numbers

}  // namespace

Result<std::unique_ptr<GuestPort>> GuestPort::open(Session& session, ShardContext& context,
                                                   BackendCounters& counters,
                                                   const GuestPortOptions& options) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) return fail_errno("open the guest port");
  for (const int fd : options.wake_fds) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeTag}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail_errno("open the guest port");
    }
  }
  return std::unique_ptr<GuestPort>(
      new GuestPort(session, context, counters, options.mac, std::move(epoll)));
}

GuestPort::GuestPort(Session& session, ShardContext& context, BackendCounters& counters,
                     MacAddress mac, UniqueFd epoll)
    : session_(session),
      context_(context),
      counters_(counters),
      mac_(mac),
      epoll_(std::move(epoll)),
      pairs_(session.queue_pairs()) {
  chains_.reserve(session.offer().queue_size_limit);
  watched_.reserve(session.vring_count());
}

GuestPort::~GuestPort() = default;

DeviceFeatures GuestPort::features() const noexcept {
  const bool rx_csum = session_.has(wire::kNetCsum);
  const bool tx_csum = session_.has(wire::kNetGuestCsum);
  return {
      .tx_checksum = tx_csum,
      .tso4 = tx_csum && session_.has(wire::kNetGuestTso4),
      .tso6 = tx_csum && session_.has(wire::kNetGuestTso6),
      .rx_checksum = rx_csum,
      .lro = rx_csum && (session_.has(wire::kNetHostTso4) || session_.has(wire::kNetHostTso6)),
  };
}

bool GuestPort::link_up() const noexcept {
  return Session::is_live(session_.receive_ring(0)) && Session::is_live(session_.transmit_ring(0));
}

bool GuestPort::is_broken() const noexcept {
  for (size_t i = 0; i < session_.vring_count(); ++i) {
    if (session_.vring(i).queue.broken() != RingBreak::none) return true;
  }
  return false;
}

bool GuestPort::arm(uint16_t) noexcept {
  if (watched_generation_ != session_.generation()) watch_kicks();
  bool idle = true;
  for (uint16_t pair = 0; pair < pairs_.size(); ++pair) {
    DeviceQueue& from_guest = session_.transmit_ring(pair).queue;
    if (!from_guest.arm(from_guest.next_avail())) idle = false;
    DeviceQueue& to_guest = session_.receive_ring(pair).queue;
    if (!pairs_[pair].waits_for_buffers) {
      to_guest.disarm();  // new buffers are no news
    } else if (!to_guest.arm(pairs_[pair].seen)) {
      idle = false;
    }
  }
  return idle;
}

void GuestPort::disarm(uint16_t) noexcept {
  for (uint16_t pair = 0; pair < pairs_.size(); ++pair) {
    session_.transmit_ring(pair).queue.disarm();
    session_.receive_ring(pair).queue.disarm();
  }
}

// The kick events are watched edge-triggered and never read: see peer_event.hpp.
void GuestPort::acknowledge(uint16_t) noexcept {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<size_t>(i)].data.u64 != kWakeTag) counters_.kicks.add();
  }
}

// An fd closed here stays in the epoll set while the guest holds the same event, so each is watched
// through a duplicate that is taken out before it is closed.
void GuestPort::watch_kicks() noexcept {
  for (Watched& watched : watched_) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched.fd.get(), nullptr);
  }
  watched_.clear();
  for (size_t i = 0; i < session_.vring_count(); ++i) {
    const PeerEvent& kick = session_.vring(i).kick;
    if (!kick.is_open()) continue;
    UniqueFd copy(::fcntl(kick.fd(), F_DUPFD_CLOEXEC, 0));
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = i}};
    if (copy.is_open() && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, copy.get(), &event) == 0) {
      watched_.push_back({std::move(copy)});
    }
  }
  watched_generation_ = session_.generation();
}

}  // namespace nobounce::backend
