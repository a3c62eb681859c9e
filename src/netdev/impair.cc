#include "netdev/impair.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>

#include "base/log.hpp"
#include "netdev/checksum.hpp"
#include "netdev/gso.hpp"

namespace nobounce {
namespace {

// The directions' generators begin far apart.
constexpr uint64_t kReceiveSeed = 0x5bf0'3635'd1c2'56e9;

}  // namespace

Result<std::unique_ptr<ImpairedDevice>> ImpairedDevice::open(std::unique_ptr<NetDevice> inner,
                                                             const ImpairOptions& options,
                                                             ShardContext& context,
                                                             CounterRegistry& counters) {
  NB_ASSERT(inner != nullptr);
  const std::string operation = fmt::format("impair {}", inner->name());
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) return fail_errno(operation);
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer.is_open()) return fail_errno(operation);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, timer.get(), &event) != 0) {
    return fail_errno(operation);
  }
  log_info(fmt::format("{} is impaired: {}", inner->name(), to_string(options)));
  return std::unique_ptr<ImpairedDevice>(new ImpairedDevice(
      std::move(inner), options, context, counters, std::move(epoll), std::move(timer)));
}

ImpairedDevice::ImpairedDevice(std::unique_ptr<NetDevice> inner, const ImpairOptions& options,
                               ShardContext& context, CounterRegistry& counters, UniqueFd epoll,
                               UniqueFd timer)
    : inner_(std::move(inner)),
      context_(context),
      tx_{.counters = ImpairCounters(counters, "tx"),
          .lane = ImpairLane(context, options, options.seed, ImpairCounters(counters, "tx"))},
      rx_{.counters = ImpairCounters(counters, "rx"),
          .lane = ImpairLane(context, options, options.seed ^ kReceiveSeed,
                             ImpairCounters(counters, "rx"))},
      epoll_(std::move(epoll)),
      timer_(std::move(timer)) {}

ImpairedDevice::~ImpairedDevice() = default;

// ---- onto the wire ----------------------------------------------------------------------------

void ImpairedDevice::admit(Direction& direction, PacketPtr packet) noexcept {
  if (packet->gso != Gso::none) {
    admit_super(direction, std::move(packet));
    return;
  }
  if (!complete_checksum(*packet)) {
    direction.counters.dropped_headers.add();
    return;
  }
  packet->checksum = Checksum::none;
  packet->gso_segments = 1;
  direction.lane.put(std::move(packet), context_.now_ns);
}

void ImpairedDevice::admit_super(Direction& direction, PacketPtr packet) noexcept {
  if (!keep_headers_only(*packet)) {
    direction.counters.dropped_headers.add();
    return;
  }
  auto splitter = GsoSplitter::open(std::move(packet));
  if (!splitter) {
    direction.counters.dropped_headers.add();
    return;
  }
  while (!splitter->done()) {
    PacketPtr segment = splitter->next();
    if (segment == nullptr) {
      direction.counters.no_packets.add();  // the rest of it goes too
      return;
    }
    admit(direction, std::move(segment));
  }
}

size_t ImpairedDevice::transmit(uint16_t queue, PacketBurst& burst) noexcept {
  NB_ASSERT(queue == 0);
  const uint64_t now_ns = context_.now_ns;
  flush(now_ns);
  size_t taken = 0;
  while (taken < burst.size() && ready_.empty()) {
    admit(tx_, std::move(burst[taken++]));
    // In bursts; sooner only so that one burst of super-frames does not fill the line.
    if (tx_.lane.size() >= kBurstMax) flush(now_ns);
  }
  burst.drop_front(taken);
  flush(now_ns);
  return taken;
}

void ImpairedDevice::flush(uint64_t now_ns) noexcept {
  for (;;) {
    while (!ready_.full()) {
      PacketPtr packet = tx_.lane.take(now_ns);
      if (packet == nullptr) break;
      ready_.push(std::move(packet));
    }
    if (ready_.empty() || inner_->transmit(0, ready_) == 0 || !ready_.empty()) return;
  }
}

size_t ImpairedDevice::receive(uint16_t queue, PacketBurst& burst) noexcept {
  NB_ASSERT(queue == 0);
  const uint64_t now_ns = context_.now_ns;
  flush(now_ns);  // called once a round: what has become due leaves
  if (!receive_wanted_) return 0;
  size_t received = deliver(burst);
  if (incoming_.empty() && !burst.full()) static_cast<void>(inner_->receive(0, incoming_));
  size_t admitted = 0;
  while (admitted < incoming_.size() && !rx_.lane.is_congested(now_ns)) {
    admit(rx_, std::move(incoming_[admitted++]));
  }
  incoming_.drop_front(admitted);
  received += deliver(burst);
  return received;
}

size_t ImpairedDevice::deliver(PacketBurst& burst) noexcept {
  size_t delivered = 0;
  while (!burst.full()) {
    PacketPtr packet = rx_.lane.take(context_.now_ns);
    if (packet == nullptr) break;
    burst.push(std::move(packet));
    ++delivered;
  }
  return delivered;
}

void ImpairedDevice::reclaim(uint16_t queue) noexcept {
  inner_->reclaim(queue);
  flush(context_.now_ns);
}

size_t ImpairedDevice::transmit_room(uint16_t) noexcept {
  flush(context_.now_ns);
  return ready_.empty() ? kBurstMax : 0;
}

// ---- sleeping ---------------------------------------------------------------------------------

void ImpairedDevice::set_receive_wanted(bool wanted) noexcept {
  receive_wanted_ = wanted;
  inner_->set_receive_wanted(wanted);
}

std::optional<uint64_t> ImpairedDevice::next_due_ns() const noexcept {
  const auto out = tx_.lane.next_due_ns();
  const auto in = rx_.lane.next_due_ns();
  if (out && in) return std::min(*out, *in);
  return out ? out : in;
}

// What the inner device has no room for waits for that device's own wake-up, not for the time.
bool ImpairedDevice::arm(uint16_t queue) noexcept {
  const uint64_t now_ns = context_.clock.now_ns();  // the round's time is old by now
  flush(now_ns);
  std::optional<uint64_t> next;
  if (ready_.empty()) next = tx_.lane.next_due_ns();
  if (receive_wanted_) {
    if (!incoming_.empty()) return false;
    if (const auto in = rx_.lane.next_due_ns()) next = std::min(next.value_or(*in), *in);
  }
  if (next && *next <= now_ns) return false;
  if (!set_timer(next, now_ns) || !watch_inner()) return false;
  return inner_->arm(queue);
}

// Relative, so that any clock will do. False: the timer cannot be set, and sleeping is not safe.
bool ImpairedDevice::set_timer(std::optional<uint64_t> due_ns, uint64_t now_ns) noexcept {
  if (timer_due_ns_ == due_ns.value_or(0)) return true;
  const uint64_t wait_ns = due_ns ? *due_ns - now_ns : 0;  // 0: off
  const itimerspec spec{.it_interval = {},
                        .it_value = {.tv_sec = static_cast<time_t>(wait_ns / kNsPerSecond),
                                     .tv_nsec = static_cast<long>(wait_ns % kNsPerSecond)}};
  if (::timerfd_settime(timer_.get(), 0, &spec, nullptr) != 0) return false;
  timer_due_ns_ = due_ns.value_or(0);
  return true;
}

// The inner device's handle is watched from the first sleep on, and again when it has another.
bool ImpairedDevice::watch_inner() noexcept {
  const int fd = inner_->wait_handle(0).fd;
  if (fd == watched_fd_) return true;
  if (watched_fd_ >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_fd_, nullptr);
  watched_fd_ = -1;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
  if (fd >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  watched_fd_ = fd;
  return true;
}

WaitHandle ImpairedDevice::wait_handle(uint16_t queue) noexcept {
  return inner_->wait_handle(queue).fd < 0 ? WaitHandle{} : WaitHandle{epoll_.get()};
}

void ImpairedDevice::acknowledge(uint16_t queue) noexcept {
  uint64_t expirations = 0;
  if (::read(timer_.get(), &expirations, sizeof expirations) > 0) timer_due_ns_ = 0;
  inner_->acknowledge(queue);
}

}  // namespace nobounce
