#include "wire/virtio_net_hdr.hpp"

#include <gtest/gtest.h>

#include <array>

#include "base/random.hpp"

namespace nobounce::wire {
namespace {

TEST(VirtioNetHeader, fields_lie_where_the_standard_puts_them) {
  const VirtioNetHeader header{.flags = kNetNeedsCsum,
                               .gso_type = kNetGsoTcp4,
                               .hdr_len = 0x0102,
                               .gso_size = 0x0304,
                               .csum_start = 0x0506,
                               .csum_offset = 0x0708,
                               .num_buffers = 0x090a};
  std::array<std::byte, kNetHeaderBytes> bytes{};
  header.emit(bytes);
  const std::array<uint8_t, 12> expected{1, 1, 2, 1, 4, 3, 6, 5, 8, 7, 0xa, 9};
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<uint8_t>(bytes[i]), expected[i]) << i;
  }
  EXPECT_EQ(VirtioNetHeader::parse(bytes), header);
}

TEST(VirtioNetHeader, TM43_emit_writes_every_byte) {
  for (const uint8_t poison : {uint8_t{0x00}, uint8_t{0xa5}, uint8_t{0xff}}) {
    std::array<std::byte, kNetHeaderBytes> bytes;
    bytes.fill(static_cast<std::byte>(poison));
    VirtioNetHeader{}.emit(bytes);
    for (const std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(VirtioNetHeader, short_input_is_no_header) {
  std::array<std::byte, kNetHeaderBytes> bytes{};
  for (size_t size = 0; size < kNetHeaderBytes; ++size) {
    EXPECT_FALSE(VirtioNetHeader::parse(Bytes(bytes).first(size))) << size;
  }
  EXPECT_TRUE(VirtioNetHeader::parse(bytes));
}

TEST(VirtioNetHeader, any_bytes_survive_a_round_trip) {
  SeededRandom random(7);
  for (int i = 0; i < 1000; ++i) {
    std::array<std::byte, kNetHeaderBytes> bytes;
    random.fill(bytes);
    std::array<std::byte, kNetHeaderBytes> again{};
    VirtioNetHeader::parse(bytes)->emit(again);
    EXPECT_EQ(bytes, again);
  }
}

}  // namespace
}  // namespace nobounce::wire
