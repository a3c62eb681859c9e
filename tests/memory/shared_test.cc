// The accessors of shared memory: what they return, that they keep to their range, and that each
// passes over shared memory once (TM-1, TM-2).
#include "memory/shared.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

// Shared memory for a test, with canaries on both sides.
class SharedBuffer {
 public:
  static constexpr size_t kCanary = 64;
  static constexpr std::byte kMark{0xc5};

  explicit SharedBuffer(size_t size, size_t misaligned_by = 0)
      : memory_(size + 3 * kCanary + misaligned_by, kMark), size_(size) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kCanary;
    begin_ = kCanary + (round_up(address, 64) - address) + misaligned_by;
    std::fill_n(memory_.begin() + static_cast<ptrdiff_t>(begin_), size, std::byte{0});
  }
  ~SharedBuffer() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (i >= begin_ && i < begin_ + size_) continue;
      EXPECT_EQ(memory_[i], kMark) << "canary " << i;
    }
  }
  SharedBytes bytes() { return SharedMemoryAccess::make(memory_.data() + begin_, size_); }
  MutableBytes raw() { return MutableBytes(memory_).subspan(begin_, size_); }

 private:
  std::vector<std::byte> memory_;
  size_t size_;
  size_t begin_ = 0;
};

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  SeededRandom random(seed);
  random.fill(bytes);
  return bytes;
}

TEST(SharedBytes, words_of_every_width_and_order) {
  SharedBuffer buffer(64);
  const SharedBytes shared = buffer.bytes();
  shared.store<uint8_t>(0, 0x11);
  shared.store<uint16_t>(2, 0x2233, StoreOrder::release);
  shared.store<uint32_t>(4, 0x44556677);
  shared.store<uint64_t>(8, 0x8899aabbccddeeff, StoreOrder::release);
  EXPECT_EQ(shared.load<uint8_t>(0), 0x11);
  EXPECT_EQ(shared.load<uint16_t>(2, LoadOrder::acquire), 0x2233);
  EXPECT_EQ(shared.load<uint32_t>(4), 0x44556677u);
  EXPECT_EQ(shared.load<uint64_t>(8, LoadOrder::acquire), 0x8899aabbccddeeffu);
  EXPECT_EQ(shared.load<uint8_t>(1), 0) << "a neighbour was written";
}

TEST(SharedBytes, little_endian_forms_are_the_order_of_virtio) {
  SharedBuffer buffer(16);
  buffer.bytes().store_le<uint32_t>(4, 0x01020304);
  EXPECT_EQ(buffer.raw()[4], std::byte{4});
  EXPECT_EQ(buffer.raw()[7], std::byte{1});
  EXPECT_EQ(buffer.bytes().load_le<uint32_t>(4), 0x01020304u);
  EXPECT_EQ(buffer.bytes().load_le<uint16_t>(4), 0x0304u);
}

TEST(SharedBytes, a_part_is_a_range_of_its_own) {
  SharedBuffer buffer(64);
  const SharedBytes part = buffer.bytes().sub(16, 8);
  EXPECT_EQ(part.size(), 8u);
  EXPECT_EQ(part.address(), buffer.bytes().address() + 16);
  part.store<uint64_t>(0, 7);
  EXPECT_EQ(buffer.bytes().load<uint64_t>(16), 7u);
  EXPECT_EQ(buffer.bytes().sub(60).size(), 4u);
  EXPECT_TRUE(buffer.bytes().sub(64).empty());
}

TEST(SharedBytes, nothing_is_a_range_too) {
  const SharedBytes none;
  EXPECT_TRUE(none.empty());
  none.copy_in(0, {});
  none.copy_out(0, {});
  none.zero(0, 0);
  none.copy_from(0, SharedBytes());
  EXPECT_EQ(none.sum(0, 0, 7), 7u);
  EXPECT_EQ(none.copy_in_summed(0, {}, 7), 7u);
}

// Every size across the copy routines' own thresholds, at every alignment.
TEST(SharedBytes, copies_in_and_out_are_exact) {
  const auto data = random_bytes(5000, 1);
  for (const size_t misaligned : {0, 1, 7, 13}) {
    for (size_t size = 1; size < 5000; size += size < 200 ? 1 : 119) {
      SharedBuffer buffer(size + 8, misaligned);
      const Bytes from = Bytes(data).first(size);
      buffer.bytes().copy_in(5, from);
      std::vector<std::byte> to(size);
      buffer.bytes().copy_out(5, to);
      ASSERT_TRUE(std::ranges::equal(to, from)) << size << " at " << misaligned;
      ASSERT_EQ(buffer.raw()[4], std::byte{0});
      ASSERT_EQ(buffer.raw()[5 + size], std::byte{0});
      buffer.bytes().zero(5, size);
      ASSERT_TRUE(
          std::ranges::all_of(buffer.raw(), [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
}

TEST(SharedBytes, copies_from_shared_to_shared) {
  const auto data = random_bytes(3000, 2);
  SharedBuffer from(3000, 3);
  SharedBuffer to(3100);
  from.bytes().copy_in(0, data);
  to.bytes().copy_from(50, from.bytes());
  EXPECT_TRUE(std::ranges::equal(to.raw().subspan(50, 3000), data));
  EXPECT_EQ(to.raw()[49], std::byte{0});
  EXPECT_EQ(to.raw()[3050], std::byte{0});
}

TEST(SharedBytes, sums_are_those_of_the_same_bytes_in_private) {
  const auto data = random_bytes(5000, 3);
  for (size_t size = 0; size <= 5000; size += size < 70 ? 1 : 411) {
    SharedBuffer buffer(5001, 1);
    const Bytes part = Bytes(data).first(size);
    const uint16_t expected = checksum_fold(checksum_add(99, part));
    EXPECT_EQ(checksum_fold(buffer.bytes().copy_in_summed(1, part, 99)), expected) << size;
    EXPECT_TRUE(std::ranges::equal(buffer.raw().subspan(1, size), part));
    EXPECT_EQ(checksum_fold(buffer.bytes().sum(1, size, 99)), expected) << size;
    std::vector<std::byte> out(size);
    EXPECT_EQ(checksum_fold(buffer.bytes().copy_out_summed(1, out, 99)), expected) << size;
    EXPECT_TRUE(std::ranges::equal(out, part));
  }
}

// ---- refusals ---------------------------------------------------------------------------------

using SharedBytesDeathTest = testing::Test;

TEST(SharedBytesDeathTest, a_range_outside_the_object_is_our_bug) {
  SharedBuffer buffer(64);
  const SharedBytes shared = buffer.bytes();
  std::byte private_bytes[8] = {};
  EXPECT_DEATH((void)shared.load<uint64_t>(64), "assertion");
  EXPECT_DEATH((void)shared.load<uint64_t>(60), "assertion");
  EXPECT_DEATH(shared.store<uint32_t>(~size_t{0} - 2, 1), "assertion");
  EXPECT_DEATH(shared.copy_out(57, private_bytes), "assertion");
  EXPECT_DEATH(shared.copy_in(~size_t{0}, private_bytes), "assertion");
  EXPECT_DEATH(shared.zero(1, ~size_t{0}), "assertion");
  EXPECT_DEATH((void)shared.sub(1, 64), "assertion");
  EXPECT_DEATH((void)shared.sub(65), "assertion");
  EXPECT_DEATH((void)shared.sum(32, 33, 0), "assertion");
}

TEST(SharedBytesDeathTest, a_word_is_naturally_aligned) {
  SharedBuffer buffer(64);
  EXPECT_DEATH((void)buffer.bytes().load<uint32_t>(2), "assertion");
  EXPECT_DEATH(buffer.bytes().store<uint64_t>(4, 1), "assertion");
}

// ---- one pass ---------------------------------------------------------------------------------

#ifdef NOBOUNCE_SHARED_LOAD_HOOK

struct Read {
  uintptr_t begin;
  size_t size;
};

// Records every load and rewrites what is about to be read, so that two reads of a byte differ.
class HostileReads {
 public:
  HostileReads() { set_shared_load_hook(&HostileReads::on_load, this); }
  ~HostileReads() { set_shared_load_hook(nullptr, nullptr); }
  std::vector<Read> reads;

 private:
  static void on_load(void* context, std::byte* address, size_t size) {
    auto* self = static_cast<HostileReads*>(context);
    self->reads.push_back({reinterpret_cast<uintptr_t>(address), size});
    for (size_t i = 0; i < size; ++i) {
      address[i] = static_cast<std::byte>(self->random_.next_u64());
    }
  }
  SeededRandom random_{17};
};

TEST(SharedBytes, TM1_one_load_a_word) {
  SharedBuffer buffer(64);
  HostileReads hostile;
  const auto seen = buffer.bytes().load<uint32_t>(8);
  ASSERT_EQ(hostile.reads.size(), 1u);
  EXPECT_EQ(hostile.reads[0].begin, buffer.bytes().address() + 8);
  EXPECT_EQ(hostile.reads[0].size, 4u);
  EXPECT_EQ(seen, load_le<uint32_t>(buffer.raw(), 8)) << "the value of that very load";
}

TEST(SharedBytes, TM3_writing_reads_nothing_back) {
  SharedBuffer buffer(4096);
  const auto data = random_bytes(4096, 5);
  HostileReads hostile;
  buffer.bytes().store<uint64_t>(0, 1);
  buffer.bytes().copy_in(0, data);
  (void)buffer.bytes().copy_in_summed(0, data, 0);
  buffer.bytes().zero(0, 100);
  EXPECT_TRUE(hostile.reads.empty());
}

TEST(SharedBytes, TM2_a_copy_that_is_summed_sums_what_it_delivers) {
  SharedBuffer buffer(3000);
  HostileReads hostile;
  std::vector<std::byte> out(3000);
  const uint64_t sum = buffer.bytes().copy_out_summed(0, out, 0);
  EXPECT_EQ(checksum_fold(sum), checksum_fold(checksum_add(0, out)));
  size_t bytes = 0;
  for (const Read& read : hostile.reads) bytes += read.size;
  EXPECT_EQ(bytes, 3000u);
}

TEST(SharedBytes, TM1_a_sum_in_place_reads_each_byte_once) {
  SharedBuffer buffer(4000, 1);
  HostileReads hostile;
  (void)buffer.bytes().sum(3, 3990, 0);
  uintptr_t next = buffer.bytes().address() + 3;
  for (const Read& read : hostile.reads) {
    EXPECT_EQ(read.begin, next);
    next = read.begin + read.size;
  }
  EXPECT_EQ(next, buffer.bytes().address() + 3993);
}

#endif

#if !defined(__SANITIZE_THREAD__)  // what it shows is a data race, on purpose

// NC-55: the checksum that goes on the wire is that of the private source, whatever the device does
// to the copy meanwhile.
TEST(SharedBytes, TM53_a_sum_on_the_way_in_is_of_the_private_source) {
  SharedBuffer buffer(65536);
  const auto data = random_bytes(65536, 6);
  const uint16_t expected = checksum_fold(checksum_add(0, data));
  std::atomic<bool> stop{false};
  std::thread device([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      for (size_t i = 0; i < 65536; i += 64) buffer.bytes().store<uint64_t>(i, ~uint64_t{0});
    }
  });
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(checksum_fold(buffer.bytes().copy_in_summed(0, data, 0)), expected);
  }
  stop.store(true);
  device.join();
}

#endif

}  // namespace
}  // namespace nobounce
