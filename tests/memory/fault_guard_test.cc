// TM-64: what a peer does to its file never takes this process down.
#include "memory/fault_guard.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "memory/shared_region.hpp"

namespace nobounce {
namespace {

constexpr uint64_t kBytes = 64 << 12;

// A guest that did not seal its file, and our mapping of it.
struct Peer {
  explicit Peer(uint64_t bytes = kBytes) : file(memfd_create("peer", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    auto mapped = SharedRegion::map_peer({.fd = file.get(), .bytes = bytes});
    EXPECT_TRUE(mapped) << mapped.error().to_string();
    if (mapped) region = std::move(*mapped);
  }
  void truncate(off_t bytes) const { EXPECT_EQ(ftruncate(file.get(), bytes), 0); }

  UniqueFd file;
  std::unique_ptr<SharedRegion> region;
};

TEST(FaultGuard, TM64_a_truncated_file_reads_as_zeros_and_is_broken) {
  Peer peer;
  const SharedBytes bytes = peer.region->bytes();
  bytes.store<uint64_t>(0, 1);
  bytes.store<uint64_t>(8192, 2);
  EXPECT_FALSE(peer.region->is_broken());
  peer.truncate(4096);
  EXPECT_EQ(bytes.load<uint64_t>(0), 1u) << "what is left of the file is still there";
  EXPECT_FALSE(peer.region->is_broken());
  EXPECT_EQ(bytes.load<uint64_t>(8192), 0u);
  EXPECT_TRUE(peer.region->is_broken());
}

TEST(FaultGuard, TM64_every_accessor_survives) {
  Peer peer;
  const SharedBytes bytes = peer.region->bytes();
  peer.truncate(0);
  std::vector<std::byte> buffer(3 * kPageSize, std::byte{7});
  bytes.copy_in(100, buffer);  // faults in the middle of a copy, several times
  EXPECT_TRUE(peer.region->is_broken());
  bytes.copy_out(100, buffer);
  EXPECT_EQ(buffer[5000], std::byte{7}) << "a page that was replaced is memory like any other";
  EXPECT_EQ(bytes.sum(20 * kPageSize, 5 * kPageSize, 0), 0u);
  bytes.zero(30 * kPageSize + 1, 2 * kPageSize);
  bytes.store<uint32_t>(kBytes - 4, 1);
  bytes.copy_from(40 * kPageSize, bytes.sub(50 * kPageSize, 2 * kPageSize));
}

TEST(FaultGuard, TM64_only_the_region_that_faulted_is_broken) {
  Peer a;
  Peer b;
  Peer c;
  b.truncate(0);
  EXPECT_EQ(b.region->bytes().load<uint8_t>(5), 0);
  EXPECT_FALSE(a.region->is_broken());
  EXPECT_TRUE(b.region->is_broken());
  EXPECT_FALSE(c.region->is_broken());
}

TEST(FaultGuard, TM64_what_is_written_after_the_fault_reaches_nobody) {
  Peer peer;
  peer.truncate(0);
  peer.region->bytes().store<uint64_t>(0, 0x5ec4e7);
  peer.truncate(static_cast<off_t>(kBytes));
  uint64_t seen = 1;
  ASSERT_EQ(pread(peer.file.get(), &seen, sizeof seen, 0), 8);
  EXPECT_EQ(seen, 0u);
}

// Our own region: a peer that holds its fd can neither truncate nor seal it, but punch holes.
TEST(FaultGuard, TM64_holes_in_a_region_of_ours_are_survived) {
  auto region = SharedRegion::create({.bytes = 2 << 20});
  ASSERT_TRUE(region);
  (*region)->bytes().store<uint64_t>(4096, 9);
  ASSERT_EQ(fallocate((*region)->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 << 20), 0);
  EXPECT_EQ((*region)->bytes().load<uint64_t>(4096), 0u);
  (*region)->bytes().store<uint64_t>(4096, 10);
  EXPECT_EQ((*region)->bytes().load<uint64_t>(4096), 10u);
}

TEST(FaultGuard, TM64_truncated_in_the_middle_of_traffic_of_several_threads) {
  for (int round = 0; round < 10; ++round) {
    Peer peer;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const SharedBytes bytes = peer.region->bytes();
        for (size_t i = t; !stop.load(std::memory_order_relaxed); ++i) {
          bytes.store<uint32_t>((i % 64) * kPageSize + t * 64, 1);
          (void)bytes.load<uint32_t>(((i * 7) % 64) * kPageSize + t * 64);
        }
      });
    }
    peer.truncate(0);
    while (!peer.region->is_broken()) std::this_thread::yield();
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(FaultGuard, errno_is_the_interrupted_codes_own) {
  Peer peer;
  peer.truncate(0);
  errno = 77;
  (void)peer.region->bytes().load<uint8_t>(0);
  EXPECT_EQ(errno, 77);
}

TEST(FaultGuard, places_are_bounded_and_given_back) {
  UniqueFd file(memfd_create("peer", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<SharedRegion>> regions;
    for (size_t i = 0; i < FaultGuard::kRangesMax; ++i) {
      auto region = SharedRegion::map_peer({.fd = file.get(), .bytes = 4096});
      ASSERT_TRUE(region) << i;
      regions.push_back(std::move(*region));
    }
    auto refused = SharedRegion::map_peer({.fd = file.get(), .bytes = 4096});
    EXPECT_FALSE(refused);
    auto refused_too = SharedRegion::create({.bytes = 2 << 20});
    EXPECT_FALSE(refused_too);
  }
}

// ---- faults that are not ours: in a process of their own --------------------------------------

// A mapping of an empty file, unknown to the guard.
volatile char* foreign_mapping() {
  const int file = memfd_create("foreign", MFD_CLOEXEC);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return static_cast<volatile char*>(memory);
}

void take_default_action() {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &action, nullptr);
}

class FaultGuardDeathTest : public testing::Test {
 protected:
  // A fresh process each: the guard is installed once in a process's life.
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  void TearDown() override { testing::GTEST_FLAG(death_test_style) = "fast"; }
};

TEST_F(FaultGuardDeathTest, a_fault_elsewhere_ends_the_process_as_without_us) {
  EXPECT_EXIT(
      {
        take_default_action();
        const Peer peer;
        *foreign_mapping() = 1;
        std::exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FaultGuardDeathTest, a_signal_sent_by_someone_ends_the_process_too) {
  EXPECT_EXIT(
      {
        take_default_action();
        const Peer peer;
        raise(SIGBUS);
        std::exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FaultGuardDeathTest, a_handler_that_was_there_before_still_runs) {
  EXPECT_EXIT(
      {
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t* info, void*) {
          _exit(info->si_addr != nullptr ? 42 : 43);
        };
        sigaction(SIGBUS, &action, nullptr);
        const Peer peer;
        peer.truncate(0);
        (void)peer.region->bytes().load<uint8_t>(0);  // ours: the old one is not asked
        *foreign_mapping() = 1;
        std::exit(0);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(FaultGuardDeathTest, a_plain_handler_still_runs) {
  EXPECT_EXIT(
      {
        struct sigaction action{};
        action.sa_handler = [](int) { _exit(44); };
        sigaction(SIGBUS, &action, nullptr);
        const Peer peer;
        *foreign_mapping() = 1;
        std::exit(0);
      },
      testing::ExitedWithCode(44), "");
}

TEST_F(FaultGuardDeathTest, a_program_that_ignores_the_signal_still_does) {
  EXPECT_EXIT(
      {
        struct sigaction action{};
        action.sa_handler = SIG_IGN;
        sigaction(SIGBUS, &action, nullptr);
        const Peer peer;
        raise(SIGBUS);
        std::exit(45);
      },
      testing::ExitedWithCode(45), "");
}

TEST_F(FaultGuardDeathTest, a_region_that_is_gone_is_watched_no_more) {
  EXPECT_EXIT(
      {
        take_default_action();
        auto* place =
            static_cast<std::byte*>(static_cast<void*>(const_cast<char*>(foreign_mapping())));
        std::atomic<bool> broken{false};
        if (!FaultGuard::watch(place, 4096, 4096, broken)) std::exit(1);
        FaultGuard::unwatch(place);
        *const_cast<volatile std::byte*>(place) = std::byte{1};
        std::exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace nobounce
