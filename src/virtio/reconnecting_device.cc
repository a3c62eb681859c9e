#include "virtio/reconnecting_device.hpp"

#include <sys/epoll.h>

#include "base/assert.hpp"

namespace nobounce::virtio {
namespace {

bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<ReconnectingDevice>> ReconnectingDevice::create(
    std::unique_ptr<VirtioNet> first, std::unique_ptr<Reconnector> reconnector, Clock& clock,
    CounterRegistry& counters) {
  NB_ASSERT(first != nullptr);
  NB_ASSERT(reconnector != nullptr);
  NB_ASSERT(first->queue_pairs() == 1);
  std::unique_ptr<ReconnectingDevice> device(
      new ReconnectingDevice(std::move(first), std::move(reconnector), clock, counters));
  if (!device->wait_.is_open() || !watch(device->wait_.get(), device->reconnector_->news_fd())) {
    return fail_errno("make the wait handle of a device", "raise the limit of open files");
  }
  device->watch_inner();
  return device;
}

ReconnectingDevice::ReconnectingDevice(std::unique_ptr<VirtioNet> first,
                                       std::unique_ptr<Reconnector> reconnector, Clock& clock,
                                       CounterRegistry& counters)
    : name_(first->name()),
      mac_(first->mac()),
      mtu_(first->mtu()),
      features_(first->features()),
      dma_(first->dma()),
      clock_(clock),
      wait_(::epoll_create1(EPOLL_CLOEXEC)),
      reconnector_(std::move(reconnector)),
      inner_(std::move(first)),
      up_since_ns_(clock.now_ns()),
      count_(counters.counter("reconnect.count")),
      waiting_(counters.counter("reconnect.waiting")),
      tx_dropped_(counters.counter("reconnect.tx_dropped")) {}

const char* ReconnectingDevice::broken_reason() const noexcept {
  if (refusal_ != nullptr) return refusal_;
  return is_broken() ? inner_->broken_reason() : nullptr;
}

// ---- going and coming ---------------------------------------------------------------------------

void ReconnectingDevice::lose() noexcept {
  inner_.reset();  // all that it held is home; its handle left our epoll when it was closed
  is_watched_ = false;
  waiting_.set(1);
  reconnector_->request(clock_.now_ns() - up_since_ns_);
}

void ReconnectingDevice::adopt() noexcept {
  reconnector_->step();
  refusal_ = reconnector_->refusal();
  inner_ = reconnector_->take();
  if (refusal_ == nullptr && inner_ == nullptr) return;
  waiting_.set(0);
  if (inner_ == nullptr) return;
  count_.add();
  up_since_ns_ = clock_.now_ns();
  watch_inner();
}

// A handle that cannot be watched (no memory in the kernel) makes this a device to be polled.
void ReconnectingDevice::watch_inner() noexcept {
  const int fd = inner_->wait_handle(0).fd;
  is_watched_ = fd >= 0 && watch(wait_.get(), fd);
}

// ---- NetDevice ----------------------------------------------------------------------------------

size_t ReconnectingDevice::receive(uint16_t queue, PacketBurst& burst) noexcept {
  NB_ASSERT(queue == 0);
  if (inner_ == nullptr) {
    if (refusal_ == nullptr) adopt();
  } else if (inner_->is_broken() && is_lost()) {
    lose();
  }
  return inner_ == nullptr ? 0 : inner_->receive(queue, burst);
}

// Frames for a link that is down are lost: who needs them sends them again, and nobody wants the old
// ones when it is back after minutes.
size_t ReconnectingDevice::transmit(uint16_t queue, PacketBurst& burst) noexcept {
  if (link_up()) return inner_->transmit(queue, burst);
  if (is_broken()) return 0;
  const size_t dropped = burst.size();
  burst.clear();
  tx_dropped_.add(dropped);
  return dropped;
}

void ReconnectingDevice::reclaim(uint16_t queue) noexcept {
  if (inner_ != nullptr) inner_->reclaim(queue);
}

size_t ReconnectingDevice::transmit_room(uint16_t queue) noexcept {
  if (link_up()) return inner_->transmit_room(queue);
  return is_broken() ? 0 : kBurstMax;
}

bool ReconnectingDevice::arm(uint16_t queue) noexcept {
  if (inner_ == nullptr) return true;  // the news stay readable until they are acknowledged
  const bool quiet = inner_->arm(queue);
  return quiet && !(inner_->is_broken() && is_lost());
}

void ReconnectingDevice::disarm(uint16_t queue) noexcept {
  if (inner_ != nullptr) inner_->disarm(queue);
}

WaitHandle ReconnectingDevice::wait_handle(uint16_t) noexcept {
  if (inner_ != nullptr && !is_watched_) return {};
  return {wait_.get()};
}

void ReconnectingDevice::acknowledge(uint16_t queue) noexcept {
  reconnector_->acknowledge();
  if (inner_ != nullptr) inner_->acknowledge(queue);
}

}  // namespace nobounce::virtio
