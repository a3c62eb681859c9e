// Tracking of mapped pages: who undoes a mapping, and that only one does (PP-65). And the gate.
#include "page_pool/mapping_table.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "page_pool/device_gate.hpp"

namespace nobounce {
namespace {

TEST(MappingTable, names_pages_by_an_index_that_is_never_zero) {
  MappingTable table(4);
  ASSERT_TRUE(table.is_ready());
  Page pages[4];
  std::set<uint32_t> indices;
  for (Page& page : pages) {
    EXPECT_TRUE(table.insert(page));
    indices.insert(page.dma_index.load());
  }
  EXPECT_EQ(indices.size(), 4u);
  EXPECT_FALSE(indices.contains(Page::kNotTracked));
  EXPECT_EQ(table.size(), 4u);
  for (Page& page : pages) EXPECT_TRUE(table.remove(page, [](Page&) {}));
}

TEST(MappingTable, PP63_a_full_table_refuses_and_recovers) {
  MappingTable table(2);
  Page pages[3];
  EXPECT_TRUE(table.insert(pages[0]));
  EXPECT_TRUE(table.insert(pages[1]));
  EXPECT_FALSE(table.insert(pages[2]));
  EXPECT_EQ(pages[2].dma_index.load(), Page::kNotTracked);
  EXPECT_TRUE(table.remove(pages[0], [](Page&) {}));
  EXPECT_TRUE(table.insert(pages[2]));
  table.remove_all([](Page&) {});
  EXPECT_EQ(table.size(), 0u);
}

TEST(MappingTable, a_table_for_nobody) {
  MappingTable table(0);
  Page page;
  EXPECT_FALSE(table.insert(page));
  EXPECT_FALSE(table.remove(page, [](Page&) { FAIL(); }));
  table.remove_all([](Page&) { FAIL(); });
}

TEST(MappingTable, PP65_the_second_finds_it_gone) {
  MappingTable table(8);
  Page page;
  int undone = 0;
  const auto undo = [&](Page& which) {
    EXPECT_EQ(&which, &page);
    ++undone;
  };
  EXPECT_TRUE(table.insert(page));
  EXPECT_TRUE(table.remove(page, undo));
  EXPECT_FALSE(table.remove(page, undo));
  table.remove_all(undo);
  EXPECT_EQ(undone, 1);
  EXPECT_EQ(page.dma_index.load(), Page::kNotTracked);
}

TEST(MappingTable, remove_all_passes_over_holes_and_many_batches) {
  constexpr uint32_t kPages = 1000;
  MappingTable table(kPages);
  std::vector<Page> pages(kPages);
  for (Page& page : pages) ASSERT_TRUE(table.insert(page));
  for (uint32_t i = 0; i < kPages; i += 3) EXPECT_TRUE(table.remove(pages[i], [](Page&) {}));
  std::set<Page*> undone;
  table.remove_all([&](Page& page) { EXPECT_TRUE(undone.insert(&page).second); });
  EXPECT_EQ(undone.size(), kPages - (kPages + 2) / 3);
  EXPECT_EQ(table.size(), 0u);
}

TEST(MappingTable, PP65_pages_and_the_destroyer_race_and_each_mapping_is_undone_once) {
  constexpr uint32_t kPages = 4096;
  struct Tracked {
    Page page;
    std::atomic<int> undone{0};
  };
  for (int round = 0; round < 10; ++round) {
    MappingTable table(kPages);
    std::vector<Tracked> pages(kPages);
    for (Tracked& tracked : pages) ASSERT_TRUE(table.insert(tracked.page));
    const auto undo = [&](Page& page) {
      const auto offset =
          reinterpret_cast<std::byte*>(&page) - reinterpret_cast<std::byte*>(pages.data());
      pages[static_cast<size_t>(offset) / sizeof(Tracked)].undone.fetch_add(1);
    };
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t i = t; i < kPages; i += 2) table.remove(pages[i].page, undo);
      });
    }
    table.remove_all(undo);
    for (std::thread& thread : threads) thread.join();
    for (Tracked& tracked : pages) ASSERT_EQ(tracked.undone.load(), 1);
  }
}

TEST(DeviceGate, is_open_until_closed) {
  DeviceGate gate;
  EXPECT_TRUE(gate.enter());
  EXPECT_TRUE(gate.enter());
  gate.leave();
  gate.leave();
  gate.close();
  EXPECT_FALSE(gate.enter());
  gate.close();  // again: no harm
}

TEST(DeviceGate, PP55_close_waits_for_those_inside) {
  for (int round = 0; round < 100; ++round) {
    DeviceGate gate;
    std::atomic<bool> device_is_there{true};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        while (gate.enter()) {
          EXPECT_TRUE(device_is_there.load(std::memory_order_relaxed));
          gate.leave();
        }
      });
    }
    gate.close();
    device_is_there.store(false, std::memory_order_relaxed);
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace nobounce
