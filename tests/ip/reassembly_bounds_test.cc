// IPv4 reassembly: what it may cost, and that all of it comes back (N-3, TM-45, TM-66, TM-67).
#include "ip/icmp.hpp"
#include "ip/reassembly_fixture.hpp"

namespace nobounce::ip {
namespace {

TEST_F(Fragments, TM45_one_source_displaces_its_own_only) {
  const ByteVector body = udp_bytes(2000);
  const IpAddress other = IpAddress::v4(10, 0, 0, 9);
  inject_piece(body, {0, 1480}, 1, other);
  for (uint16_t id = 0; id < 1000; ++id) inject_piece(body, {0, 1480}, id);
  EXPECT_EQ(counted("limit.source_datagrams"), 1000 - Reassembly::kDatagramsPerSource);
  EXPECT_EQ(pages_held(), Reassembly::kDatagramsPerSource + 1);
  inject_piece(body, {1480, body.size()}, 1, other);
  EXPECT_EQ(udp.packets.size(), 1U);
  inject_piece(body, {1480, body.size()}, 999);  // the newest are there, the oldest are not
  EXPECT_EQ(udp.packets.size(), 2U);
  inject_piece(body, {1480, body.size()}, 0);
  EXPECT_EQ(udp.packets.size(), 2U);
}

TEST_F(Fragments, TM45_many_sources_displace_the_oldest_datagram) {
  const ByteVector body = udp_bytes(2000);
  for (unsigned n = 0; n < 200; ++n) {
    inject_piece(body, {0, 1480}, 1, IpAddress::v4(10, 0, 0, static_cast<uint8_t>(2 + n)));
  }
  EXPECT_EQ(counted("limit.datagrams"), 200 - Reassembly::kDatagramsMax);
  EXPECT_EQ(pages_held(), Reassembly::kDatagramsMax);
  for (unsigned n = 0; n < 200; ++n) {
    const size_t before = udp.packets.size();
    inject_piece(body, {1480, body.size()}, 1,
                 IpAddress::v4(10, 0, 0, static_cast<uint8_t>(2 + n)));
    // Whoever asks for a place again takes that of the oldest.
    if (n >= 200 - Reassembly::kDatagramsMax / 2 + 1) {
      EXPECT_EQ(udp.packets.size(), before) << n;
    }
  }
}

TEST_F(Fragments, TM45_fragments_of_a_datagram_are_bounded) {
  const ByteVector body = udp_bytes(8 * (Reassembly::kFragmentsMax + 1));
  const auto pieces = cut(body.size(), 8);
  ASSERT_GT(pieces.size(), Reassembly::kFragmentsMax);
  for (const Piece& piece : pieces) inject_piece(body, piece);
  EXPECT_TRUE(udp.packets.empty());
  EXPECT_EQ(counted("limit.fragments"), 1U);
  EXPECT_EQ(pages_held(), 0U);
}

// The bounds of memory, on the table itself: fragments as small as can be pin whole pages.
class SmallReassembly : public IpTest, public Reassembly::Observer {
 protected:
  static constexpr size_t kPages = 200;  // 128 a source
  void timed_out(const Packet&, const wire::Ipv4View&) noexcept override { ++told; }
  // One fragment of 8 bytes; whether it was kept.
  bool add(const IpAddress& source, uint16_t id, size_t index) {
    wire::Ipv4Header header = ip_header();
    header.source = source;
    header.identification = id;
    header.more_fragments = true;
    header.fragment_offset = static_cast<uint16_t>(8 * index);
    const WireFrame frame{.bytes = test::ipv4(header, test::pattern(8))};
    PacketPtr packet = test::make_received(end.context, frame);
    const auto view = wire::Ipv4View::parse(packet->head(), packet->size());
    const size_t before = table.pages();
    EXPECT_FALSE(table.add(std::move(packet), *view));
    return table.pages() > before;
  }
  static IpAddress host(unsigned n) { return IpAddress::v4(10, 0, 1, static_cast<uint8_t>(n)); }
  Reassembly table{end.context, *this, kPages};
  int told = 0;
};

TEST_F(SmallReassembly, TM67_pages_of_a_source_are_bounded_by_true_size) {
  EXPECT_EQ(table.pages_per_source_max(), 128U);
  for (uint16_t id = 0; id < 10; ++id) {
    for (size_t i = 0; i < 20; ++i) {
      add(host(1), id, i);
      ASSERT_LE(table.pages(), 128U);
    }
  }
  EXPECT_GT(end.count("ip.reassembly.limit.source_pages"), 0U);
  EXPECT_EQ(end.count("ip.reassembly.limit.pages"), 0U);
  EXPECT_EQ(table.pages(), end.packets.in_use());
}

TEST_F(SmallReassembly, TM67_pages_in_all_are_bounded_and_the_heaviest_pays) {
  for (uint16_t id = 0; id < 6; ++id) {
    for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(add(host(1), id, i));
  }
  for (unsigned n = 2; n < 12; ++n) {
    for (size_t i = 0; i < 20; ++i) {
      add(host(n), 1, i);
      ASSERT_LE(table.pages(), kPages);
    }
  }
  EXPECT_EQ(end.count("ip.reassembly.limit.pages"), 6U);  // all of host 1, a datagram at a time
}

TEST_F(SmallReassembly, N3_times_out_in_the_order_of_arrival) {
  EXPECT_TRUE(add(host(1), 1, 0));
  clock.advance(kSecond);
  end.begin_round();
  EXPECT_TRUE(add(host(2), 1, 1));
  clock.advance(Reassembly::kTimeoutNs - kSecond);
  end.begin_round();
  EXPECT_EQ(table.datagrams(), 1U);
  EXPECT_EQ(told, 1);
  clock.advance(kSecond);
  end.begin_round();
  EXPECT_EQ(table.datagrams(), 0U);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(end.timers.armed(), 0U);
}

TEST_F(Fragments, N3_no_private_page_left_drops_the_datagram_and_nothing_leaks) {
  const ByteVector body = udp_bytes(40'000);
  const auto pieces = cut(body.size(), 1480);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) inject_piece(body, pieces[i]);
  device.inject(piece_frame(body, pieces.back()));
  PacketBurst burst;
  ASSERT_EQ(device.receive(0, burst), 1U);
  std::vector<Page*> hoard;
  while (Page* page = end.arena->alloc(0)) hoard.push_back(page);
  layer.receive(burst);
  EXPECT_EQ(counted("drop.no_memory"), 1U);
  EXPECT_TRUE(udp.packets.empty());
  for (Page* page : hoard) page_put(*page);
  expect_nothing_held();
}

// A device short of pages hands up small frames as a head without a frag.
TEST_F(Fragments, TM66_fragments_that_are_all_head) {
  const auto as_head = [&](const ByteVector& frame) {
    PacketPtr packet = end.packets.make(kHeadBytes - kHeaderWindow);
    std::ranges::copy(frame, packet->append(frame.size()).begin());
    PacketBurst burst;
    burst.push(std::move(packet));
    layer.receive(burst);
  };
  const ByteVector body = udp_bytes(300);
  for (unsigned heads = 0; heads < 8; ++heads) {  // which of the three are all head
    for (const bool reversed : {false, true}) {
      std::vector<Piece> pieces = cut(body.size(), 128);
      ASSERT_EQ(pieces.size(), 3U);
      if (reversed) std::ranges::reverse(pieces);
      for (size_t i = 0; i < 3; ++i) {
        const ByteVector frame = piece_frame(body, pieces[i]);
        (heads >> i & 1) != 0 ? as_head(frame) : inject(frame);
      }
      ASSERT_FALSE(udp.packets.empty());
      EXPECT_EQ(udp.packets.back(), body);
      EXPECT_EQ(udp.after_give_back.back(), body);
      EXPECT_TRUE(udp.checksum_ok);
      udp.packets.clear();
      expect_nothing_held();
    }
  }
  std::vector<Page*> hoard;
  while (Page* page = end.arena->alloc(0)) hoard.push_back(page);
  as_head(piece_frame(body, {0, 128}));
  EXPECT_EQ(counted("drop.no_memory"), 1U);
  for (Page* page : hoard) page_put(*page);
  advance(Reassembly::kTimeoutNs);
  expect_nothing_held();
}

// Fragments of any form at all: nothing breaks, the bounds hold, all memory comes back.
TEST_F(SmallReassembly, N3_any_fragments_keep_the_bounds) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SeededRandom random(seed);
    for (int i = 0; i < 1000; ++i) {
      wire::Ipv4Header header = ip_header();
      header.source = host(random.below(random.below(4) == 0 ? 200 : 3));
      header.identification = static_cast<uint16_t>(random.below(20));
      header.tos = static_cast<uint8_t>(random.below(20) == 0 ? 3 : 2);
      header.fragment_offset = static_cast<uint16_t>(
          8 * (random.below(30) == 0 ? random.below(8192)
                                     : random.below(random.below(2) == 0 ? 3 : 40)));
      header.more_fragments = random.below(3) != 0 || header.fragment_offset == 0;
      const size_t bytes = 8 * (1 + (random.below(4) == 0 ? random.below(4) : 0)) -
                           (header.more_fragments ? 0 : random.below(8));
      const WireFrame frame{.bytes = test::ipv4(header, test::pattern(bytes),
                                                ByteVector(4 * random.below(3), std::byte{1}))};
      PacketPtr packet = test::make_received(end.context, frame);
      const auto view = wire::Ipv4View::parse(packet->head(), packet->size());
      auto whole = table.add(std::move(packet), *view);
      if (whole) {
        const auto made = wire::Ipv4View::parse(whole->header(), 65535);
        ASSERT_TRUE(made);
        ASSERT_EQ(made->total_length(), whole->header_size + whole->packet->size());
        ASSERT_FALSE(made->is_fragment());
      }
      ASSERT_LE(table.pages(), kPages);
      ASSERT_LE(table.datagrams(), Reassembly::kDatagramsMax);
      ASSERT_GE(table.pages() + (whole ? 1 : 0), end.packets.in_use());
      if (random.below(50) == 0) {
        clock.advance(random.below(20) * kSecond);
        end.begin_round();
      }
    }
    clock.advance(Reassembly::kTimeoutNs);
    end.begin_round();
    ASSERT_EQ(table.datagrams(), 0U);
    ASSERT_EQ(table.pages(), 0U);
    ASSERT_EQ(end.packets.in_use(), 0U);
  }
  EXPECT_GT(end.count("ip.reassembly.whole"), 100U);
  EXPECT_GT(end.count("ip.reassembly.drop.overlap"), 100U);
}

}  // namespace
}  // namespace nobounce::ip
