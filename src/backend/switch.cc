#include "backend/switch.hpp"

#include <sys/epoll.h>

#include <algorithm>

#include "backend/guest_port.hpp"
#include "backend/wait.hpp"
#include "netdev/gso.hpp"
#include "wire/ethernet.hpp"

namespace nobounce::backend {
namespace {

// Looked at that often while a guest is held back: its kicks are not asked for then, because its
// ring has frames all the time.
constexpr uint64_t kHeldBackNs = kNsPerMs;
constexpr size_t kTimers = 64;

// A second packet on the same payload, with the same head.
PacketPtr duplicate(Packet& frame) noexcept {
  PacketPtr copy = frame.pool().clone(frame, frame.headroom() + frame.head().size());
  if (copy == nullptr) return copy;
  const Bytes head = frame.head();
  std::ranges::copy(head, copy->push(head.size()).begin());
  return copy;
}

}  // namespace

Result<std::unique_ptr<Network>> Switch::open(const SwitchOptions& options,
                                              const NetworkPlace& place) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event wake{.events = EPOLLIN, .data = {.fd = place.wake_fd}};
  if (!epoll.is_open() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, place.wake_fd, &wake) != 0) {
    return fail_errno("open the switch");
  }
  auto arena = PrivateArena::create(options.private_bytes, place.registry);
  if (!arena) return std::unexpected(arena.error());
  std::unique_ptr<Switch> made(new Switch(options, place, std::move(epoll), std::move(*arena)));
  if (options.uplink) {
    auto device = options.uplink(made->context_);
    if (!device) return std::unexpected(device.error());
    auto port = made->add_port(std::move(*device));
    if (!port) return std::unexpected(port.error());
    made->uplink_ = *port;
  }
  return made;
}

Switch::Switch(const SwitchOptions& options, const NetworkPlace& place, UniqueFd epoll,
               std::unique_ptr<PrivateArena> arena)
    : options_(options),
      backend_counters_(place.counters),
      registry_(place.registry),
      timers_(kTimers),
      packets_(options.packets, place.registry),
      arena_(std::move(arena)),
      copies_(place.registry),
      context_{.clock = clock_,
               .random = random_,
               .timers = timers_,
               .packets = packets_,
               .arena = *arena_,
               .counters = place.registry,
               .copies = copies_,
               .now_ns = clock_.now_ns()},
      epoll_(std::move(epoll)),
      table_(random_) {
  const auto name = [&place](const char* what) {
    return place.registry.counter(std::string("switch.") + what);
  };
  frames_ = name("frames");
  flooded_ = name("flooded");
  held_back_ = name("held_back");
  ports_gauge_ = name("ports");
  evictions_ = name("table_evictions");
  dropped_short_ = name("drop.short_frame");
  dropped_gso_ = name("drop.bad_gso");
  dropped_full_ = name("drop.queue_full");
  dropped_alone_ = name("drop.nobody_there");
  dropped_same_port_ = name("drop.same_port");
  dropped_no_packets_ = name("drop.no_packets");
}

Switch::~Switch() = default;

// ---- ports ------------------------------------------------------------------------------------

Result<SwitchPort*> Switch::add_port(std::unique_ptr<NetDevice> device) {
  for (uint16_t queue = 0; queue < device->queue_pairs(); ++queue) {
    const int fd = device->wait_handle(queue).fd;
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (fd >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail_errno("add a port to the switch");
    }
  }
  ports_.push_back(std::make_unique<SwitchPort>(next_number_++, std::move(device), context_));
  ports_gauge_.set(ports_.size());
  return ports_.back().get();
}

Result<void> Switch::join(Session& session) {
  context_.now_ns = clock_.now_ns();
  auto guest = GuestPort::open(session, context_, backend_counters_, {.mac = options_.mac});
  if (!guest) return std::unexpected(guest.error());
  std::unique_ptr<NetDevice> device = std::move(*guest);
  if (options_.wrap) {
    auto wrapped = options_.wrap(std::move(device), context_);
    if (!wrapped) return std::unexpected(wrapped.error());
    device = std::move(*wrapped);
  }
  auto port = add_port(std::move(device));
  if (!port) return std::unexpected(port.error());
  guests_.push_back({&session, *port});
  return {};
}

void Switch::leave(Session& session) noexcept {
  const auto guest = std::ranges::find(guests_, &session, &Guest::session);
  if (guest == guests_.end()) return;
  NetDevice& device = guest->port->device();
  for (uint16_t queue = 0; queue < device.queue_pairs(); ++queue) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, device.wait_handle(queue).fd, nullptr);
  }
  table_.forget(guest->port->number());
  std::erase_if(ports_, [&](const auto& port) { return port.get() == guest->port; });
  guests_.erase(guest);
  ports_gauge_.set(ports_.size());
}

bool Switch::serves(const Session& session) const noexcept {
  const auto guest = std::ranges::find(guests_, &session, &Guest::session);
  return guest != guests_.end() && !guest->port->device().is_broken();
}

// ---- frames -----------------------------------------------------------------------------------

// The one other live port; null when there is none or there are several.
SwitchPort* Switch::only_other(const SwitchPort& from) noexcept {
  SwitchPort* other = nullptr;
  for (const auto& port : ports_) {
    if (port.get() == &from || !port->is_live()) continue;
    if (other != nullptr) return nullptr;
    other = port.get();
  }
  return other;
}

bool Switch::must_hold_back(SwitchPort& from) noexcept {
  if (&from == uplink_ && std::ranges::none_of(ports_, [&](const auto& port) {
        return port.get() != &from && port->is_live();
      })) {
    return true;
  }
  const SwitchPort* other = only_other(from);
  return other != nullptr && other->queued() >= kBurstMax;
}

size_t Switch::round() noexcept {
  context_.now_ns = clock_.now_ns();
  size_t work = 0;
  for (const auto& port : ports_) {
    if (!port->is_live()) continue;
    if (must_hold_back(*port)) {
      held_back_.add();
      continue;
    }
    work += receive(*port);
  }
  for (const auto& port : ports_) work += port->flush();
  return work;
}

size_t Switch::receive(SwitchPort& from) noexcept {
  size_t received = 0;
  for (uint16_t queue = 0; queue < from.device().queue_pairs(); ++queue) {
    received += from.device().receive(queue, burst_);
    for (PacketPtr& frame : burst_) forward(from, std::move(frame));
    burst_.clear();
  }
  return received;
}

void Switch::forward(SwitchPort& from, PacketPtr frame) noexcept {
  frames_.add();
  const auto ethernet = wire::EthernetView::parse(frame->head());
  if (!ethernet) {
    dropped_short_.add();
    return;
  }
  if (!keep_headers_only(*frame)) {
    dropped_gso_.add();
    return;
  }
  if (table_.learn(ethernet->source(), from.number(), context_.now_ns)) evictions_.add();
  if (SwitchPort* other = only_other(from)) {
    offer(*other, std::move(frame));
    return;
  }
  const auto number = table_.find(ethernet->destination(), context_.now_ns);
  if (!number) {
    flood(from, std::move(frame));
    return;
  }
  if (*number == from.number()) {
    dropped_same_port_.add();
    return;
  }
  for (const auto& port : ports_) {
    if (port->number() != *number) continue;
    offer(*port, std::move(frame));
    return;
  }
}

void Switch::flood(SwitchPort& from, PacketPtr frame) noexcept {
  SwitchPort* last = nullptr;  // gets the frame itself
  for (const auto& port : ports_) {
    if (port.get() == &from || !port->is_live()) continue;
    if (last != nullptr) {
      PacketPtr copy = duplicate(*frame);
      if (copy == nullptr) {
        dropped_no_packets_.add();
        continue;
      }
      offer(*last, std::move(copy));
    }
    last = port.get();
  }
  if (last == nullptr) {
    dropped_alone_.add();
    return;
  }
  flooded_.add();
  offer(*last, std::move(frame));
}

void Switch::offer(SwitchPort& to, PacketPtr frame) noexcept {
  if (!to.offer(std::move(frame))) dropped_full_.add();
}

// ---- sleeping ---------------------------------------------------------------------------------

void Switch::sleep(uint64_t limit_ns) noexcept {
  bool idle = true;
  for (const auto& port : ports_) {
    const bool held_back = must_hold_back(*port);
    port->device().set_receive_wanted(!held_back);
    if (held_back && port.get() != uplink_) {
      limit_ns = std::min(limit_ns, kHeldBackNs);
    } else if (!port->arm()) {
      idle = false;
    }
    if (!port->is_idle()) limit_ns = std::min(limit_ns, kHeldBackNs);
  }
  if (idle) wait_readable(epoll_.get(), limit_ns);
  for (const auto& port : ports_) port->disarm();
}

}  // namespace nobounce::backend
