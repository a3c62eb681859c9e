#include "dma/dma_device.hpp"

#include <array>

#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

constexpr auto kTo = DmaDirection::to_device;
constexpr auto kFrom = DmaDirection::from_device;

class DmaDeviceTest : public testing::Test {
 protected:
  [[nodiscard]] uint64_t bounced_bytes() const {
    return f.copies.bytes(ThreadKind::application, CopyKind::bounce);
  }
  [[nodiscard]] uint64_t counter(const char* name) const { return f.counters.value(name); }

  PoolFixture f;
  DmaDevice device{*f.pool, {}, f.counters};
};

TEST_F(DmaDeviceTest, NC31_lent_block_maps_where_it_is_without_a_copy) {
  Page* block = f.pool->alloc_block(3, BlockUse::transmit);
  ASSERT_NE(block, nullptr);
  page_write(*block, 7, as_bytes("payload"));
  const auto address = device.map({.address = page_address(*block) + 7, .size = 7});
  ASSERT_TRUE(address);
  EXPECT_EQ(*address, f.pool->dma_of(page_address(*block) + 7));
  const auto seen = f.device_read(*address, 7);
  EXPECT_TRUE(std::ranges::equal(seen, as_bytes("payload")));
  EXPECT_EQ(f.pool->slots_used(), 16U) << "no slot but the block's";
  device.sync_for_device(*address, 7, kTo);
  device.sync_for_cpu(*address, 7, kFrom);
  device.unmap(*address, 7, kFrom);
  EXPECT_EQ(bounced_bytes(), 0U);
  EXPECT_EQ(counter("dma.map.nocopy"), 1U);
  EXPECT_EQ(counter("dma.map.bounce"), 0U);
  EXPECT_TRUE(f.pool->is_lent(page_address(*block), 32768)) << "NC-33: unmap releases nothing";
  page_put(*block);
}

TEST_F(DmaDeviceTest, SW74_private_memory_bounces) {
  const Original original(*f.arena, 0);
  original.fill(std::byte{'A'});
  const auto address = device.map({.address = original.at(10), .size = 1000, .direction = kFrom});
  ASSERT_TRUE(address);
  EXPECT_TRUE(f.pool->contains(*address));
  f.device_fill(*address, 1000, std::byte{'B'});
  EXPECT_TRUE(all_equal(original.bytes(), std::byte{'A'})) << "the device reaches slots alone";
  device.sync_for_cpu(*address, 100, kFrom);
  EXPECT_TRUE(all_equal(original.bytes().subspan(10, 100), std::byte{'B'}));
  device.unmap(*address, 1000, kFrom);
  EXPECT_TRUE(all_equal(original.bytes().subspan(10, 1000), std::byte{'B'}));
  EXPECT_EQ(counter("dma.map.bounce"), 1U);
  EXPECT_EQ(bounced_bytes(), 2100U);
}

TEST_F(DmaDeviceTest, NC32_range_that_leaves_the_block_bounces) {
  Page* high = f.pool->alloc_block(0, BlockUse::transmit);
  Page* low = f.pool->alloc_block(0, BlockUse::transmit);
  ASSERT_EQ(page_address(*low) + kPageSize, page_address(*high));
  page_write(*low, 4000, as_bytes(std::string(96, 'l')));
  page_write(*high, 0, as_bytes(std::string(4, 'h')));
  const auto address = device.map({.address = page_address(*low) + 4000, .size = 100});
  ASSERT_TRUE(address);
  EXPECT_NE(*address, f.pool->dma_of(page_address(*low) + 4000));
  const auto seen = f.device_read(*address, 100);
  EXPECT_TRUE(all_equal(Bytes(seen).first(96), std::byte{'l'}));
  EXPECT_TRUE(all_equal(Bytes(seen).subspan(96), std::byte{'h'}));
  EXPECT_EQ(counter("dma.map.lent_bounced_bytes"), 100U);
  device.unmap(*address, 100, kTo);
  page_put(*low);
  page_put(*high);
}

TEST_F(DmaDeviceTest, NC32_boundary_and_address_limit_hold_for_lent_blocks) {
  Page* block = f.pool->alloc_block(1, BlockUse::transmit);
  const CpuAddr at = page_address(*block);
  DmaDevice paged(*f.pool, {.segment_boundary = 0xfff}, f.counters);
  const auto inside = paged.map({.address = at, .size = 4096});
  ASSERT_TRUE(inside);
  EXPECT_EQ(*inside, f.pool->dma_of(at));
  const auto across = paged.map({.address = at + 4000, .size = 200});
  ASSERT_TRUE(across) << "never a failure because of nocopy";
  EXPECT_NE(*across, f.pool->dma_of(at + 4000));
  paged.unmap(*across, 200, kTo);
  paged.unmap(*inside, 4096, kTo);

  // A device that reaches the lower half of the pool; the block lies in the upper.
  DmaDevice low(*f.pool, {.address_limit = static_cast<uint64_t>(kIovaBase) + f.memory.size() / 2},
                f.counters);
  const auto bounced = low.map({.address = at, .size = 100});
  ASSERT_TRUE(bounced);
  EXPECT_NE(*bounced, f.pool->dma_of(at));
  low.unmap(*bounced, 100, kTo);
  page_put(*block);
}

TEST_F(DmaDeviceTest, NC36_alignment_of_lent_blocks_is_the_device_s) {
  // CPU address and IOVA of the pool agree in their low bits, so 0xfff is met without a bounce.
  DmaDevice aligned(*f.pool, {.min_align_mask = 0xfff}, f.counters);
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  const auto address = aligned.map({.address = page_address(*block) + 77, .size = 10});
  ASSERT_TRUE(address);
  EXPECT_EQ(*address, f.pool->dma_of(page_address(*block) + 77));
  aligned.unmap(*address, 10, kTo);
  page_put(*block);
}

TEST_F(DmaDeviceTest, NC17_SW63_block_of_another_pool_bounces_into_one_s_own) {
  PoolFixture other;
  Page* block = other.pool->alloc_block(0, BlockUse::transmit);
  page_write(*block, 0, as_bytes("elsewhere"));
  const auto address = device.map({.address = page_address(*block), .size = 9});
  ASSERT_TRUE(address);
  EXPECT_TRUE(f.pool->contains(*address));
  EXPECT_TRUE(std::ranges::equal(f.device_read(*address, 9), as_bytes("elsewhere")));
  device.unmap(*address, 9, kTo);
  EXPECT_EQ(other.pool->slots_used(), 2U) << "the other pool was not touched";
  page_put(*block);
}

TEST_F(DmaDeviceTest, NC23_bounce_slot_of_the_pool_is_not_lent) {
  const Original original(*f.arena, 0);
  const auto first = device.map({.address = original.at(0), .size = 4096});
  // Nobody hands out the address of a bounce slot; were one mapped, it would not pass as lent.
  const CpuAddr slot = static_cast<CpuAddr>(f.memory.address()) +
                       (static_cast<uint64_t>(*first) - static_cast<uint64_t>(kIovaBase));
  EXPECT_FALSE(f.pool->map_lent(slot, 10));
  device.unmap(*first, 4096, kTo);
}

TEST_F(DmaDeviceTest, NC34_several_mappings_of_one_block) {
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  std::array<DmaAddr, 3> addresses{};
  for (DmaAddr& address : addresses) {
    address = device.map({.address = page_address(*block), .size = 4096}).value();
  }
  EXPECT_EQ(addresses[0], addresses[2]);
  for (const DmaAddr address : addresses) device.unmap(address, 4096, kTo);
  EXPECT_EQ(counter("swiotlb.bad_unmap.double"), 0U);
  page_put(*block);
}

TEST_F(DmaDeviceTest, NC35_block_released_while_mapped_waits) {
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  const auto address = device.map({.address = page_address(*block), .size = 4096});
  page_put(*block);
  EXPECT_EQ(f.pool->slots_used(), 2U);
  EXPECT_EQ(counter("nocopy.released_mapped"), 1U);
  device.unmap(*address, 4096, kTo);
  EXPECT_EQ(f.pool->slots_used(), 0U);
}

TEST_F(DmaDeviceTest, C065_sizes_at_the_limit) {
  const Original original(*f.arena, 6);
  for (const size_t size : {kMappingMax - 1, kMappingMax}) {
    const auto address = device.map({.address = original.at(0), .size = size});
    ASSERT_TRUE(address);
    device.unmap(*address, size, kTo);
  }
  EXPECT_EQ(device.map({.address = original.at(0), .size = kMappingMax + 1}).error(),
            MapError::too_large);
  EXPECT_EQ(counter("dma.map.failed"), 1U);
  const auto offset = device.map({.address = original.at(4095), .size = 4096});
  ASSERT_TRUE(offset);
  device.unmap(*offset, 4096, kTo);
}

TEST_F(DmaDeviceTest, SW77_largest_mapping_that_is_reported) {
  EXPECT_EQ(device.max_mapping_size(), kMappingMax);
  EXPECT_EQ(DmaDevice(*f.pool, {.min_align_mask = 0xfff}, f.counters).max_mapping_size(), 258048U);
  EXPECT_EQ(DmaDevice(f.counters).max_mapping_size(), ~size_t{0});
}

TEST_F(DmaDeviceTest, SW79_a_list_maps_whole_or_not_at_all) {
  const Original original(*f.arena, 6);
  original.fill(std::byte{'A'});
  std::array<DmaMapRequest, 3> list{
      {{.address = original.at(0), .size = 100, .direction = kFrom},
       {.address = original.at(5000), .size = 4096, .direction = kFrom},
       {.address = original.at(0), .size = 1, .direction = kFrom}}};
  std::array<DmaAddr, 3> addresses{};
  ASSERT_TRUE(device.map_list(list, addresses));
  for (size_t i = 0; i < list.size(); ++i) device.unmap(addresses[i], list[i].size, kFrom);
  const uint64_t copied = bounced_bytes();

  list[2].size = kMappingMax + 1;
  const auto mapped = device.map_list(list, addresses);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error(), MapError::too_large);
  EXPECT_EQ(f.pool->slots_used(), 0U);
  EXPECT_EQ(bounced_bytes(), copied + 4196) << "in at map, and not back";
  EXPECT_TRUE(device.map_list({}, {}));
}

TEST_F(DmaDeviceTest, SW80_unmap_copies_back_once) {
  const Original original(*f.arena, 0);
  const auto address = device.map({.address = original.at(0), .size = 4096, .direction = kFrom});
  const uint64_t copied = bounced_bytes();
  device.unmap(*address, 4096, kFrom);
  EXPECT_EQ(bounced_bytes(), copied + 4096);
}

TEST_F(DmaDeviceTest, SW30_coherent_is_required_and_memory_would_bounce) {
  const Original original(*f.arena, 0);
  const DmaAttrs coherent{.require_coherent = true};
  EXPECT_EQ(device.map({.address = original.at(0), .size = 10, .attrs = coherent}).error(),
            MapError::coherent_required);
  Page* block = f.pool->alloc_block(0, BlockUse::transmit);
  const auto address = device.map({.address = page_address(*block), .size = 10, .attrs = coherent});
  EXPECT_TRUE(address) << "a lent block needs no bounce";
  device.unmap(*address, 10, kTo);
  page_put(*block);
}

TEST_F(DmaDeviceTest, receive_mappings_are_charged_to_receive) {
  const Original original(*f.arena, 0);
  ASSERT_TRUE(f.pool->set_quotas({.tx_percent = 0, .rx_percent = 0, .tx_reserve_percent = 90}));
  EXPECT_EQ(device.map({.address = original.at(0), .size = 10, .for_receive = true}).error(),
            MapError::exhausted);
  EXPECT_EQ(counter("swiotlb.alloc_fail.receive_share"), 1U);
  const auto ordinary = device.map({.address = original.at(0), .size = 10});
  ASSERT_TRUE(ordinary);
  device.unmap(*ordinary, 10, kTo);
}

TEST_F(DmaDeviceTest, device_that_reaches_all_memory_is_mapped_directly) {
  DmaDevice all(f.counters);
  const Original original(*f.arena, 0);
  EXPECT_FALSE(all.bounces());
  EXPECT_EQ(all.pool(), nullptr);
  const auto address = all.map({.address = original.at(3), .size = 10});
  ASSERT_TRUE(address);
  EXPECT_EQ(static_cast<uint64_t>(*address), static_cast<uint64_t>(original.at(3)));
  all.sync_for_cpu(*address, 10, kFrom);
  all.sync_for_device(*address, 10, kTo);
  all.unmap(*address, 10, kFrom);
  EXPECT_EQ(bounced_bytes(), 0U);
  EXPECT_TRUE(device.bounces());
}

// TM-63: what the device is told never lies where our own memory does.
TEST_F(DmaDeviceTest, TM63_addresses_are_synthetic) {
  const Original original(*f.arena, 0);
  const auto address = device.map({.address = original.at(0), .size = 10});
  ASSERT_TRUE(address);
  EXPECT_GE(static_cast<uint64_t>(*address), static_cast<uint64_t>(kIovaBase));
  EXPECT_LT(static_cast<uint64_t>(*address), static_cast<uint64_t>(kIovaBase) + f.memory.size());
  EXPECT_FALSE(PageSpace::instance().contains(static_cast<CpuAddr>(*address)));
  device.unmap(*address, 10, kTo);
}

}  // namespace
}  // namespace nobounce::test
