// A virtio-net on a FakeDevice with everything around it: region, pool, shard context, injected
// clock and random source. Ends with the check that every pool is full again.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "dma/dma_device.hpp"
#include "memory/private_arena.hpp"
#include "memory/shared_region.hpp"
#include "netdev/shard_context.hpp"
#include "support/fake_device.hpp"
#include "swiotlb/swiotlb.hpp"
#include "virtio/virtio_net.hpp"

namespace nobounce::test {

struct RigOptions {
  virtio::VirtioNetOptions net = {.queue_size = 64};
  uint64_t region_bytes = 8 << 20;
  uint64_t arena_bytes = 4 << 20;
  size_t packets = 512;
  NocopyQuotas quotas;
  uint64_t seed = 1;
};

class VirtioRig {
 public:
  explicit VirtioRig(const RigOptions& options = {});
  ~VirtioRig();

  // Opens the device; expects success. `device` may be prepared before.
  void open();
  // On another transport than the FakeDevice's.
  void open(std::unique_ptr<virtio::Transport> transport);
  [[nodiscard]] Result<std::unique_ptr<virtio::VirtioNet>> try_open();
  [[nodiscard]] Result<std::unique_ptr<virtio::VirtioNet>> try_open(
      std::unique_ptr<virtio::Transport> transport);
  // Closes it and checks that packets, pages and slots are home.
  void close();

  // A packet with `head_bytes` in its head and `payload_bytes` in frags of pages: nocopy blocks of
  // the pool or private pages. Bytes count up from `seed`.
  enum class Memory : uint8_t { nocopy, private_pages };
  [[nodiscard]] PacketPtr make_packet(size_t head_bytes, size_t payload_bytes,
                                      Memory memory = Memory::nocopy, uint8_t seed = 0);
  [[nodiscard]] static std::vector<std::byte> bytes_of(const Packet& packet);
  [[nodiscard]] static std::vector<std::byte> pattern(size_t bytes, uint8_t seed);

  size_t send(PacketPtr packet, uint16_t queue = 0);
  [[nodiscard]] std::vector<PacketPtr> receive(uint16_t queue = 0);
  [[nodiscard]] uint64_t counter(const std::string& name) const;  // of this device, without prefix

  RigOptions options;
  size_t shards = 0;  // 0: one a queue pair
  CounterRegistry counters;
  CopyLedger copies{counters};
  ManualClock clock;
  SeededRandom random;
  TimerQueue timers{16};
  std::unique_ptr<SharedRegion> region;
  std::unique_ptr<PrivateArena> arena;
  std::unique_ptr<Swiotlb> pool;
  std::unique_ptr<DmaDevice> dma;
  std::unique_ptr<PacketPool> packets;
  std::unique_ptr<ShardContext> context;
  FakeDevice device;
  std::unique_ptr<virtio::VirtioNet> net;
  std::string name;  // of the device, kept when it is gone
};

}  // namespace nobounce::test
