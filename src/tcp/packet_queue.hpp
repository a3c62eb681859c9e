// A list of packets that owns them, with the sum of their payload. O(1) but for clear().
#pragma once

#include <cstddef>

#include "skb/packet.hpp"

namespace nobounce::tcp {

class PacketQueue {
 public:
  PacketQueue() noexcept = default;
  ~PacketQueue() { clear(); }
  PacketQueue(const PacketQueue&) = delete;
  PacketQueue& operator=(const PacketQueue&) = delete;

  [[nodiscard]] bool empty() const noexcept { return list_.empty(); }
  [[nodiscard]] size_t count() const noexcept { return list_.size(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }

  [[nodiscard]] Packet* front() noexcept { return list_.front(); }
  [[nodiscard]] Packet* back() noexcept { return list_.back(); }
  [[nodiscard]] Packet* previous(Packet& packet) noexcept { return list_.previous(packet); }
  [[nodiscard]] Packet* next(Packet& packet) noexcept { return list_.next(packet); }

  void push_back(PacketPtr packet) noexcept {
    bytes_ += packet->payload_size();
    list_.push_back(*packet.release());
  }
  // Null `position`: at the end.
  void insert_before(Packet* position, PacketPtr packet) noexcept {
    if (position == nullptr) return push_back(std::move(packet));
    bytes_ += packet->payload_size();
    list_.insert_before(*position, *packet.release());
  }
  [[nodiscard]] PacketPtr remove(Packet& packet) noexcept {
    list_.remove(packet);
    bytes_ -= packet.payload_size();
    return PacketPtr(&packet);
  }
  [[nodiscard]] PacketPtr pop_front() noexcept {
    NB_ASSERT(!list_.empty());
    return remove(*list_.front());
  }
  void clear() noexcept {
    while (!list_.empty()) (void)pop_front();
  }
  // A queued packet's payload has grown (or, negative, shrunk) by that much.
  void resized(int64_t bytes) noexcept { bytes_ = static_cast<uint64_t>(int64_t(bytes_) + bytes); }

 private:
  List<Packet> list_;
  uint64_t bytes_ = 0;
};

}  // namespace nobounce::tcp
