#include "base/checksum.hpp"

#include <algorithm>

namespace nobounce {
namespace {

// Sums in native order (four bytes at a time into 64 bits: 2^32 additions before overflow), then
// swaps once: the one's complement sum commutes with a byte swap (RFC 1071 2B).
uint64_t native_sum(const std::byte* bytes, size_t size) noexcept {
  uint64_t sum = 0;
  while (size >= 32) {
    uint32_t words[8];
    std::memcpy(words, bytes, sizeof words);
    sum += uint64_t{words[0]} + words[1] + words[2] + words[3];
    sum += uint64_t{words[4]} + words[5] + words[6] + words[7];
    bytes += 32;
    size -= 32;
  }
  while (size >= 4) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    sum += word;
    bytes += 4;
    size -= 4;
  }
  if (size >= 2) {
    uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    sum += half;
    bytes += 2;
    size -= 2;
  }
  if (size == 1) {
    uint16_t last = 0;
    std::memcpy(&last, bytes, 1);
    sum += last;
  }
  return sum;
}

uint16_t fold(uint64_t sum) noexcept {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

}  // namespace

uint64_t checksum_add(uint64_t sum, Bytes bytes) noexcept {
  return sum + big_endian(fold(native_sum(bytes.data(), bytes.size())));
}

uint64_t checksum_copy(uint64_t sum, MutableBytes to, Bytes from) noexcept {
  NB_ASSERT(to.size() >= from.size());
  // In blocks that stay in the first-level cache: the copy warms what the sum reads, and the sum
  // is taken from the private source.
  constexpr size_t kBlock = 4096;
  for (size_t done = 0; done < from.size(); done += kBlock) {
    const Bytes block = from.subspan(done, std::min(kBlock, from.size() - done));
    std::memcpy(to.data() + done, block.data(), block.size());
    sum = checksum_add(sum, block);
  }
  return sum;
}

uint16_t checksum_fold(uint64_t sum) noexcept { return fold(sum); }

}  // namespace nobounce
