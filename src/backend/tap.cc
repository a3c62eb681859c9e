#include "backend/tap.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

namespace nobounce::backend {

const char* to_string(TapRefusal reason) noexcept {
  switch (reason) {
    case TapRefusal::interface_down:
      return "interface_down";
    case TapRefusal::invalid:
      return "invalid";
    case TapRefusal::no_memory:
      return "no_memory";
    case TapRefusal::gone:
      return "gone";
    case TapRefusal::other:
      return "other";
  }
  return "unknown";
}

TapCounters::TapCounters(CounterRegistry& registry)
    : rx_frames(registry.counter("tap.rx.frames")),
      rx_bytes(registry.counter("tap.rx.bytes")),
      rx_super_frames(registry.counter("tap.rx.super_frames")),
      tx_frames(registry.counter("tap.tx.frames")),
      tx_bytes(registry.counter("tap.tx.bytes")),
      tx_super_frames(registry.counter("tap.tx.super_frames")),
      tx_eagain(registry.counter("tap.tx.eagain")),
      tx_ipv4_checksum_fixed(registry.counter("tap.tx.ipv4_checksum_fixed")) {
  const auto drop = [&registry](const char* direction, Drop reason) {
    return registry.counter(fmt::format("tap.{}.drop.{}", direction, to_string(reason)));
  };
  for (const Drop reason :
       {Drop::short_frame, Drop::long_frame, Drop::csum_range, Drop::gso_not_negotiated,
        Drop::gso_invalid, Drop::no_packets, Drop::no_pages}) {
    rx_drops[static_cast<size_t>(reason)] = drop("rx", reason);
  }
  for (const Drop reason : {Drop::long_frame, Drop::csum_not_negotiated, Drop::csum_range,
                            Drop::gso_not_negotiated, Drop::gso_invalid}) {
    tx_drops[static_cast<size_t>(reason)] = drop("tx", reason);
  }
  for (size_t i = 0; i < kTapRefusals; ++i) {
    tx_refusals[i] =
        registry.counter(fmt::format("tap.tx.drop.{}", to_string(static_cast<TapRefusal>(i))));
  }
}

Result<std::unique_ptr<TapDevice>> TapDevice::open(TapInterface& interface, ShardContext& context,
                                                   CounterRegistry& counters, MacAddress mac) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) return fail_errno(fmt::format("watch tap {}", interface.name()));
  std::unique_ptr<TapDevice> device(
      new TapDevice(interface, context, counters, mac, std::move(epoll)));
  for (uint16_t i = 0; i < interface.queue_pairs(); ++i) {
    Queue& queue = device->queues_[i];
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    if (::epoll_ctl(device->epoll_.get(), EPOLL_CTL_ADD, queue.fd, &event) != 0) {
      return fail_errno(fmt::format("watch tap {}", interface.name()));
    }
    queue.watched = EPOLLIN;
  }
  return device;
}

TapDevice::TapDevice(TapInterface& interface, ShardContext& context, CounterRegistry& counters,
                     MacAddress mac, UniqueFd epoll)
    : interface_(interface),
      context_(context),
      counters_(counters),
      mac_(mac),
      header_bytes_(interface.has_vnet_header() ? wire::kNetHeaderBytes : 0),
      epoll_(std::move(epoll)),
      queues_(interface.queue_pairs()),
      flat_(std::make_unique_for_overwrite<std::byte[]>(kPacketBytesMax)) {
  for (uint16_t i = 0; i < interface.queue_pairs(); ++i) queues_[i].fd = interface.queue(i);
}

TapDevice::~TapDevice() {
  for (Page* page : pages_) {
    if (page != nullptr) page_put(*page);
  }
}

DeviceFeatures TapDevice::features() const noexcept {
  const bool has_header = header_bytes_ > 0;
  const NetOffloads& offloads = interface_.offloads();
  return {
      .tx_checksum = has_header,
      .tso4 = has_header,
      .tso6 = has_header,
      .rx_checksum = has_header,
      .lro = offloads.checksum && (offloads.tso4 || offloads.tso6),
  };
}

size_t TapDevice::transmit_room(uint16_t) noexcept {
  for (Queue& queue : queues_) {
    if (!queue.is_full) continue;
    pollfd fd{queue.fd, POLLOUT, 0};
    // Also an error ends the wait: the write will tell.
    if (::poll(&fd, 1, 0) <= 0) return 0;
    queue.is_full = false;
  }
  return kBurstMax;
}

bool TapDevice::arm(uint16_t) noexcept {
  for (size_t i = 0; i < queues_.size() && !broken_; ++i) {
    Queue& queue = queues_[i];
    const uint32_t wanted =
        (receive_wanted_ ? uint32_t{EPOLLIN} : 0) | (queue.is_full ? uint32_t{EPOLLOUT} : 0);
    if (wanted == queue.watched) continue;
    epoll_event event{.events = wanted, .data = {.u64 = i}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, queue.fd, &event) != 0) return false;
    queue.watched = wanted;
  }
  return look() == 0;
}

// How many queues have something to say; what they say about writing is remembered.
size_t TapDevice::look() noexcept {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    // No state of a living TAP.
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) give_up();
    if ((event.events & EPOLLOUT) != 0) queues_[event.data.u64].is_full = false;
  }
  return count > 0 ? static_cast<size_t>(count) : 0;
}

// The interface is gone: nothing is watched any more, as it would never be quiet.
void TapDevice::give_up() noexcept {
  if (broken_) return;
  broken_ = true;
  for (Queue& queue : queues_) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, queue.fd, nullptr);
    queue.is_full = false;
  }
}

}  // namespace nobounce::backend
