#include "support/virtio_rig.hpp"

#include <algorithm>

namespace nobounce::test {

VirtioRig::VirtioRig(const RigOptions& asked) : options(asked), random(asked.seed) {
  auto largest = options.net;
  largest.queue_pairs = 4;
  const size_t carved = virtio::VirtioNet::carve_bytes(largest);
  auto made = SharedRegion::create({.name = "virtio-test", .bytes = options.region_bytes + carved});
  EXPECT_TRUE(made) << made.error().to_string();
  region = std::move(*made);
  // Tests may open more than once: the rings are carved after the pool, from a region large enough.
  const SharedBytes pool_bytes = region->carve(options.region_bytes / 2, kMappingMax);
  EXPECT_FALSE(pool_bytes.empty());
  auto slots = Swiotlb::create(pool_bytes, static_cast<DmaAddr>(region->iova_of(pool_bytes)),
                               {.areas = 1, .quotas = options.quotas}, counters, copies);
  EXPECT_TRUE(slots) << slots.error().to_string();
  pool = std::move(*slots);
  auto pages = PrivateArena::create(options.arena_bytes, counters);
  EXPECT_TRUE(pages) << pages.error().to_string();
  arena = std::move(*pages);
  dma = std::make_unique<DmaDevice>(*pool, DmaLimits{}, counters);
  packets = std::make_unique<PacketPool>(options.packets, counters);
  context = std::make_unique<ShardContext>(ShardContext{.clock = clock,
                                                        .random = random,
                                                        .timers = timers,
                                                        .packets = *packets,
                                                        .arena = *arena,
                                                        .counters = counters,
                                                        .copies = copies,
                                                        .now_ns = clock.now_ns()});
}

VirtioRig::~VirtioRig() { close(); }

Result<std::unique_ptr<virtio::VirtioNet>> VirtioRig::try_open() {
  return try_open(device.transport());
}

Result<std::unique_ptr<virtio::VirtioNet>> VirtioRig::try_open(
    std::unique_ptr<virtio::Transport> transport) {
  const std::vector<ShardContext*> contexts(shards != 0 ? shards : options.net.queue_pairs,
                                            context.get());  // one thread drives all
  return virtio::VirtioNet::open(std::move(transport), *region, *dma, contexts, options.net);
}

void VirtioRig::open() { open(device.transport()); }

void VirtioRig::open(std::unique_ptr<virtio::Transport> transport) {
  auto opened = try_open(std::move(transport));
  ASSERT_TRUE(opened) << opened.error().to_string();
  net = std::move(*opened);
  name = net->name();
}

void VirtioRig::close() {
  net.reset();
  EXPECT_EQ(packets->in_use(), 0U);
  EXPECT_EQ(pool->slots_used(), 0U);
  EXPECT_EQ(pool->slots_lent(BlockUse::receive), 0U);
  EXPECT_EQ(pool->slots_lent(BlockUse::transmit), 0U);
  EXPECT_EQ(arena->pages_free(), arena->bytes() / kPageSize);
}

std::vector<std::byte> VirtioRig::pattern(size_t bytes, uint8_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(seed + i * 7 + (i >> 8));
  return out;
}

PacketPtr VirtioRig::make_packet(size_t head_bytes, size_t payload_bytes, Memory memory,
                                 uint8_t seed) {
  PacketPtr packet = packets->make(0);
  EXPECT_NE(packet, nullptr);
  const auto bytes = pattern(head_bytes + payload_bytes, seed);
  std::ranges::copy(Bytes(bytes).first(head_bytes), packet->append(head_bytes).begin());
  Bytes rest = Bytes(bytes).subspan(head_bytes);
  while (!rest.empty()) {
    Page* page =
        memory == Memory::nocopy ? pool->alloc_block(0, BlockUse::transmit) : arena->alloc(0);
    EXPECT_NE(page, nullptr);
    const size_t part = std::min(rest.size(), kPageSize);
    page_write(*page, 0, rest.first(part));
    EXPECT_TRUE(packet->add_frag(*page, 0, static_cast<uint32_t>(part)));
    rest = rest.subspan(part);
  }
  return packet;
}

std::vector<std::byte> VirtioRig::bytes_of(const Packet& packet) {
  std::vector<std::byte> bytes(packet.size());
  packet.read(0, bytes);
  return bytes;
}

size_t VirtioRig::send(PacketPtr packet, uint16_t queue) {
  PacketBurst burst;
  burst.push(std::move(packet));
  return net->transmit(queue, burst);
}

std::vector<PacketPtr> VirtioRig::receive(uint16_t queue) {
  PacketBurst burst;
  const size_t count = net->receive(queue, burst);
  EXPECT_EQ(count, burst.size());
  std::vector<PacketPtr> received;
  for (PacketPtr& packet : burst) received.push_back(std::move(packet));
  return received;
}

uint64_t VirtioRig::counter(const std::string& counter_name) const {
  return counters.value(name + "." + counter_name);
}

}  // namespace nobounce::test
