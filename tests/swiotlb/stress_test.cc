// Threads on one pool: mappings, blocks, quotas. What must hold at every moment is checked by each
// thread for what it owns; what must hold at rest, by the fixture.
#include <atomic>
#include <thread>

#include "support/pool_fixture.hpp"

namespace nobounce::test {
namespace {

constexpr unsigned kThreads = 4;

template <class Work>
void run_threads(Work work) {
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < kThreads; ++id) threads.emplace_back([=] { work(id); });
  for (std::thread& thread : threads) thread.join();
}

// SW-72: random sizes, masks and directions; the device's half of each mapping is played by the
// thread that owns it, so that any overlap shows as wrong bytes.
TEST(SwiotlbStress, SW72_mappings_of_many_threads) {
  PoolFixture f({.bytes = 512 << 10, .areas = 2});  // less than one thread wants
  std::vector<std::unique_ptr<Original>> originals;
  for (unsigned i = 0; i < kThreads; ++i)
    originals.push_back(std::make_unique<Original>(*f.arena, 5));
  std::atomic<unsigned> wrong{0};
  std::atomic<unsigned> exhausted{0};
  run_threads([&](unsigned id) {
    struct Mapping {
      DmaAddr address;
      size_t at, size;
      std::byte value;
    };
    const Original& original = *originals[id];
    const uint64_t masks[] = {0, 0x1ff, 0x7ff, 0xfff, 0xffff};
    SeededRandom random(700 + id);
    std::vector<Mapping> live;
    const auto finish = [&](size_t index) {
      const Mapping mapping = live[index];
      live[index] = live.back();
      live.pop_back();
      if (!all_equal(f.device_read(mapping.address, mapping.size), mapping.value)) ++wrong;
      const auto answer = static_cast<std::byte>(~static_cast<unsigned>(mapping.value) & 0xff);
      f.device_fill(mapping.address, mapping.size, answer);
      f.pool->unmap(mapping.address, mapping.size, DmaDirection::bidirectional, {});
      const MutableBytes bytes = original.bytes().subspan(mapping.at, mapping.size);
      if (!all_equal(bytes, answer)) ++wrong;
    };
    // Each live mapping has a page of the original of its own.
    const auto free_page = [&] {
      for (size_t page = 0;; ++page) {
        const auto on_page = [&](const Mapping& mapping) { return mapping.at / 4096 == page; };
        if (std::ranges::none_of(live, on_page)) return page;
      }
    };
    for (unsigned step = 0; step < 1500; ++step) {
      if (live.size() < 30 && random.below(4) != 0) {
        const size_t at = 4096 * free_page() + random.below(1000);
        const size_t size = 1 + random.below(3000);
        const auto value = static_cast<std::byte>(random.below(256));
        std::ranges::fill(original.bytes().subspan(at, size), value);
        const auto address = f.pool->map({.original = original.at(at),
                                          .size = size,
                                          .alloc_align_mask = masks[random.below(5)],
                                          .direction = DmaDirection::bidirectional,
                                          .limits = {.min_align_mask = masks[random.below(5)]},
                                          .attrs = {.no_warn = true}});
        if (address) {
          live.push_back({*address, at, size, value});
        } else {
          ++exhausted;
        }
      } else if (!live.empty()) {
        finish(random.below(static_cast<uint32_t>(live.size())));
      }
    }
    while (!live.empty()) finish(0);
  });
  EXPECT_EQ(wrong.load(), 0U);
  EXPECT_GT(exhausted.load(), 0U) << "the pool was never full";
}

// NC-4, NC-6, NC-24, NC-84: blocks handed between threads, released by another than took them,
// while the percentages go up and down.
TEST(SwiotlbStress, NC84_blocks_between_threads_while_quotas_change) {
  PoolFixture f({.bytes = 4 << 20, .areas = 2});
  constexpr size_t kMailboxes = 64;
  std::vector<std::atomic<Page*>> mailboxes(kMailboxes);
  std::atomic<unsigned> above{0};
  std::atomic<unsigned> handed{0};
  run_threads([&](unsigned id) {
    SeededRandom random(800 + id);
    const uint64_t budget_max = f.pool->slots() * 45 / 100;
    for (unsigned step = 0; step < 4000; ++step) {
      if (random.below(20) == 0) {
        const unsigned percents[] = {0, 45, 10, 30, 45};
        EXPECT_TRUE(f.pool->set_quotas(
            {.tx_percent = percents[random.below(5)], .rx_percent = percents[random.below(5)]}));
      }
      const BlockUse use = random.below(2) == 0 ? BlockUse::transmit : BlockUse::receive;
      Page* block = f.pool->alloc_block(random.below(5), use);
      if (f.pool->slots_lent(use) > budget_max) ++above;
      if (block != nullptr) {
        const auto address = f.pool->map_lent(page_address(*block), block_bytes(*block));
        EXPECT_TRUE(address);
        if (random.below(8) == 0) {
          // Released while mapped: the slots must wait.
          page_put(*block);
          f.pool->unmap(*address, 1, DmaDirection::to_device, {});
          block = nullptr;
        } else {
          f.pool->unmap(*address, 1, DmaDirection::to_device, {});
        }
      }
      Page* other = mailboxes[random.below(kMailboxes)].exchange(block, std::memory_order_acq_rel);
      if (other != nullptr) {
        ++handed;
        page_put(*other);
      }
    }
  });
  for (std::atomic<Page*>& mailbox : mailboxes) {
    if (Page* block = mailbox.load()) page_put(*block);
  }
  EXPECT_EQ(above.load(), 0U);
  EXPECT_GT(handed.load(), 100U);
  EXPECT_GT(f.counters.value("nocopy.released_mapped"), 0U);
}

// Mappings and blocks meet in a small pool, receive charged on both sides.
TEST(SwiotlbStress, NC9_receive_never_enters_the_reserve) {
  PoolFixture f({.bytes = 1 << 20, .areas = 2});
  std::vector<std::unique_ptr<Original>> originals;
  for (unsigned i = 0; i < kThreads; ++i)
    originals.push_back(std::make_unique<Original>(*f.arena, 1));
  const uint64_t limit = f.pool->slots() * 80 / 100;
  std::atomic<unsigned> above{0};
  run_threads([&](unsigned id) {
    SeededRandom random(900 + id);
    std::vector<DmaAddr> mapped;
    std::vector<Page*> blocks;
    for (unsigned step = 0; step < 3000; ++step) {
      if (random.below(2) == 0) {
        const auto address = f.pool->map({.original = originals[id]->at(0),
                                          .size = 4096,
                                          .direction = DmaDirection::from_device,
                                          .attrs = {.no_warn = true},
                                          .for_receive = true});
        if (address) mapped.push_back(*address);
      } else if (Page* block = f.pool->alloc_block(random.below(3), BlockUse::receive)) {
        blocks.push_back(block);
      }
      // Only receive uses this pool, so what is used is receive's.
      if (f.pool->slots_used() > limit) ++above;
      if (random.below(300) == 0) {  // seldom enough to fill the share alone
        for (const DmaAddr address : mapped) {
          f.pool->unmap(address, 4096, DmaDirection::from_device, {.skip_cpu_sync = true});
        }
        for (Page* block : blocks) page_put(*block);
        mapped.clear();
        blocks.clear();
      }
    }
    for (const DmaAddr address : mapped) {
      f.pool->unmap(address, 4096, DmaDirection::from_device, {.skip_cpu_sync = true});
    }
    for (Page* block : blocks) page_put(*block);
  });
  EXPECT_EQ(above.load(), 0U);
  EXPECT_GT(f.counters.value("swiotlb.alloc_fail.receive_share"), 0U);
}

}  // namespace
}  // namespace nobounce::test
