#include "backend/switch_port.hpp"

namespace nobounce::backend {

SwitchPort::SwitchPort(uint16_t number, std::unique_ptr<NetDevice> device, ShardContext& context)
    : number_(number), device_(std::move(device)), output_(context, *device_, "switch") {}

SwitchPort::~SwitchPort() {
  while (Packet* frame = queue_.pop_front()) static_cast<void>(PacketPtr(frame));
}

bool SwitchPort::offer(PacketPtr frame) noexcept {
  if (queue_.size() >= kQueueMax) return false;
  queue_.push_back(*frame.release());
  return true;
}

size_t SwitchPort::flush() noexcept {
  const size_t before = queue_.size();
  do {
    while (!queue_.empty() && !output_.full()) output_.push(PacketPtr(queue_.pop_front()));
    if (output_.empty()) break;
    output_.transmit();
  } while (output_.empty());
  return before - queue_.size();
}

bool SwitchPort::arm() noexcept {
  bool idle = true;
  for (uint16_t queue = 0; queue < device_->queue_pairs(); ++queue) {
    if (!device_->arm(queue)) idle = false;
  }
  return idle;
}

void SwitchPort::disarm() noexcept {
  for (uint16_t queue = 0; queue < device_->queue_pairs(); ++queue) {
    device_->acknowledge(queue);
    device_->disarm(queue);
  }
}

}  // namespace nobounce::backend
