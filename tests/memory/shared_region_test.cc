// The guest's region: sealed, populated, clean; and the refusals of both sides.
#include "memory/shared_region.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace nobounce {
namespace {

constexpr uint64_t kMiB = 1 << 20;

size_t open_fds() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(fds), end(fds)));
}

bool all_zero(const SharedBytes& bytes) {
  std::vector<std::byte> copy(bytes.size());
  bytes.copy_out(0, copy);
  return std::ranges::all_of(copy, [](std::byte byte) { return byte == std::byte{0}; });
}

std::unique_ptr<SharedRegion> make_region(uint64_t bytes = 2 * kMiB) {
  auto region = SharedRegion::create({.bytes = bytes});
  EXPECT_TRUE(region) << region.error().to_string();
  return region ? std::move(*region) : nullptr;
}

// ---- making -----------------------------------------------------------------------------------

TEST(SharedRegion, is_whole_huge_pages_of_the_page_space) {
  auto region = SharedRegion::create({.bytes = 3 * kMiB, .iova_base = 0x100000});
  ASSERT_TRUE(region);
  EXPECT_EQ((*region)->size(), 4 * kMiB);
  EXPECT_EQ((*region)->bytes().size(), 4 * kMiB);
  EXPECT_EQ((*region)->bytes().address() % (2 * kMiB), 0u);
  EXPECT_EQ((*region)->iova_base(), 0x100000u);
  EXPECT_TRUE(PageSpace::instance().contains((*region)->cpu_address()));
  for (uint64_t at = 0; at < (*region)->size(); at += kPageSize) {
    const Page* page = page_of((*region)->cpu_address() + at);
    ASSERT_TRUE(is_shared(*page));
    ASSERT_EQ(page->refcount.load(), 0u);
    ASSERT_EQ(page->owner, nullptr);
  }
}

TEST(SharedRegion, TM64_its_file_carries_every_seal_that_fits) {
  auto region = make_region();
  const int seals = fcntl(region->fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(region->fd(), 4096), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(region->fd(), 16 * kMiB), 0);
  EXPECT_NE(fcntl(region->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedRegion, TM87_its_fd_does_not_survive_exec) {
  auto region = make_region();
  EXPECT_NE(fcntl(region->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedRegion, every_page_is_there_from_the_start) {
  auto region = make_region(8 * kMiB);
  std::vector<unsigned char> resident(8 * kMiB / kPageSize);
  ASSERT_EQ(mincore(SharedMemoryAccess::raw(region->bytes()), 8 * kMiB, resident.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; }));
  struct stat status{};
  ASSERT_EQ(fstat(region->fd(), &status), 0);
  EXPECT_GE(static_cast<uint64_t>(status.st_blocks) * 512, 8 * kMiB);
}

TEST(SharedRegion, it_stays_out_of_core_files) {
  auto region = make_region();
  std::ostringstream start;
  start << std::hex << region->bytes().address() << "-";
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  bool found = false;
  while (std::getline(maps, line)) {
    if (line.find(start.str()) == 0) inside = true;
    if (!inside || line.find("VmFlags:") != 0) continue;
    found = line.find(" dd") != std::string::npos;
    break;
  }
  EXPECT_TRUE(found);
}

// Case C069: what the heap held before never shows from the device's side.
TEST(SharedRegion, TM57_C069_it_starts_as_zeros_from_a_fresh_mapping) {
  std::vector<std::unique_ptr<std::array<unsigned char, 4096>>> heap;
  for (int i = 0; i < 2000; ++i) {
    heap.push_back(std::make_unique<std::array<unsigned char, 4096>>());
    heap.back()->fill(0xd3);
  }
  heap.clear();
  for (int round = 0; round < 3; ++round) {
    auto region = make_region();
    auto peer = SharedRegion::map_peer({.fd = region->fd(), .bytes = region->size()});
    ASSERT_TRUE(peer) << peer.error().to_string();
    EXPECT_TRUE(all_zero((*peer)->bytes()));
    // The next one has this one's addresses; not its bytes.
    std::vector<std::byte> mark(region->size(), std::byte{0xd3});
    region->bytes().copy_in(0, mark);
  }
}

TEST(SharedRegion, huge_pages_are_used_or_done_without) {
  auto region = SharedRegion::create({.bytes = 4 * kMiB, .huge_pages = HugePages::prefer});
  ASSERT_TRUE(region) << region.error().to_string();
  EXPECT_EQ((*region)->size(), 4 * kMiB);
  EXPECT_TRUE(all_zero((*region)->bytes()));
  const int seals = fcntl((*region)->fd(), F_GET_SEALS);
  EXPECT_NE(seals & F_SEAL_SHRINK, 0);
  (*region)->bytes().store<uint64_t>((*region)->size() - 8, 1);
}

TEST(SharedRegion, sizes_and_addresses_out_of_range_are_refused) {
  const SharedRegionOptions bad[] = {
      {.bytes = 0},
      {.bytes = PageSpace::kBytes},
      {.bytes = ~uint64_t{0}},
      {.bytes = 2 * kMiB, .iova_base = 123},
      {.bytes = 2 * kMiB, .iova_base = ~uint64_t{0} & ~uint64_t{4095}},
  };
  const size_t fds = open_fds();
  for (const SharedRegionOptions& options : bad) {
    auto region = SharedRegion::create(options);
    ASSERT_FALSE(region);
    EXPECT_EQ(region.error().code, std::errc::invalid_argument);
    EXPECT_FALSE(region.error().hint.empty());
  }
  EXPECT_EQ(open_fds(), fds);
}

TEST(SharedRegion, a_hundred_come_and_go_without_a_trace) {
  const size_t fds = open_fds();
  uintptr_t address = 0;
  for (int i = 0; i < 100; ++i) {
    auto region = make_region();
    ASSERT_NE(region, nullptr);
    if (i == 0) address = region->bytes().address();
    EXPECT_EQ(region->bytes().address(), address) << "addresses leak";
  }
  EXPECT_EQ(open_fds(), fds);
}

// ---- limits: an error at start, in a process of its own ----------------------------------------

// Exit status 0 when the region is refused with a clear error.
[[noreturn]] void exit_after_refusal(int resource, rlim_t limit) {
  const auto which = static_cast<__rlimit_resource>(resource);
  rlimit before{};
  getrlimit(which, &before);
  const rlimit lowered{limit, before.rlim_max};
  if (setrlimit(which, &lowered) != 0) std::exit(3);
  auto region = SharedRegion::create({.bytes = 64 * kMiB});
  setrlimit(which, &before);
  if (region) std::exit(4);
  if (region.error().hint.empty() || region.error().cause.empty()) std::exit(5);
  std::fprintf(stderr, "%s\n", region.error().to_string().c_str());
  std::exit(0);
}

[[noreturn]] void exit_after_success(int resource, rlim_t limit) {
  const rlimit lowered{limit, limit};
  if (setrlimit(static_cast<__rlimit_resource>(resource), &lowered) != 0) std::exit(3);
  std::exit(SharedRegion::create({.bytes = 64 * kMiB}) ? 0 : 4);
}

TEST(SharedRegionDeathTest, C111_a_limit_on_file_size_is_an_error_not_a_signal) {
  EXPECT_EXIT(exit_after_refusal(RLIMIT_FSIZE, 1 * kMiB), testing::ExitedWithCode(0),
              "limit on file size.*ulimit -f");
}

TEST(SharedRegionDeathTest, C111_a_limit_on_open_files_is_an_error) {
  EXPECT_EXIT(exit_after_refusal(RLIMIT_NOFILE, 0), testing::ExitedWithCode(0), "");
}

TEST(SharedRegionDeathTest, C111_a_limit_on_locked_memory_does_no_harm) {
  EXPECT_EXIT(exit_after_success(RLIMIT_MEMLOCK, 64 << 10), testing::ExitedWithCode(0), "");
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // they need more addresses still

TEST(SharedRegionDeathTest, C111_a_limit_on_addresses_is_an_error_with_a_way_out) {
  testing::GTEST_FLAG(death_test_style) =
      "threadsafe";  // the page space is reserved once a process
  EXPECT_EXIT(exit_after_refusal(RLIMIT_AS, 1 << 30), testing::ExitedWithCode(0), "ulimit -v");
  testing::GTEST_FLAG(death_test_style) = "fast";
}

#endif

// ---- carving ----------------------------------------------------------------------------------

TEST(SharedRegion, parts_are_carved_in_order_aligned_and_zeroed) {
  auto region = make_region();
  std::vector<std::byte> mark(region->size(), std::byte{0xee});
  region->bytes().copy_in(0, mark);

  const SharedBytes a = region->carve(100, 64);
  const SharedBytes b = region->carve(4096, 4096);
  const SharedBytes c = region->carve(1, 1);
  EXPECT_EQ(a.address(), region->bytes().address());
  EXPECT_EQ(b.address(), region->bytes().address() + 4096);
  EXPECT_EQ(c.address(), b.address() + 4096);
  EXPECT_TRUE(all_zero(a) && all_zero(b) && all_zero(c));

  const SharedBytes rest = region->carve_rest(256 << 10);
  EXPECT_EQ(rest.address(), region->bytes().address() + (256 << 10));
  EXPECT_EQ(rest.size(), region->size() - (256 << 10));
  EXPECT_TRUE(region->carve_rest(1).empty());
  EXPECT_TRUE(region->carve(1, 1).empty());
}

TEST(SharedRegion, what_does_not_fit_is_an_empty_part) {
  auto region = make_region();
  EXPECT_TRUE(region->carve(region->size() + 1, 64).empty());
  EXPECT_TRUE(region->carve(~size_t{0}, 64).empty());
  EXPECT_TRUE(region->carve(0, 64).empty());
  EXPECT_FALSE(region->carve(1, 64).empty());
  EXPECT_TRUE(region->carve(region->size(), 64).empty()) << "one byte is gone already";
  EXPECT_EQ(region->carve(region->size() - 64, 64).size(), region->size() - 64);
  EXPECT_TRUE(region->carve_rest(4096).empty());
}

TEST(SharedRegion, TM63_device_addresses_are_offsets_from_a_base_of_our_choice) {
  auto region = SharedRegion::create({.bytes = 2 * kMiB, .iova_base = uint64_t{5} << 40});
  ASSERT_TRUE(region);
  (void)(*region)->carve(4096, 64);
  const SharedBytes part = (*region)->carve(64, 64);
  EXPECT_EQ((*region)->iova_of(part), (uint64_t{5} << 40) + 4096);
  EXPECT_EQ((*region)->iova_of((*region)->bytes().sub(2 * kMiB)), (uint64_t{5} << 40) + 2 * kMiB);
}

TEST(SharedRegionDeathTest, a_part_of_another_region_has_no_address_here) {
  auto region = make_region();
  auto other = make_region();
  EXPECT_DEATH((void)region->iova_of(other->bytes()), "assertion");
}

// ---- the peer's side --------------------------------------------------------------------------

TEST(SharedRegion, the_peer_sees_the_same_bytes) {
  auto region = make_region(4 * kMiB);
  auto peer = SharedRegion::map_peer({.fd = region->fd(), .bytes = region->size()});
  ASSERT_TRUE(peer) << peer.error().to_string();
  EXPECT_EQ((*peer)->size(), region->size());
  EXPECT_EQ((*peer)->fd(), -1);
  EXPECT_FALSE(PageSpace::instance().contains((*peer)->cpu_address()));
  region->bytes().store<uint64_t>(3 * kMiB, 42);
  EXPECT_EQ((*peer)->bytes().load<uint64_t>(3 * kMiB), 42u);
  (*peer)->bytes().store<uint64_t>(8, 43);
  EXPECT_EQ(region->bytes().load<uint64_t>(8), 43u);
}

TEST(SharedRegion, the_peer_maps_a_part_and_the_fd_stays_the_callers) {
  auto region = make_region();
  region->bytes().store<uint64_t>(8192, 9);
  UniqueFd duplicate(fcntl(region->fd(), F_DUPFD_CLOEXEC, 0));
  const size_t fds = open_fds();
  auto peer = SharedRegion::map_peer({.fd = duplicate.get(), .fd_offset = 8192, .bytes = 4096});
  ASSERT_TRUE(peer) << peer.error().to_string();
  EXPECT_EQ(open_fds(), fds) << "nothing is kept open";
  EXPECT_NE(fcntl(duplicate.get(), F_GETFD), -1) << "nor closed";
  duplicate.reset();
  EXPECT_EQ((*peer)->bytes().size(), 4096u);
  EXPECT_EQ((*peer)->bytes().load<uint64_t>(0), 9u);
}

TEST(SharedRegion, TM76_what_a_peer_announces_must_lie_in_its_file) {
  UniqueFd file(memfd_create("peer", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 1 << 20), 0);
  const PeerRegion bad[] = {
      {.fd = file.get(), .fd_offset = 0, .bytes = 0},
      {.fd = file.get(), .fd_offset = 0, .bytes = (1 << 20) + 4096},
      {.fd = file.get(), .fd_offset = 4096, .bytes = 1 << 20},
      {.fd = file.get(), .fd_offset = 1 << 20, .bytes = 4096},
      {.fd = file.get(), .fd_offset = 2 << 20, .bytes = 4096},
      {.fd = file.get(), .fd_offset = ~uint64_t{4095}, .bytes = 8192},  // the sum wraps
      {.fd = file.get(), .fd_offset = 4096, .bytes = ~uint64_t{4095}},
      {.fd = file.get(), .fd_offset = 1, .bytes = 4096},
      {.fd = file.get(), .fd_offset = 0, .bytes = 4097},
  };
  for (const PeerRegion& region : bad) {
    auto mapped = SharedRegion::map_peer(region);
    ASSERT_FALSE(mapped) << region.fd_offset << " + " << region.bytes;
    EXPECT_EQ(mapped.error().code, std::errc::invalid_argument);
  }
  EXPECT_TRUE(SharedRegion::map_peer({.fd = file.get(), .fd_offset = 0, .bytes = 1 << 20}));
  EXPECT_TRUE(
      SharedRegion::map_peer({.fd = file.get(), .fd_offset = (1 << 20) - 4096, .bytes = 4096}));
}

TEST(SharedRegion, only_files_in_memory_are_mapped) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd left(pair[0]);
  const UniqueFd right(pair[1]);
  const UniqueFd zero(open("/dev/zero", O_RDWR | O_CLOEXEC));
  const UniqueFd folder(open("/proc/self", O_RDONLY | O_CLOEXEC));
  for (const int fd : {left.get(), zero.get(), folder.get()}) {
    auto mapped = SharedRegion::map_peer({.fd = fd, .bytes = 4096});
    ASSERT_FALSE(mapped) << fd;
    EXPECT_EQ(mapped.error().code, std::errc::invalid_argument);
    EXPECT_FALSE(mapped.error().hint.empty());
  }
  auto mapped = SharedRegion::map_peer({.fd = -1, .bytes = 4096});
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code, std::errc::bad_file_descriptor);
}

TEST(SharedRegion, a_file_we_may_not_write_is_refused) {
  UniqueFd file(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const UniqueFd read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only.is_open());
  EXPECT_FALSE(SharedRegion::map_peer({.fd = read_only.get(), .bytes = 8192}));
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_FALSE(SharedRegion::map_peer({.fd = file.get(), .bytes = 8192}));
}

}  // namespace
}  // namespace nobounce
