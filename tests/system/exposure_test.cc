// What the device can see of the guest: the shared region, looked at from a mapping of its own while
// streams run, contains no private canary and no address of private memory (C069, TM-57..TM-63).
#include <sys/mman.h>

#include <fstream>
#include <map>
#include <sstream>

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

// Ranges of this process's memory, without the reserved ranges of sanitizers.
std::map<uint64_t, uint64_t> mappings() {
  std::map<uint64_t, uint64_t> ranges;  // end -> begin
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (begin >= uint64_t{1} << 40 && end - begin < uint64_t{1} << 40) ranges[end] = begin;
  }
  return ranges;
}

struct Exposure {
  size_t canaries = 0;
  size_t addresses = 0;
};

Exposure look(const uint64_t* words, size_t count, const std::map<uint64_t, uint64_t>& ranges) {
  Exposure seen;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = *static_cast<const volatile uint64_t*>(words + i);
    if (word == kCanary) ++seen.canaries;
    if (word < uint64_t{1} << 40 || word >= uint64_t{1} << 47) continue;
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
    const Exposure seen = look(words, bytes / 8, mappings());
    EXPECT_EQ(seen.canaries, 0u) << "look " << i;
    EXPECT_EQ(seen.addresses, 0u) << "look " << i;
    std::this_thread::sleep_for(20ms);
  }
  sender.join();
  receiver.join();
  const Exposure seen = look(words, bytes / 8, mappings());
  EXPECT_EQ(seen.canaries, 0u);
  EXPECT_EQ(seen.addresses, 0u);
  munmap(view, bytes);
}

// The looking itself works: what is planted is found.
TEST(Exposure, planted_secrets_are_found) {
  std::vector<uint64_t> words(64, 0x4142434445464748);
  words[10] = kCanary;
  words[20] = reinterpret_cast<uint64_t>(words.data());
  const Exposure seen = look(words.data(), words.size(), mappings());
  EXPECT_EQ(seen.canaries, 1u);
  EXPECT_EQ(seen.addresses, 1u);
}

INSTANTIATE_TEST_SUITE_P(Modes, ExposureTest, testing::Values(Mode::nocopy, Mode::bounce),
                         mode_name);

}  // namespace
}  // namespace nobounce::test
