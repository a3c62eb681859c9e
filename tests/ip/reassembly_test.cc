// IPv4 reassembly: what becomes whole, what does not, and who is told (N-3, N-4, C050).
#include <map>

#include "ip/icmp.hpp"
#include "ip/reassembly_fixture.hpp"

namespace nobounce::ip {
namespace {

constexpr uint16_t kIp = wire::kEtherTypeIpv4;

TEST_F(Fragments, C050_every_size_arrives_whole_in_order_and_reversed) {
  for (const size_t payload :
       {1473U, 1481U, 2000U, 4000U, 8192U, 26'000U, 27'000U, 65'000U, 65'507U}) {
    for (const bool reversed : {false, true}) {
      SCOPED_TRACE(payload);
      const ByteVector body = udp_bytes(payload);
      std::vector<Piece> pieces = cut(body.size(), 1480);
      if (reversed) std::ranges::reverse(pieces);
      udp.packets.clear();
      for (const Piece& piece : pieces) {
        EXPECT_TRUE(udp.packets.empty());
        inject_piece(body, piece);
      }
      ASSERT_EQ(udp.packets.size(), 1U);
      EXPECT_TRUE(udp.packets[0] == body);
      EXPECT_TRUE(udp.after_give_back.back() == body);
      EXPECT_EQ(udp.payload_size, payload);
      EXPECT_TRUE(udp.checksum_ok);
      expect_nothing_held();
    }
  }
}

TEST_F(Fragments, N3_the_transport_sees_the_packet_that_was_never_cut) {
  const ByteVector body = udp_bytes(3000);
  const ByteVector options(8, std::byte{1});
  for (const Piece& piece : cut(body.size(), 1024)) {
    wire::Ipv4Header header = ip_header();
    header.identification = 99;
    header.tos = 0x28;
    header.ttl = piece.begin == 0 ? 9 : 200;
    header.fragment_offset = static_cast<uint16_t>(piece.begin);
    header.more_fragments = piece.end < body.size();
    inject(from_peer(test::ipv4(header, Bytes(body).subspan(piece.begin, piece.end - piece.begin),
                                piece.begin == 0 ? Bytes(options) : Bytes())));
  }
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_EQ(udp.last.source, kPeer);
  EXPECT_EQ(udp.last.destination, kOurs);
  EXPECT_EQ(udp.last.ttl, 9);
  EXPECT_EQ(udp.last.tos, 0x28);
  EXPECT_TRUE(udp.last.to_unicast);
  const auto header = wire::Ipv4View::parse(udp.header, 28 + body.size());
  ASSERT_TRUE(header);
  EXPECT_EQ(header->header_size(), 28U);
  EXPECT_EQ(header->total_length(), 28 + body.size());
  EXPECT_FALSE(header->is_fragment());
  EXPECT_EQ(header->identification(), 99);
}

TEST_F(Fragments, N3_up_to_eighteen_pieces_nothing_is_copied_beyond_that_once) {
  const ByteVector small = udp_bytes(18 * 1000 - 8);
  for (const Piece& piece : cut(small.size(), 1000)) inject_piece(small, piece);
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_EQ(counted("compacted"), 0U);
  const ByteVector large = udp_bytes(19 * 1000 - 8);
  for (const Piece& piece : cut(large.size(), 1000)) inject_piece(large, piece);
  ASSERT_EQ(udp.packets.size(), 2U);
  EXPECT_TRUE(udp.packets[1] == large);
  EXPECT_EQ(counted("compacted"), 1U);
  EXPECT_EQ(counted("compacted_bytes"), large.size());
}

TEST_F(Fragments, C018_the_smallest_pieces_keep_the_transport_header) {
  for (const size_t payload : {9U, 16U, 100U, 144U, 145U, 1000U}) {
    const ByteVector body = udp_bytes(payload);
    for (const Piece& piece : cut(body.size(), 8)) inject_piece(body, piece);
    ASSERT_FALSE(udp.packets.empty());
    EXPECT_EQ(udp.packets.back(), body) << payload;
    EXPECT_EQ(udp.after_give_back.back(), body) << payload;
    EXPECT_TRUE(udp.checksum_ok);
  }
  EXPECT_GT(counted("compacted"), 0U);
}

TEST_F(Fragments, N3_a_device_that_vouches_for_fragments_is_not_believed) {
  ByteVector body = udp_bytes(3000);
  body[2000] ^= std::byte{1};
  for (const Checksum state : {Checksum::verified, Checksum::partial}) {
    for (const Piece& piece : cut(body.size(), 1480)) {
      device.inject(WireFrame{.bytes = piece_frame(body, piece),
                              .checksum = state,
                              .csum_start = 34,
                              .csum_offset = 6});
      round();
    }
  }
  ASSERT_EQ(udp.packets.size(), 2U);
  EXPECT_FALSE(udp.checksum_ok);
}

TEST_F(Fragments, N3_padding_of_the_link_is_no_part_of_a_fragment) {
  const ByteVector body = udp_bytes(50);
  for (const Piece& piece : cut(body.size(), 16)) {
    ByteVector frame = piece_frame(body, piece);
    frame.resize(60, std::byte{0xee});
    inject(frame);
  }
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_EQ(udp.packets[0], body);
}

TEST_F(Fragments, N3_datagrams_are_told_apart_by_all_four) {
  const ByteVector body = udp_bytes(2000);
  const Piece first{0, 1480};
  const Piece rest{1480, body.size()};
  inject_piece(body, first, 1);
  inject_piece(body, rest, 2);                              // another id
  inject_piece(body, rest, 1, IpAddress::v4(10, 0, 0, 3));  // another source
  wire::Ipv4Header header = ip_header(kProtocolTcp);        // another protocol
  header.identification = 1;
  header.fragment_offset = 1480;
  inject(from_peer(test::ipv4(header, Bytes(body).subspan(1480))));
  header = ip_header();  // another destination
  header.identification = 1;
  header.fragment_offset = 1480;
  header.destination = IpAddress::v4(10, 0, 0, 255);
  inject(test::ethernet(
      {.destination = MacAddress::broadcast(), .source = kPeerMac, .ether_type = kIp},
      test::ipv4(header, Bytes(body).subspan(1480))));
  EXPECT_TRUE(udp.packets.empty());
  EXPECT_TRUE(tcp.packets.empty());
  inject_piece(body, rest, 1);
  EXPECT_EQ(udp.packets.size(), 1U);
}

TEST_F(Fragments, N3_exact_duplicates_are_tolerated) {
  const ByteVector body = udp_bytes(4000);
  const auto pieces = cut(body.size(), 1480);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) {
    for (int times = 0; times < 3; ++times) inject_piece(body, pieces[i]);
  }
  for (const Piece& piece : pieces) inject_piece(body, piece);
  ASSERT_EQ(udp.packets.size(), 1U);
  EXPECT_TRUE(udp.packets[0] == body);
  EXPECT_EQ(counted("duplicates"), 3 * 2U - 2 + 2);
}

TEST_F(Fragments, N3_any_other_overlap_drops_all_of_it_also_what_is_still_to_come) {
  const ByteVector body = udp_bytes(4000);
  const std::vector<Piece> wrong = {{1472, 2952}, {1488, 2952}, {1480, 2944}, {1480, 2968},
                                    {8, 16},      {0, 1472},    {0, 1488},    {2952, 2968}};
  uint16_t id = 100;
  for (const Piece& piece : wrong) {
    SCOPED_TRACE(piece.begin);
    ++id;
    inject_piece(body, {0, 1480}, id);
    inject_piece(body, {1480, 2960}, id);
    inject_piece(body, piece, id);
    inject_piece(body, {2960, body.size()}, id);
    inject_piece(body, {0, 1480}, id);
    inject_piece(body, {1480, 2960}, id);
    EXPECT_TRUE(udp.packets.empty());
  }
  EXPECT_EQ(counted("drop.overlap"), wrong.size());
  EXPECT_EQ(counted("drop.late"), 3 * wrong.size());
  EXPECT_EQ(pages_held(), 0U);  // what is poisoned holds nothing
}

TEST_F(Fragments, N3_a_datagram_has_one_end) {
  const ByteVector body = udp_bytes(4000);
  const ByteVector shorter(body.begin(), body.begin() + 2000);
  const ByteVector longer = udp_bytes(6000);
  inject_piece(body, {2960, body.size()}, 1);  // the end, then another
  inject_piece(longer, {2960, longer.size()}, 1);
  inject_piece(body, {2960, body.size()}, 2);  // then something beyond it
  inject_piece(longer, {4440, 5920}, 2);
  inject_piece(body, {1480, 2960}, 3);  // something beyond what then is the end
  inject_piece(shorter, {1480, shorter.size()}, 3);
  EXPECT_EQ(counted("drop.two_ends"), 3U);
  EXPECT_EQ(pages_held(), 0U);
  EXPECT_TRUE(udp.packets.empty());
}

TEST_F(Fragments, N3_lengths_that_cannot_be) {
  const auto fragment = [&](uint16_t offset, size_t bytes, bool more, size_t options = 0) {
    wire::Ipv4Header header = ip_header();
    header.fragment_offset = offset;
    header.more_fragments = more;
    inject(from_peer(test::ipv4(header, test::pattern(bytes), ByteVector(options, std::byte{1}))));
  };
  fragment(0, 0, true);
  fragment(8, 0, false);
  fragment(0, 9, true);
  fragment(1480, 1479, true);
  EXPECT_EQ(counted("drop.bad_length"), 4U);
  fragment(65528, 8, false);  // 65528 + 8 + 20
  fragment(65528, 8, true);
  fragment(65504, 12, false);
  fragment(65504, 11, false, 4);
  EXPECT_EQ(counted("drop.too_long"), 4U);
  EXPECT_EQ(pages_held(), 0U);
  fragment(65504, 11, false);  // the very last byte there can be
  EXPECT_EQ(counted("drop.too_long"), 4U);
  EXPECT_GT(pages_held(), 0U);
}

// The pieces fit, but not together with the options of the first one's header.
TEST_F(Fragments, N3_the_whole_packet_is_no_longer_than_a_packet) {
  const ByteVector body = test::pattern(65515);
  const auto pieces = cut(body.size(), 1480);
  for (size_t i = 1; i < pieces.size(); ++i) inject_piece(body, pieces[i]);
  inject(piece_frame(body, pieces[0], 7, kPeer, ByteVector(4, std::byte{1})));
  EXPECT_TRUE(udp.packets.empty());
  EXPECT_EQ(counted("drop.too_long"), 1U);
  expect_nothing_held();
}

TEST_F(Fragments, N3_congestion_marks_of_any_fragment_count) {
  const ByteVector body = udp_bytes(30);
  const auto deliver = [&](uint8_t first, uint8_t second) {
    udp.packets.clear();
    uint8_t tos = first;
    for (const Piece& piece : cut(body.size(), 24)) {
      wire::Ipv4Header header = ip_header();
      header.tos = tos;
      header.fragment_offset = static_cast<uint16_t>(piece.begin);
      header.more_fragments = piece.end < body.size();
      inject(
          from_peer(test::ipv4(header, Bytes(body).subspan(piece.begin, piece.end - piece.begin))));
      tos = second;
    }
    return udp.packets.empty() ? -1 : int{udp.last.tos};
  };
  EXPECT_EQ(deliver(0x28, 0x28), 0x28);
  EXPECT_EQ(deliver(0x2a, 0x2b), 0x2b);
  EXPECT_EQ(deliver(0x29, 0x2b), 0x2b);
  EXPECT_EQ(deliver(0x2b, 0x2a), 0x2b);
  EXPECT_EQ(deliver(0x28, 0x2b), -1);
  EXPECT_EQ(counted("drop.mixed_ecn"), 1U);
}

// ---- time ---------------------------------------------------------------------------------------

TEST_F(Fragments, C050_memory_is_freed_at_the_time_out_and_the_sender_told_once) {
  resolve_peer();
  const ByteVector body = udp_bytes(4000);
  inject_piece(body, {0, 1480});
  inject_piece(body, {2960, body.size()});
  advance(Reassembly::kTimeoutNs - 1);
  EXPECT_GT(pages_held(), 0U);
  EXPECT_FALSE(next(kIp));
  advance(1);
  EXPECT_EQ(counted("timed_out"), 1U);
  const auto frame = next(kIp);
  ASSERT_TRUE(frame);
  EXPECT_TRUE(test::has_right_checksums(*frame));
  EXPECT_EQ((*frame)[34], std::byte{wire::kIcmpTimeExceeded});
  EXPECT_EQ((*frame)[35], std::byte{1});
  const ByteVector sent = piece_frame(body, {0, 1480});  // quoted as it came
  EXPECT_GE(frame->size(), 42U + 28);
  EXPECT_TRUE(std::equal(frame->begin() + 42, frame->end(), sent.begin() + 14));
  EXPECT_FALSE(next(kIp));
  EXPECT_EQ(pages_held(), 0U);
  inject_piece(body, {1480, 2960});  // too late, and a new beginning
  EXPECT_TRUE(udp.packets.empty());
}

TEST_F(Fragments, C050_without_the_first_fragment_nobody_is_told) {
  resolve_peer();
  const ByteVector body = udp_bytes(4000);
  inject_piece(body, {1480, 2960});
  advance(Reassembly::kTimeoutNs);
  EXPECT_EQ(counted("timed_out"), 1U);
  EXPECT_FALSE(next(kIp));
  expect_nothing_held();
}

TEST_F(Fragments, N4_no_error_about_errors_or_groups) {
  resolve_peer();
  const auto first_of = [&](uint8_t protocol, Bytes body, const IpAddress& to) {
    wire::Ipv4Header header = ip_header(protocol);
    header.destination = to;
    header.more_fragments = true;
    inject(test::ethernet({.destination = to == kOurs ? kOurMac : MacAddress::broadcast(),
                           .source = kPeerMac,
                           .ether_type = kIp},
                          test::ipv4(header, body)));
    advance(Reassembly::kTimeoutNs);
    inject(request_from(kPeer, kPeerMac));  // keeps the neighbour fresh
    return count_frames(kIp);
  };
  const ByteVector error = test::icmp({.type = wire::kIcmpUnreachable}, test::pattern(32));
  const ByteVector echo = test::icmp({.type = wire::kIcmpEchoRequest}, test::pattern(32));
  EXPECT_EQ(first_of(kProtocolIcmp, error, kOurs), 0U);
  EXPECT_EQ(first_of(kProtocolUdp, test::pattern(16), IpAddress::v4(10, 0, 0, 255)), 0U);
  EXPECT_EQ(first_of(kProtocolIcmp, echo, kOurs), 1U);
  EXPECT_EQ(counted("timed_out"), 3U);
}

TEST_F(Fragments, N4_the_errors_are_limited) {
  resolve_peer();
  const ByteVector body = udp_bytes(4000);
  for (uint16_t id = 0; id < 60; ++id) {
    inject_piece(body, {0, 1480}, id, IpAddress::v4(10, 0, 0, static_cast<uint8_t>(2 + id % 30)));
  }
  advance(Reassembly::kTimeoutNs);
  EXPECT_EQ(counted("timed_out"), 60U);
  EXPECT_EQ(end.count("icmp.errors_sent"), Icmp::kErrorBurst);
}

TEST_F(Fragments, N3_a_poisoned_datagram_is_forgotten_after_its_time) {
  const ByteVector body = udp_bytes(2000);
  inject_piece(body, {0, 1480});
  inject_piece(body, {8, 1480});
  advance(Reassembly::kTimeoutNs);
  EXPECT_EQ(counted("timed_out"), 0U);
  for (const Piece& piece : cut(body.size(), 1480)) inject_piece(body, piece);
  EXPECT_EQ(udp.packets.size(), 1U);
}

// ---- against a model ----------------------------------------------------------------------------

// Random datagrams in random pieces: permuted, doubled, overlapped, with holes, several at a time. A
// datagram arrives exactly when its pieces cover it and none overlapped; and then as it was sent.
TEST_F(Fragments, N3_random_pieces_against_a_model) {
  size_t delivered = 0;
  size_t overlapped = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    struct Sent {
      ByteVector body;
      std::vector<Piece> pieces;
      bool has_hole = false;
      bool overlaps = false;
    };
    std::map<uint16_t, Sent> datagrams;
    std::vector<std::pair<uint16_t, Piece>> wire;
    for (uint16_t id = 1; id <= 1 + random.below(4); ++id) {
      Sent& sent = datagrams[id];
      sent.body = test::udp({kPeer, id}, {kOurs, 53}, test::pattern(10 + random.below(9000), seed));
      for (size_t at = 0; at < sent.body.size();) {
        const size_t piece = 8 * (1 + random.below(180));
        sent.pieces.push_back({at, std::min(at + piece, sent.body.size())});
        at += piece;
      }
      if (sent.pieces.size() == 1) sent.pieces = {{0, 8}, {8, sent.body.size()}};
      if (random.below(5) == 0) {
        sent.has_hole = true;
        sent.pieces.erase(sent.pieces.begin() +
                          random.below(static_cast<uint32_t>(sent.pieces.size())));
      }
      for (const Piece& piece : sent.pieces) wire.emplace_back(id, piece);
      if (random.below(4) == 0 && !sent.pieces.empty()) {  // doubled
        wire.emplace_back(id, sent.pieces[random.below(static_cast<uint32_t>(sent.pieces.size()))]);
      }
      if (random.below(4) == 0 && !sent.pieces.empty()) {  // overlapped, unless it fits by chance
        const Piece& hit = sent.pieces[random.below(static_cast<uint32_t>(sent.pieces.size()))];
        if (hit.end - hit.begin > 8) {
          sent.overlaps = true;
          wire.insert(wire.begin(), {id, {hit.begin, hit.begin + 8}});
        }
      }
    }
    // The overlapping pieces came first on purpose: no datagram is whole before they are seen.
    const auto is_overlap = [&](const auto& entry) {
      const Sent& sent = datagrams[entry.first];
      return std::ranges::none_of(sent.pieces, [&](const Piece& piece) {
        return piece.begin == entry.second.begin && piece.end == entry.second.end;
      });
    };
    const auto rest = std::ranges::stable_partition(wire, is_overlap);
    for (size_t i = rest.size(); i > 1; --i) {
      std::swap(rest.begin()[static_cast<ptrdiff_t>(i - 1)],
                rest.begin()[random.below(static_cast<uint32_t>(i))]);
    }
    udp.packets.clear();
    for (const auto& [id, piece] : wire) inject_piece(datagrams[id].body, piece, id);
    for (const auto& [id, sent] : datagrams) {
      const auto times = std::ranges::count(udp.packets, sent.body);
      ASSERT_EQ(times, sent.has_hole || sent.overlaps ? 0 : 1) << "datagram " << id;
      delivered += static_cast<size_t>(times);
      if (sent.overlaps) ++overlapped;
    }
    ASSERT_LE(pages_held(), 64U);
    advance(Reassembly::kTimeoutNs);
    while (device.pop()) {
    }
    for (int i = 0; i < 4; ++i) advance(kSecond);  // a neighbour that was asked for
    ASSERT_EQ(pages_held(), 0U);
    ASSERT_EQ(end.packets.in_use(), 0U);
  }
  EXPECT_GT(delivered, 1500U);
  EXPECT_GT(overlapped, 300U);
}

}  // namespace
}  // namespace nobounce::ip
