#include "backend/guest_memory.hpp"

#include <sys/stat.h>

#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kTop = UINT64_MAX - kPage + 1;  // the last page of an address space

struct TableCase {
  const char* name;
  std::vector<wire::MemRegion> regions;
  bool sound;
};

wire::MemTable table_of(const std::vector<wire::MemRegion>& regions) {
  wire::MemTable table;
  table.count = static_cast<uint32_t>(regions.size());
  for (size_t i = 0; i < regions.size() && i < table.regions.size(); ++i) {
    table.regions[i] = regions[i];
  }
  return table;
}

TEST(GuestMemory, TM76_arithmetic_edge_table) {
  const TableCase cases[] = {
      {"one page", {{0, kPage, 0, 0}}, true},
      {"none", {}, false},
      {"no bytes", {{0, 0, 0, 0}}, false},
      {"size not of pages", {{0, kPage + 1, 0, 0}}, false},
      {"size one less than a page", {{0, kPage - 1, 0, 0}}, false},
      {"guest address not aligned", {{1, kPage, 0, 0}}, false},
      {"user address not aligned", {{0, kPage, 8, 0}}, false},
      {"offset not aligned", {{0, kPage, 0, 16}}, false},
      {"guest address ends at the top", {{kTop, kPage, 0, 0}}, true},
      {"guest address wraps by a page", {{kTop, 2 * kPage, 0, 0}}, false},
      {"user address ends at the top", {{0, kPage, kTop, 0}}, true},
      {"user address wraps by a page", {{0, 2 * kPage, kTop, 0}}, false},
      {"size of the whole space", {{kPage, kTop, 0, 0}}, false},
      {"offset beyond file offsets", {{0, kPage, 0, uint64_t{1} << 63}}, false},
      {"offset and size wrap", {{0, kPage, 0, kTop}}, false},
      {"offset and size pass file offsets",
       {{0, 2 * kPage, 0, (uint64_t{1} << 63) - kPage}},
       false},
      {"two side by side", {{0, kPage, 0, 0}, {kPage, kPage, kPage, 0}}, true},
      {"guest addresses overlap", {{0, 2 * kPage, 0, 0}, {kPage, kPage, 4 * kPage, 0}}, false},
      {"guest addresses equal", {{0, kPage, 0, 0}, {0, kPage, kPage, 0}}, false},
      {"one inside the other", {{0, 8 * kPage, 0, 0}, {2 * kPage, kPage, 64 * kPage, 0}}, false},
      {"user addresses overlap", {{0, kPage, 0, 0}, {kPage, kPage, 0, 0}}, false},
      {"overlap from below", {{kPage, kPage, kPage, 0}, {0, 2 * kPage, 8 * kPage, 0}}, false},
  };
  for (const TableCase& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(GuestMemory::fault_of(table_of(c.regions)) == nullptr, c.sound);
  }
  wire::MemTable many;
  many.count = GuestMemory::kRegionsMax + 1;
  EXPECT_NE(GuestMemory::fault_of(many), nullptr);
  std::vector<wire::MemRegion> eight;
  for (uint64_t i = 0; i < GuestMemory::kRegionsMax; ++i) {
    eight.push_back({i * kPage, kPage, i * kPage, 0});
  }
  EXPECT_EQ(GuestMemory::fault_of(table_of(eight)), nullptr);
}

TEST(GuestMemory, TM76_the_file_must_cover_what_is_mapped) {
  const GuestRam ram(4 * kPage);
  const auto try_map = [&](uint64_t bytes, uint64_t offset) {
    const UniqueFd fds[] = {duplicate(ram.fd())};
    return GuestMemory::create(table_of({{kGuestBase, bytes, kUserBase, offset}}), fds).has_value();
  };
  EXPECT_TRUE(try_map(4 * kPage, 0));
  EXPECT_TRUE(try_map(kPage, 3 * kPage));
  EXPECT_FALSE(try_map(5 * kPage, 0));
  EXPECT_FALSE(try_map(kPage, 4 * kPage));
  EXPECT_FALSE(try_map(2 * kPage, 3 * kPage));
  EXPECT_FALSE(try_map(kPage, uint64_t{1} << 40));
}

TEST(GuestMemory, TM76_refuses_what_is_not_memory_and_leaks_nothing) {
  const size_t before = open_fds();
  {
    int pipe_fds[2];
    ASSERT_EQ(::pipe(pipe_fds), 0);
    const UniqueFd reader(pipe_fds[0]);
    const UniqueFd writer(pipe_fds[1]);
    for (const int fd : {reader.get(), writer.get(), make_event().release()}) {
      const UniqueFd fds[] = {duplicate(fd)};
      EXPECT_FALSE(GuestMemory::create(table_of({{0, kPage, 0, 0}}), fds));
      if (fd != reader.get() && fd != writer.get()) ::close(fd);
    }
    const UniqueFd none[] = {UniqueFd()};
    EXPECT_FALSE(GuestMemory::create(table_of({{0, kPage, 0, 0}}), none));
    EXPECT_FALSE(GuestMemory::create(table_of({{0, kPage, 0, 0}}), {}));
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(GuestMemory, translate_gives_the_bytes_of_the_address_or_nothing) {
  const GuestRam ram(4 * kPage);
  const auto memory = ram.map();
  ram.store<uint32_t>(kPage + 4, 0x1234);
  PieceList pieces(4);
  ASSERT_EQ(memory->translate(kGuestBase + kPage + 4, 8, pieces), Translation::done);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces.range(0, 1)[0].load<uint32_t>(0), 0x1234u);
  EXPECT_EQ(pieces.range(0, 1)[0].size(), 8u);

  struct Case {
    uint64_t address;
    uint32_t size;
    Translation expected;
  };
  const uint64_t end = kGuestBase + ram.size();
  const Case cases[] = {
      {kGuestBase, static_cast<uint32_t>(ram.size()), Translation::done},
      {kGuestBase - 1, 1, Translation::unmapped},
      {kGuestBase - 1, 2, Translation::unmapped},
      {end - 1, 1, Translation::done},
      {end - 1, 2, Translation::unmapped},
      {end, 1, Translation::unmapped},
      {0, 1, Translation::unmapped},
      {UINT64_MAX, 1, Translation::unmapped},
      {UINT64_MAX, 2, Translation::unmapped},
      {kGuestBase, UINT32_MAX, Translation::unmapped},
      {UINT64_MAX - 8, UINT32_MAX, Translation::unmapped},
      {0, 0, Translation::done},  // no bytes, no address
      {UINT64_MAX, 0, Translation::done},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << std::hex << c.address << " + " << c.size);
    PieceList list(4);
    EXPECT_EQ(memory->translate(c.address, c.size, list), c.expected);
  }
  PieceList full(1);
  ASSERT_EQ(memory->translate(kGuestBase, 1, full), Translation::done);
  EXPECT_EQ(memory->translate(kGuestBase, 1, full), Translation::no_room);
}

TEST(GuestMemory, C065_a_buffer_over_the_border_of_regions_comes_in_pieces) {
  const GuestRam ram(4 * kPage);
  // Adjacent in guest addresses, the other way round in the file, a hole after the third page.
  const UniqueFd fds[] = {duplicate(ram.fd()), duplicate(ram.fd())};
  const auto memory =
      GuestMemory::create(table_of({{kGuestBase, kPage, kUserBase, 2 * kPage},
                                    {kGuestBase + kPage, 2 * kPage, kUserBase + 64 * kPage, 0}}),
                          fds);
  ASSERT_TRUE(memory);
  ram.store<uint8_t>(3 * kPage - 1, 0xaa);
  ram.store<uint8_t>(0, 0xbb);
  PieceList pieces(8);
  ASSERT_EQ((*memory)->translate(kGuestBase + kPage - 1, 2, pieces), Translation::done);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces.range(0, 2)[0].load<uint8_t>(0), 0xaa);
  EXPECT_EQ(pieces.range(0, 2)[1].load<uint8_t>(0), 0xbb);
  PieceList beyond(8);
  EXPECT_EQ((*memory)->translate(kGuestBase + 3 * kPage - 1, 2, beyond), Translation::unmapped);
  // Ring parts never span regions.
  EXPECT_FALSE((*memory)->translate_user(kUserBase + kPage - 16, 32, 16));
  EXPECT_TRUE((*memory)->translate_user(kUserBase + kPage - 16, 16, 16));
}

TEST(GuestMemory, TM76_ring_parts_are_aligned_and_inside) {
  const GuestRam ram(4 * kPage);
  const auto memory = ram.map();
  EXPECT_TRUE(memory->translate_user(kUserBase, ram.size(), 16));
  EXPECT_FALSE(memory->translate_user(kUserBase, ram.size() + 1, 16));
  EXPECT_FALSE(memory->translate_user(kUserBase + 8, 16, 16));
  EXPECT_TRUE(memory->translate_user(kUserBase + 8, 16, 4));
  EXPECT_FALSE(memory->translate_user(kUserBase - 16, 32, 16));
  EXPECT_FALSE(memory->translate_user(kUserBase + ram.size(), 16, 16));
  EXPECT_FALSE(memory->translate_user(kUserBase, UINT64_MAX, 16));
  EXPECT_FALSE(memory->translate_user(kGuestBase, 16, 16));  // the other address space
}

TEST(GuestMemory, TM64_a_file_that_was_cut_breaks_the_memory_not_the_process) {
  const GuestRam ram(4 * kPage);
  const auto memory = ram.map();
  PieceList pieces(1);
  ASSERT_EQ(memory->translate(kGuestBase + 2 * kPage, 4, pieces), Translation::done);
  EXPECT_FALSE(memory->is_broken());
  ASSERT_EQ(::ftruncate(ram.fd(), kPage), 0);
  EXPECT_EQ(pieces.range(0, 1)[0].load<uint32_t>(0), 0u);
  EXPECT_TRUE(memory->is_broken());
}

}  // namespace
}  // namespace nobounce::backend::test
