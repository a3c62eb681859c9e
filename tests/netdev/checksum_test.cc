// Software completion of a partial checksum over head and frags.
#include "netdev/checksum.hpp"

#include <gtest/gtest.h>

#include "base/checksum.hpp"
#include "support/frames.hpp"

namespace nobounce::test {
namespace {

const IpAddress kFrom = IpAddress::v4(10, 0, 0, 1);
const IpAddress kTo = IpAddress::v4(10, 0, 0, 2);

// A UDP packet with a partial checksum; the payload lies in frags of these sizes.
PacketPtr partial_udp(StackEnd& end, Bytes payload, std::initializer_list<size_t> cuts) {
  PacketPtr packet = end.packets.make();
  const auto length = static_cast<uint16_t>(wire::kUdpHeaderSize + payload.size());
  const uint64_t pseudo = wire::pseudo_header_sum(kFrom, kTo, 17, length);
  wire::UdpHeader{
      .source_port = 7, .destination_port = 9, .length = length, .checksum = checksum_fold(pseudo)}
      .emit(packet->append(wire::kUdpHeaderSize));
  size_t done = 0;
  for (const size_t cut : cuts) {
    // Odd page offsets too.
    const Frag frag = end.make_frag(payload.subspan(done, cut), static_cast<uint32_t>(done % 5));
    EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    done += cut;
  }
  EXPECT_EQ(done, payload.size());
  packet->checksum = Checksum::partial;
  packet->csum_start = 0;
  packet->csum_offset = wire::kUdpChecksumOffset;
  return packet;
}

TEST(CompleteChecksum, T1_odd_and_even_pieces_give_the_flat_sum) {
  ManualClock clock;
  StackEnd end(clock);
  const ByteVector payload = pattern(1000, 3);
  const std::initializer_list<size_t> cuts[] = {
      {1000}, {1, 999}, {999, 1}, {1, 1, 1, 997}, {501, 499}, {333, 333, 334}, {7, 13, 980}};
  const ByteVector flat = udp({kFrom, 7}, {kTo, 9}, payload);
  for (const auto& cut : cuts) {
    const PacketPtr packet = partial_udp(end, payload, cut);
    ASSERT_TRUE(complete_checksum(*packet));
    EXPECT_EQ(packet->checksum, Checksum::none);
    EXPECT_EQ(flatten(*packet), flat);
  }
}

TEST(CompleteChecksum, T1_every_length_up_to_70) {
  ManualClock clock;
  StackEnd end(clock);
  for (size_t size = 1; size <= 70; ++size) {
    const ByteVector payload = pattern(size, size);
    const PacketPtr packet = partial_udp(end, payload, {size});
    ASSERT_TRUE(complete_checksum(*packet));
    EXPECT_EQ(flatten(*packet), udp({kFrom, 7}, {kTo, 9}, payload)) << size;
  }
}

// A payload chosen so that the whole sums to 0xffff: the computed checksum is 0.
ByteVector zero_sum_payload() {
  ByteVector payload(2);
  const ByteVector flat = udp({kFrom, 7}, {kTo, 9}, payload);
  payload[0] = flat[wire::kUdpChecksumOffset];
  payload[1] = flat[wire::kUdpChecksumOffset + 1];
  return payload;
}

TEST(CompleteChecksum, N10_a_udp_result_of_zero_is_sent_as_ffff) {
  ManualClock clock;
  StackEnd end(clock);
  const PacketPtr packet = partial_udp(end, zero_sum_payload(), {2});
  ASSERT_TRUE(complete_checksum(*packet));
  EXPECT_EQ(load_be<uint16_t>(packet->head(), wire::kUdpChecksumOffset), 0xffff);
}

TEST(CompleteChecksum, the_head_alone) {
  ManualClock clock;
  StackEnd end(clock);
  const PacketPtr packet = partial_udp(end, {}, {});
  ASSERT_TRUE(complete_checksum(*packet));
  EXPECT_EQ(flatten(*packet), udp({kFrom, 7}, {kTo, 9}, {}));
}

TEST(CompleteChecksum, not_partial_is_left_alone) {
  ManualClock clock;
  StackEnd end(clock);
  for (const Checksum state : {Checksum::none, Checksum::verified}) {
    const PacketPtr packet = partial_udp(end, pattern(10), {10});
    const ByteVector before = flatten(*packet);
    packet->checksum = state;
    EXPECT_TRUE(complete_checksum(*packet));
    EXPECT_EQ(packet->checksum, state);
    EXPECT_EQ(flatten(*packet), before);
  }
}

// The fields may come from a guest: nothing outside the head is ever written.
TEST(CompleteChecksum, TM41_a_field_outside_the_head_is_refused) {
  ManualClock clock;
  StackEnd end(clock);
  for (const auto& [start, offset] : std::initializer_list<std::pair<uint16_t, uint16_t>>{
           {0, 7}, {7, 0}, {2, 5}, {8, 0}, {0, 8}, {65535, 65535}, {65535, 1}, {1, 65535}}) {
    const PacketPtr packet = partial_udp(end, pattern(100), {100});
    const ByteVector before = flatten(*packet);
    packet->csum_start = start;
    packet->csum_offset = offset;
    EXPECT_FALSE(complete_checksum(*packet));
    EXPECT_EQ(packet->checksum, Checksum::partial);
    EXPECT_EQ(flatten(*packet), before);
  }
}

}  // namespace
}  // namespace nobounce::test
