// What a device may say in the header of a received frame (TM-40..TM-42).
#include "virtio/receive_check.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/random.hpp"
#include "virtio/features.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

using wire::VirtioNetHeader;

constexpr size_t kFrame = 1514;
const uint64_t kFull = known_features();

std::optional<RxDrop> refusal(const VirtioNetHeader& header, uint64_t features = kFull,
                              size_t frame = kFrame) {
  const auto checked = check_receive(header, features, frame);
  if (checked) return std::nullopt;
  return checked.error();
}

VirtioNetHeader tso(uint8_t type, uint16_t size) {
  return {.flags = wire::kNetNeedsCsum,
          .gso_type = type,
          .gso_size = size,
          .csum_start = 34,
          .csum_offset = 16};
}

TEST(ReceiveCheck, a_plain_header_leaves_the_checksum_to_us) {
  const auto checked = check_receive({}, kFull, kFrame);
  ASSERT_TRUE(checked);
  EXPECT_EQ(checked->checksum, Checksum::none);
  EXPECT_EQ(checked->gso, Gso::none);
  EXPECT_EQ(checked->gso_segments, 1);
}

TEST(ReceiveCheck, TM41_places_of_the_checksum_at_all_boundaries) {
  for (const unsigned start :
       {0U, 1U, 13U, 14U, 34U, 1495U, 1496U, 1497U, 1506U, 1507U, 32768U, 65535U}) {
    for (const unsigned offset : {0U, 5U, 6U, 7U, 15U, 16U, 17U, 32767U, 65535U}) {
      for (const size_t frame : {size_t{14}, size_t{34}, kFrame, size_t{65553}}) {
        const VirtioNetHeader header{.flags = wire::kNetNeedsCsum,
                                     .csum_start = static_cast<uint16_t>(start),
                                     .csum_offset = static_cast<uint16_t>(offset)};
        const bool known = offset == 6 || offset == 16;
        const bool inside = uint64_t{start} + offset + 2 <= frame && start >= 14;
        EXPECT_EQ(refusal(header, kFull, frame),
                  known && inside ? std::nullopt : std::optional(RxDrop::checksum))
            << start << " " << offset << " " << frame;
      }
    }
  }
}

TEST(ReceiveCheck, TM41_needs_csum_only_when_negotiated) {
  const VirtioNetHeader header{.flags = wire::kNetNeedsCsum, .csum_start = 34, .csum_offset = 16};
  EXPECT_EQ(refusal(header), std::nullopt);
  EXPECT_EQ(refusal(header, wire::kVersion1), RxDrop::checksum);
}

TEST(ReceiveCheck, TM42_data_valid_vouches_only_when_negotiated) {
  const VirtioNetHeader header{.flags = wire::kNetDataValid};
  EXPECT_EQ(check_receive(header, kFull, kFrame)->checksum, Checksum::verified);
  EXPECT_EQ(check_receive(header, wire::kVersion1, kFrame)->checksum, Checksum::none);
}

TEST(ReceiveCheck, TM42_unknown_flags_hdr_len_and_num_buffers_are_ignored) {
  for (unsigned flags = 0; flags < 256; flags += 4) {
    const auto checked = check_receive(
        {.flags = static_cast<uint8_t>(flags), .hdr_len = 65535, .num_buffers = 77}, kFull, kFrame);
    ASSERT_TRUE(checked);
    EXPECT_EQ(checked->checksum, Checksum::none);
  }
}

TEST(ReceiveCheck, TM40_types_by_negotiation) {
  for (unsigned type = 1; type < 256; ++type) {
    const auto byte = static_cast<uint8_t>(type);
    const bool known = byte == wire::kNetGsoTcp4 || byte == wire::kNetGsoTcp6;
    EXPECT_EQ(refusal(tso(byte, 1448)), known ? std::nullopt : std::optional(RxDrop::gso_type))
        << type;
    EXPECT_EQ(refusal(tso(byte, 1448), kFull & ~(wire::kNetGuestTso4 | wire::kNetGuestTso6)),
              RxDrop::gso_type);
  }
  EXPECT_EQ(refusal(tso(wire::kNetGsoTcp4, 1), kFull & ~wire::kNetGuestTso4), RxDrop::gso_type);
  EXPECT_EQ(refusal(tso(wire::kNetGsoTcp6, 1), kFull & ~wire::kNetGuestTso6), RxDrop::gso_type);
}

TEST(ReceiveCheck, TM40_segment_sizes) {
  EXPECT_EQ(refusal(tso(wire::kNetGsoTcp4, 0)), RxDrop::gso_size);
  const auto segments = [](uint16_t size, size_t frame) {
    return check_receive(tso(wire::kNetGsoTcp4, size), kFull, frame);
  };
  // 54 bytes of headers are certain.
  EXPECT_EQ(segments(1448, 54 + 14480)->gso_segments, 10);
  EXPECT_EQ(segments(1448, 54 + 14481)->gso_segments, 11);
  EXPECT_EQ(segments(1, 65553)->gso_segments, 65499);
  for (const uint16_t size : {uint16_t{1460}, uint16_t{1461}, uint16_t{65535}}) {
    const auto one = segments(size, 54 + 1460);
    EXPECT_EQ(one->gso_segments, 1);
    EXPECT_EQ(one->gso, Gso::none) << "no more than one segment";
  }
  EXPECT_EQ(segments(1, 52)->gso_segments, 1);  // shorter than its headers
}

TEST(ReceiveCheck, segments_need_somebody_to_vouch_for_their_checksum) {
  VirtioNetHeader header = tso(wire::kNetGsoTcp4, 1448);
  header.flags = 0;
  EXPECT_EQ(refusal(header), RxDrop::gso_checksum);
  header.flags = wire::kNetDataValid;
  EXPECT_EQ(refusal(header), std::nullopt);
}

TEST(ReceiveCheck, TM42_any_header_is_taken_or_dropped) {
  SeededRandom random(9);
  for (int i = 0; i < 200000; ++i) {
    std::array<std::byte, wire::kNetHeaderBytes> bytes;
    random.fill(bytes);
    if (random.below(2) == 0) bytes[1] = std::byte{1};
    const size_t frame = 14 + random.below(65540);
    const auto header = *VirtioNetHeader::parse(bytes);
    const auto checked = check_receive(header, kFull, frame);
    if (!checked) continue;
    EXPECT_GE(checked->gso_segments, 1);
    if (checked->checksum == Checksum::partial) {
      EXPECT_LE(size_t{checked->csum_start} + checked->csum_offset + 2, frame);
    }
    EXPECT_TRUE(checked->gso == Gso::none || checked->gso_size > 0);
  }
}

TEST(ReceiveCheck, every_reason_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (size_t i = 0; i < kRxDrops; ++i) names.insert(name(static_cast<RxDrop>(i)));
  EXPECT_EQ(names.size(), kRxDrops);
}

}  // namespace
}  // namespace nobounce::virtio
