// Ethernet, ARP, IPv4, ICMP and UDP headers: round trips, truncation at every length, boundaries.
#include <gtest/gtest.h>

#include "base/checksum.hpp"
#include "support/frames.hpp"

namespace nobounce::wire {
namespace {

using test::ByteVector;
using test::pattern;

const MacAddress kMacA{{0x02, 1, 2, 3, 4, 5}};
const MacAddress kMacB{{0x02, 9, 8, 7, 6, 5}};
const IpAddress kIpA = IpAddress::v4(10, 0, 0, 1);
const IpAddress kIpB = IpAddress::v4(10, 0, 0, 2);

// ---- Ethernet -----------------------------------------------------------------------------------

TEST(EthernetHeader, round_trip_and_layout) {
  ByteVector bytes(kEthernetHeaderSize);
  EthernetHeader{.destination = kMacA, .source = kMacB, .ether_type = 0x0806}.emit(bytes);
  EXPECT_EQ(bytes[0], std::byte{0x02});
  EXPECT_EQ(bytes[6 + 1], std::byte{9});
  EXPECT_EQ(bytes[12], std::byte{0x08});
  const auto view = EthernetView::parse(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->destination(), kMacA);
  EXPECT_EQ(view->source(), kMacB);
  EXPECT_EQ(view->ether_type(), 0x0806);
}

TEST(EthernetHeader, truncated_at_every_length) {
  const ByteVector bytes = pattern(kEthernetHeaderSize);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto view = EthernetView::parse(Bytes(bytes).first(size));
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error(), HeaderCause::truncated);
  }
}

// ---- ARP ----------------------------------------------------------------------------------------

ByteVector arp_bytes() {
  ByteVector bytes(kArpSize);
  ArpPacket{.operation = ArpOperation::reply,
            .sender_mac = kMacA,
            .sender_ip = kIpA,
            .target_mac = kMacB,
            .target_ip = kIpB}
      .emit(bytes);
  return bytes;
}

TEST(ArpPacket, round_trip) {
  const ByteVector bytes = arp_bytes();
  const auto view = ArpView::parse(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->operation(), ArpOperation::reply);
  EXPECT_EQ(view->sender_mac(), kMacA);
  EXPECT_EQ(view->sender_ip(), kIpA);
  EXPECT_EQ(view->target_mac(), kMacB);
  EXPECT_EQ(view->target_ip(), kIpB);
}

TEST(ArpPacket, truncated_at_every_length) {
  const ByteVector bytes = arp_bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto view = ArpView::parse(Bytes(bytes).first(size));
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error(), HeaderCause::truncated);
  }
}

// Any other value in the first eight bytes is refused: they are all fixed but the operation.
TEST(ArpPacket, N5_types_sizes_and_operation_are_checked) {
  for (size_t at = 0; at < 8; ++at) {
    for (unsigned value = 0; value < 256; ++value) {
      ByteVector bytes = arp_bytes();
      if (bytes[at] == static_cast<std::byte>(value)) continue;
      bytes[at] = static_cast<std::byte>(value);
      const auto view = ArpView::parse(bytes);
      const bool is_request = at == 7 && value == 1;
      EXPECT_EQ(view.has_value(), is_request) << at << " " << value;
      if (!view) {
        EXPECT_EQ(view.error(), HeaderCause::bad_format);
      }
    }
  }
}

// ---- IPv4 ---------------------------------------------------------------------------------------

ByteVector ipv4_bytes(size_t payload, size_t options = 0) {
  return test::ipv4({.tos = 0x10,
                     .identification = 0x1234,
                     .dont_fragment = true,
                     .ttl = 17,
                     .protocol = 6,
                     .source = kIpA,
                     .destination = kIpB},
                    ByteVector(payload), ByteVector(options, std::byte{1}));
}

TEST(Ipv4Header, round_trip) {
  const ByteVector bytes = ipv4_bytes(5);
  const auto view = Ipv4View::parse(bytes, bytes.size());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->header_size(), 20U);
  EXPECT_EQ(view->tos(), 0x10);
  EXPECT_EQ(view->total_length(), 25);
  EXPECT_EQ(view->identification(), 0x1234);
  EXPECT_TRUE(view->dont_fragment());
  EXPECT_FALSE(view->more_fragments());
  EXPECT_FALSE(view->is_fragment());
  EXPECT_EQ(view->ttl(), 17);
  EXPECT_EQ(view->protocol(), 6);
  EXPECT_EQ(view->source(), kIpA);
  EXPECT_EQ(view->destination(), kIpB);
}

TEST(Ipv4Header, fragment_fields) {
  for (const unsigned offset : {0U, 8U, 1480U, 65528U}) {
    for (const bool more : {false, true}) {
      ByteVector bytes(20);
      Ipv4Header{.total_length = 20,
                 .more_fragments = more,
                 .fragment_offset = static_cast<uint16_t>(offset),
                 .source = kIpA,
                 .destination = kIpB}
          .emit(bytes);
      const auto view = Ipv4View::parse(bytes, 20);
      ASSERT_TRUE(view);
      EXPECT_EQ(view->fragment_offset(), offset);
      EXPECT_EQ(view->more_fragments(), more);
      EXPECT_EQ(view->is_fragment(), more || offset != 0);
    }
  }
}

TEST(Ipv4Header, TM44_truncated_at_every_length) {
  for (const size_t options : {0, 4, 40}) {
    const ByteVector bytes = ipv4_bytes(0, options);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto view = Ipv4View::parse(Bytes(bytes).first(size), bytes.size());
      ASSERT_FALSE(view) << size;
      EXPECT_EQ(view.error(), HeaderCause::truncated);
    }
    EXPECT_TRUE(Ipv4View::parse(bytes, bytes.size()));
  }
}

TEST(Ipv4Header, N1_every_version_and_header_size) {
  for (unsigned first = 0; first < 256; ++first) {
    ByteVector bytes = ipv4_bytes(40);  // as long as the longest header
    bytes[0] = static_cast<std::byte>(first);
    test::fix_ipv4_checksum(bytes, 0);
    const auto view = Ipv4View::parse(bytes, bytes.size());
    if (first >> 4 != 4) {
      ASSERT_FALSE(view);
      EXPECT_EQ(view.error(), HeaderCause::bad_version);
    } else if ((first & 15) < 5) {
      ASSERT_FALSE(view);
      EXPECT_EQ(view.error(), HeaderCause::bad_header_size);
    } else {
      ASSERT_TRUE(view) << first;
      EXPECT_EQ(view->header_size(), (first & 15) * 4);
    }
  }
}

TEST(Ipv4Header, N1_total_length_between_header_and_packet) {
  for (const size_t options : {0, 20}) {
    const size_t header = 20 + options;
    for (size_t total = 0; total < 100; ++total) {
      ByteVector bytes = ipv4_bytes(40, options);
      store_be<uint16_t>(bytes, 2, static_cast<uint16_t>(total));
      test::fix_ipv4_checksum(bytes, 0);
      const auto view = Ipv4View::parse(bytes, bytes.size());
      const bool is_right = total >= header && total <= bytes.size();
      ASSERT_EQ(view.has_value(), is_right) << total;
      if (!view) {
        EXPECT_EQ(view.error(), HeaderCause::bad_length);
      }
    }
  }
}

TEST(Ipv4Header, N1_every_flipped_bit_of_the_header_is_found) {
  const ByteVector right = ipv4_bytes(8, 8);
  for (size_t bit = 0; bit < 28 * 8; ++bit) {
    ByteVector bytes = right;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(Ipv4View::parse(bytes, bytes.size())) << bit;
  }
}

TEST(Ipv4Header, quoted_form_ignores_checksum_and_end) {
  ByteVector bytes = ipv4_bytes(1000);
  bytes[8] = std::byte{1};  // TTL went down
  bytes.resize(28);
  EXPECT_FALSE(Ipv4View::parse(bytes, bytes.size()));
  ASSERT_TRUE(Ipv4View::parse_quoted(bytes));
  for (size_t size = 0; size < 20; ++size) {
    EXPECT_FALSE(Ipv4View::parse_quoted(Bytes(bytes).first(size)));
  }
  bytes[0] = std::byte{0x65};
  EXPECT_FALSE(Ipv4View::parse_quoted(bytes));
}

TEST(Ipv4Header, T55_source_routes_are_found_and_malformed_options_end_the_walk) {
  const auto with = [](std::initializer_list<int> options) {
    ByteVector bytes;
    for (const int option : options) bytes.push_back(static_cast<std::byte>(option));
    while (bytes.size() % 4 != 0) bytes.push_back(std::byte{0});
    const ByteVector packet = test::ipv4({.source = kIpA, .destination = kIpB}, {}, bytes);
    const auto view = Ipv4View::parse(packet, packet.size());
    EXPECT_TRUE(view);
    return view && view->has_source_route();
  };
  EXPECT_FALSE(with({}));
  EXPECT_TRUE(with({131, 7, 4, 1, 2, 3, 4}));
  EXPECT_TRUE(with({137, 7, 4, 1, 2, 3, 4}));
  EXPECT_TRUE(with({1, 1, 1, 131}));
  EXPECT_TRUE(with({7, 3, 0, 137, 3, 0}));  // behind a record route
  EXPECT_FALSE(with({0, 131, 7, 4}));       // behind the end
  EXPECT_FALSE(with({7, 0, 131, 3}));       // length 0
  EXPECT_FALSE(with({7, 1, 131, 3}));       // length 1
  EXPECT_FALSE(with({7, 200, 131, 3}));     // past the end
  EXPECT_FALSE(with({1, 1, 1, 7}));         // no length byte
}

TEST(PseudoHeader, matches_a_plain_sum) {
  // 10.0.0.1, 10.0.0.2, 6, 20
  EXPECT_EQ(checksum_fold(pseudo_header_sum(kIpA, kIpB, 6, 20)), 0x0a00 + 1 + 0x0a00 + 2 + 6 + 20);
  // The length's high half counts (IPv6 jumbo sizes and 64 KiB frames).
  EXPECT_EQ(checksum_fold(pseudo_header_sum(kIpA, kIpB, 6, 0x10014)),
            0x0a00 + 1 + 0x0a00 + 2 + 6 + 20 + 1);
  const auto v6 = *IpAddress::parse("2001:db8::1");
  EXPECT_EQ(checksum_fold(pseudo_header_sum(v6, v6, 17, 8)), 2 * (0x2001 + 0x0db8 + 1) + 17 + 8);
}

// ---- ICMP ---------------------------------------------------------------------------------------

TEST(IcmpHeader, round_trip_and_truncation) {
  ByteVector bytes(kIcmpHeaderSize);
  IcmpHeader{.type = 8, .code = 3, .checksum = 0xabcd, .identifier = 77, .sequence = 1500}.emit(
      bytes);
  const auto view = IcmpView::parse(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->type(), 8);
  EXPECT_EQ(view->code(), 3);
  EXPECT_EQ(view->checksum(), 0xabcd);
  EXPECT_EQ(view->identifier(), 77);
  EXPECT_EQ(view->sequence(), 1500);
  EXPECT_EQ(view->next_hop_mtu(), 1500);
  for (size_t size = 0; size < kIcmpHeaderSize; ++size) {
    EXPECT_FALSE(IcmpView::parse(Bytes(bytes).first(size)));
  }
}

TEST(IcmpHeader, N4_error_types) {
  for (unsigned type = 0; type < 256; ++type) {
    ByteVector bytes(kIcmpHeaderSize);
    bytes[0] = static_cast<std::byte>(type);
    const bool is_error = type == 3 || type == 4 || type == 5 || type == 11 || type == 12;
    EXPECT_EQ(IcmpView::parse(bytes)->is_error(), is_error) << type;
  }
}

// ---- UDP ----------------------------------------------------------------------------------------

TEST(UdpHeader, round_trip_and_truncation) {
  ByteVector bytes(kUdpHeaderSize);
  UdpHeader{.source_port = 1, .destination_port = 65535, .length = 8, .checksum = 0x1234}.emit(
      bytes);
  const auto view = UdpView::parse(bytes, 8);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->source_port(), 1);
  EXPECT_EQ(view->destination_port(), 65535);
  EXPECT_EQ(view->length(), 8);
  EXPECT_EQ(view->checksum(), 0x1234);
  for (size_t size = 0; size < kUdpHeaderSize; ++size) {
    const auto none = UdpView::parse(Bytes(bytes).first(size), size);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error(), HeaderCause::truncated);
  }
}

TEST(UdpHeader, N10_length_from_8_to_what_ip_delivered) {
  for (unsigned length = 0; length < 65536; ++length) {
    ByteVector bytes(kUdpHeaderSize);
    store_be<uint16_t>(bytes, 4, static_cast<uint16_t>(length));
    EXPECT_EQ(UdpView::parse(bytes, 1000).has_value(), length >= 8 && length <= 1000) << length;
  }
}

}  // namespace
}  // namespace nobounce::wire
