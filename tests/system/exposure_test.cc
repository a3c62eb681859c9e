// What the device can see of the guest: the shared region, looked at from a mapping of its own while
// streams run, contains no private canary and no address of private memory (C069, TM-57..TM-63).
#include <sys/mman.h>

#include <map>

#include "backend_process.hpp"

namespace nobounce::test {
namespace {

constexpr uint64_t kCanary = 0x5ec2e7c0ffee5ec2;  // no letters, no address

// Paints every free page of the arena, as private data that went before would have.
void paint(PrivateArena& arena) {
  std::vector<Page*> pages;
  while (Page* page = arena.alloc(0)) {
    const MutableBytes bytes = private_bytes(*page, 0, kPageSize);
    for (size_t at = 0; at < kPageSize; at += 8) store_le<uint64_t>(bytes, at, kCanary);
    pages.push_back(page);
  }
  for (Page* page : pages) page_put(*page);
}

// Private memory that shared memory could be taken to point into: the arena's pages, the records of
// all pages, the shard with its packets and sockets. Headers on the wire are as good as random words;
// against these few ranges, and with the alignment that objects have, a chance hit is one in millions
// of words.
using Ranges = std::map<uint64_t, uint64_t>;  // end -> begin

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

Ranges private_ranges(StackCore& core) {
  Ranges ranges;
  const auto add = [&ranges](uint64_t begin, uint64_t bytes) { ranges[begin + bytes] = begin; };
  // Somewhere around this page the arena lies.
  Page* some = core.arena->alloc(0);
  const uint64_t bytes = core.arena->bytes();
  const CpuAddr low = static_cast<CpuAddr>(static_cast<uint64_t>(page_address(*some)) - bytes);
  page_put(*some);
  add(static_cast<uint64_t>(low), 2 * bytes);
  const auto records = [&add](CpuAddr first, uint64_t of_bytes) {
    add(number(PageSpace::instance().page_of(first)), of_bytes / kPageSize * sizeof(Page));
  };
  records(core.region->cpu_address(), core.region->size());
  add(number(core.shard.get()), sizeof(Shard));
  PacketPool& packets = core.shard->context().packets;
  add(number(&packets), sizeof packets);
  add(number(core.swiotlb.get()), sizeof(Swiotlb));
  add(number(core.counters.get()), sizeof(CounterRegistry));
  return ranges;
}

struct Exposure {
  size_t canaries = 0;
  size_t addresses = 0;
};

Exposure look(const uint64_t* words, size_t count, const Ranges& ranges) {
  Exposure seen;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = *static_cast<const volatile uint64_t*>(words + i);
    if (word == kCanary) ++seen.canaries;
    if (word % 8 != 0) continue;
    const auto range = ranges.upper_bound(word);
    if (range != ranges.end() && range->second <= word) ++seen.addresses;
  }
  return seen;
}

struct ExposureTest : SystemTest, testing::WithParamInterface<Mode> {};

TEST_P(ExposureTest, C069_nothing_private_in_the_shared_region) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  StackCore& core = StackSetUp::core(*stack);
  const size_t bytes = core.region->size();
  void* view = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, core.region->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  const auto* words = static_cast<const uint64_t*>(view);
  paint(*core.arena);
  const Ranges ranges = private_ranges(core);
  TcpSocket socket = connect(*stack, kEcho);
  constexpr size_t kBytes = 24 << 20;
  std::thread sender([&socket] {
    std::vector<std::byte> chunk(60'001);
    for (size_t sent = 0; sent < kBytes;) {
      const size_t part = std::min(chunk.size(), kBytes - sent);
      fill_letters(MutableBytes(chunk).first(part), 9, sent);
      ASSERT_EQ(socket.send(Bytes(chunk).first(part)), part);
      sent += part;
    }
    EXPECT_TRUE(socket.shutdown(Shutdown::send).has_value());
  });
  std::thread receiver([&socket] {
    std::vector<std::byte> buffer(1 << 16);
    for (;;) {
      const auto taken = socket.recv(buffer);
      ASSERT_TRUE(taken.has_value());
      if (*taken == 0) break;
    }
  });
  for (int i = 0; i < 6; ++i) {
    const Exposure seen = look(words, bytes / 8, ranges);
    EXPECT_EQ(seen.canaries, 0u) << "look " << i;
    EXPECT_EQ(seen.addresses, 0u) << "look " << i;
    std::this_thread::sleep_for(20ms);
  }
  sender.join();
  receiver.join();
  const Exposure seen = look(words, bytes / 8, ranges);
  EXPECT_EQ(seen.canaries, 0u);
  EXPECT_EQ(seen.addresses, 0u);
  munmap(view, bytes);
}

// The looking itself works: what is planted is found.
TEST(Exposure, planted_secrets_are_found) {
  std::vector<uint64_t> words(64, 0x4142434445464748);
  words[10] = kCanary;
  words[20] = number(&words[7]);
  const Ranges ranges{{number(words.data() + words.size()), number(words.data())}};
  const Exposure seen = look(words.data(), words.size(), ranges);
  EXPECT_EQ(seen.canaries, 1u);
  EXPECT_EQ(seen.addresses, 1u);
}

INSTANTIATE_TEST_SUITE_P(Modes, ExposureTest, testing::Values(Mode::nocopy, Mode::bounce),
                         mode_name);

}  // namespace
}  // namespace nobounce::test
