// The device's side of a virtio-net, in the test's own process and hand.
//
// FakeDevice holds offer, configuration and the device's ring positions; transport() makes the
// Transport that VirtioNet takes, which must not outlive it. The test plays the device: it takes
// transmitted frames, delivers received ones as an honest device would, or writes what it likes
// into rings and buffers through raw(). What an honest device must not do is not checked here.
//
// Nothing in it trusts its own past: ring positions can be set, so that a test can lie about them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "memory/shared_region.hpp"
#include "virtio/transport.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::test {

struct FakeDescriptor {
  uint64_t address = 0;
  uint32_t length = 0;
  uint16_t flags = 0;
  uint16_t next = 0;
};

// A chain as the device reads it, at most `size` long.
struct FakeChain {
  uint16_t head = 0;
  std::vector<FakeDescriptor> parts;
  [[nodiscard]] uint32_t writable() const;
};

// One frame as it was sent: the header and what follows.
struct SentFrame {
  wire::VirtioNetHeader header;
  std::vector<std::byte> bytes;
  size_t descriptors = 0;
};

class FakeDevice {
 public:
  static constexpr uint64_t kHonestOffer =
      wire::kVersion1 | wire::kRingEventIdx | wire::kNetMrgRxbuf | wire::kNetCsum |
      wire::kNetGuestCsum | wire::kNetHostTso4 | wire::kNetHostTso6 | wire::kNetGuestTso4 |
      wire::kNetGuestTso6 | wire::kNetMac | wire::kNetMtu | wire::kNetStatus;

  struct Queue {
    virtio::QueueLayout layout;
    uint16_t avail = 0;  // next entry to take
    uint16_t used = 0;   // next element to write
    uint64_t kicks = 0;
    bool interrupts_muted = false;
  };

  FakeDevice();
  [[nodiscard]] std::unique_ptr<virtio::Transport> transport();

  // ---- what the driver will be told, and what it said ----
  uint64_t offer = kHonestOffer;
  virtio::NetConfig config;
  std::string refuse;  // the step that fails: "read_features", "share", "start", ...
  uint64_t accepted = 0;
  bool started = false;
  uint64_t feature_reads = 0;
  uint64_t stops = 0;
  const char* gone = nullptr;   // what failure() says
  bool gone_by_breach = false;  // and why: the control protocol was broken, nobody left
  std::function<void()> on_stop = [] {};
  // Told by each kick, within notify(). Empty: kicks are only counted.
  std::function<void(uint16_t queue)> on_kick;

  // ---- rings, by virtqueue number ----
  [[nodiscard]] Queue& queue(uint16_t index) { return queues_.at(index); }
  [[nodiscard]] size_t queue_count() const { return queues_.size(); }
  [[nodiscard]] uint16_t available(uint16_t index);  // chains not yet taken
  [[nodiscard]] std::optional<FakeChain> pop(uint16_t index);
  // Writes one used element and shows it; the call fd is signalled when the driver asked for it.
  void complete(uint16_t index, uint32_t id, uint32_t length);
  // The element alone, at ring position `at`; the index alone.
  void write_used(uint16_t index, uint16_t at, uint32_t id, uint32_t length);
  void write_used_index(uint16_t index, uint16_t value);
  void publish_used(uint16_t index, uint16_t count);
  void signal(uint16_t index);

  // ---- frames ----
  // Takes the next transmitted frame and completes it with `used_length`.
  [[nodiscard]] std::optional<SentFrame> take_sent(uint16_t index = 1, uint32_t used_length = 0);
  [[nodiscard]] SentFrame read_chain(const FakeChain& chain);
  // Delivers one frame as an honest device: as many buffers as needed (or one without mergeable
  // buffers), num_buffers set. False when there are not enough buffers. `piece`: at most so many
  // bytes in a buffer (0: fill them).
  bool deliver(Bytes frame, wire::VirtioNetHeader header = {}, uint16_t index = 0,
               size_t piece = 0);
  // The same with num_buffers as given in `header`.
  bool deliver_raw(Bytes frame, const wire::VirtioNetHeader& header, uint16_t index = 0,
                   size_t piece = 0);

  // ---- memory ----
  // Whole region; a range of it by IOVA. A device that is told nonsense reads zeros and writes
  // nothing.
  [[nodiscard]] SharedBytes raw() const { return region_->bytes(); }
  [[nodiscard]] SharedBytes at(uint64_t iova, size_t size) const;
  [[nodiscard]] bool reaches(uint64_t iova, size_t size) const;
  [[nodiscard]] std::vector<std::byte> read(uint64_t iova, size_t size) const;
  void write(uint64_t iova, Bytes bytes) const;

 private:
  class Shim;
  bool deliver_bytes(Bytes frame, const wire::VirtioNetHeader& header, uint16_t index, size_t piece,
                     bool count_buffers);

  SharedRegion* region_ = nullptr;
  std::map<uint16_t, Queue> queues_;
  std::map<uint16_t, UniqueFd> calls_;  // by pair
};

}  // namespace nobounce::test
