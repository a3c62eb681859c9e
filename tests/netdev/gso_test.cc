// Software segmentation against a reference that builds each segment from scratch (G-1).
#include "netdev/gso.hpp"

#include <gtest/gtest.h>

#include "netdev/checksum.hpp"
#include "support/frames.hpp"

namespace nobounce::test {
namespace {

const IpAddress kFrom = IpAddress::v4(10, 0, 0, 1);
const IpAddress kTo = IpAddress::v4(10, 0, 0, 2);
const wire::EthernetHeader kLink{.destination = {{2, 0, 0, 0, 0, 2}},
                                 .source = {{2, 0, 0, 0, 0, 1}},
                                 .ether_type = wire::kEtherTypeIpv4};

struct Super {
  wire::TcpHeader tcp{.source_port = 1000,
                      .destination_port = 80,
                      .sequence = 0xffffff00,  // wraps in the middle (T-6)
                      .acknowledgement = 77,
                      .flags = wire::kTcpAck | wire::kTcpPsh,
                      .window = 0x1234,
                      .urgent_pointer = 0,
                      .options = {.timestamps = wire::TcpTimestamps{5, 6}}};
  wire::Ipv4Header ip{.tos = 3,
                      .identification = 0xfffe,  // wraps too
                      .dont_fragment = true,
                      .ttl = 61,
                      .protocol = 6,
                      .source = kFrom,
                      .destination = kTo};
  uint16_t gso_size = 1000;
  size_t frag_bytes = 4096;
};

// The packet as it stands before a device: Ethernet, IPv4, TCP in the head, payload in frags.
PacketPtr make_super(StackEnd& end, const Super& super, Bytes payload) {
  PacketPtr packet = end.packets.make();
  super.tcp.emit(packet->append(super.tcp.size()));
  for (size_t done = 0; done < payload.size();) {
    const size_t part = std::min(super.frag_bytes, payload.size() - done);
    const Frag frag = end.make_frag(payload.subspan(done, part));
    EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    done += part;
  }
  store_be<uint16_t>(packet->mutable_head(), wire::kTcpChecksumOffset, 0xdead);
  wire::Ipv4Header ip = super.ip;
  ip.total_length = static_cast<uint16_t>(20 + packet->size());
  ip.emit(packet->push(20));
  kLink.emit(packet->push(14));
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp4;
  packet->gso_size = super.gso_size;
  return packet;
}

// What a sender without GSO sends.
std::vector<ByteVector> reference(const Super& super, Bytes payload) {
  std::vector<ByteVector> frames;
  const size_t count = (payload.size() + super.gso_size - 1) / super.gso_size;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * super.gso_size;
    const Bytes piece =
        payload.subspan(begin, std::min<size_t>(super.gso_size, payload.size() - begin));
    wire::TcpHeader header = super.tcp;
    header.sequence += static_cast<uint32_t>(begin);
    if (i > 0) header.flags &= static_cast<uint8_t>(~wire::kTcpCwr);
    if (i + 1 < count) header.flags &= static_cast<uint8_t>(~(wire::kTcpPsh | wire::kTcpFin));
    wire::Ipv4Header ip = super.ip;
    ip.identification = static_cast<uint16_t>(ip.identification + i);
    frames.push_back(ethernet(kLink, ipv4(ip, tcp(kFrom, kTo, header, piece))));
  }
  return frames;
}

std::vector<ByteVector> split_all(PacketPtr packet) {
  std::vector<ByteVector> frames;
  auto splitter = GsoSplitter::open(std::move(packet));
  EXPECT_TRUE(splitter.has_value());
  if (!splitter) return frames;
  while (PacketPtr segment = splitter->next()) {
    EXPECT_EQ(segment->gso, Gso::none);
    EXPECT_EQ(segment->checksum, Checksum::partial);
    EXPECT_TRUE(complete_checksum(*segment));
    frames.push_back(flatten(*segment));
  }
  EXPECT_TRUE(splitter->done());
  return frames;
}

TEST(GsoSplitter, G1_equals_what_a_sender_without_gso_sends) {
  ManualClock clock;
  StackEnd end(clock);
  const ByteVector payload = pattern(60'000, 9);
  for (const size_t size : {1U, 999U, 1000U, 1001U, 2000U, 2001U, 4096U, 12'345U, 60'000U}) {
    for (const uint16_t mss :
         {uint16_t{88}, uint16_t{536}, uint16_t{1000}, uint16_t{1448}, uint16_t{8960}}) {
      Super super{.gso_size = mss};
      const Bytes piece = Bytes(payload).first(size);
      const auto want = reference(super, piece);
      const auto got = split_all(make_super(end, super, piece));
      ASSERT_EQ(got.size(), want.size()) << size << " " << mss;
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << size << " " << i;
    }
  }
}

TEST(GsoSplitter, G1_flags_fin_and_psh_on_the_last_cwr_on_the_first) {
  ManualClock clock;
  StackEnd end(clock);
  Super super;
  super.tcp.flags = wire::kTcpAck | wire::kTcpPsh | wire::kTcpFin | wire::kTcpCwr | wire::kTcpEce;
  const ByteVector payload = pattern(3500);
  const auto frames = split_all(make_super(end, super, payload));
  EXPECT_EQ(frames, reference(super, payload));
  ASSERT_EQ(frames.size(), 4U);
  const auto flags = [&](size_t i) { return std::to_integer<unsigned>(frames[i][34 + 13]); };
  EXPECT_EQ(flags(0), wire::kTcpAck | wire::kTcpCwr | wire::kTcpEce);
  EXPECT_EQ(flags(1), wire::kTcpAck | wire::kTcpEce);
  EXPECT_EQ(flags(3), wire::kTcpAck | wire::kTcpPsh | wire::kTcpFin | wire::kTcpEce);
}

TEST(GsoSplitter, G1_random_frag_layouts) {
  ManualClock clock;
  StackEnd end(clock);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Super super{.gso_size = static_cast<uint16_t>(1 + random.below(3000)),
                .frag_bytes = 600 + random.below(3000)};
    super.gso_size = std::max<uint16_t>(super.gso_size, 88);
    super.tcp.sequence = random.next_u32();
    const ByteVector payload = pattern(1 + random.below(10'000), seed);
    ASSERT_EQ(split_all(make_super(end, super, payload)), reference(super, payload));
  }
}

// The transmit path hands clones down: the original keeps every byte for retransmission.
TEST(GsoSplitter, a_clone_is_cut_without_touching_the_original) {
  ManualClock clock;
  StackEnd end(clock);
  const Super super;
  const ByteVector payload = pattern(5000);
  PacketPtr built = make_super(end, super, payload);
  const ByteVector head(built->head().begin(), built->head().end());
  PacketPtr original = end.packets.clone(*built);
  const ByteVector before = flatten(*original);
  EXPECT_EQ(split_all(std::move(built)), reference(super, payload));
  EXPECT_EQ(flatten(*original), before);
  EXPECT_EQ(before, payload);
}

TEST(GsoSplitter, C123_the_ip_header_checksum_is_filled_whatever_it_was) {
  ManualClock clock;
  StackEnd end(clock);
  const Super super;
  const ByteVector payload = pattern(2500);
  for (const unsigned sum : {0U, 0xffffU, 0x1234U}) {
    PacketPtr packet = make_super(end, super, payload);
    store_be<uint16_t>(packet->mutable_head(), 14 + 10, static_cast<uint16_t>(sum));
    EXPECT_EQ(split_all(std::move(packet)), reference(super, payload));
  }
}

TEST(GsoSplitter, an_empty_pool_keeps_the_rest_for_later) {
  ManualClock clock;
  StackEnd end(clock, StackEndOptions{.packets = 4});
  const Super super;
  const ByteVector payload = pattern(5000);
  const auto want = reference(super, payload);
  auto splitter = GsoSplitter::open(make_super(end, super, payload));
  ASSERT_TRUE(splitter);
  std::vector<PacketPtr> held;
  while (PacketPtr segment = splitter->next()) held.push_back(std::move(segment));
  EXPECT_FALSE(splitter->done());
  EXPECT_LT(held.size(), want.size());
  std::vector<ByteVector> got;
  const auto take = [&](PacketPtr segment) {
    EXPECT_TRUE(complete_checksum(*segment));
    got.push_back(flatten(*segment));
  };
  for (PacketPtr& segment : held) take(std::move(segment));
  while (PacketPtr segment = splitter->next()) take(std::move(segment));
  EXPECT_TRUE(splitter->done());
  EXPECT_EQ(got, want);
}

TEST(GsoSplitter, dropping_it_half_way_returns_everything) {
  ManualClock clock;
  StackEnd end(clock);
  auto splitter = GsoSplitter::open(make_super(end, {}, pattern(9000)));
  ASSERT_TRUE(splitter);
  EXPECT_NE(splitter->next(), nullptr);
  *splitter = {};
  EXPECT_TRUE(splitter->done());
  EXPECT_EQ(splitter->next(), nullptr);
}

// The fields and headers may come from a guest.
TEST(GsoSplitter, TM40_what_does_not_fit_the_headers_is_refused) {
  ManualClock clock;
  StackEnd end(clock);
  const auto refused = [&](auto change) {
    PacketPtr packet = make_super(end, {}, pattern(3000));
    change(*packet);
    const auto splitter = GsoSplitter::open(std::move(packet));
    return splitter ? std::optional<GsoCause>() : std::optional(splitter.error());
  };
  using Cause = std::optional<GsoCause>;
  EXPECT_EQ(refused([](Packet&) {}), Cause());
  EXPECT_EQ(refused([](Packet& p) { p.gso = Gso::none; }), GsoCause::not_gso);
  EXPECT_EQ(refused([](Packet& p) { p.gso_size = 0; }), GsoCause::not_gso);
  EXPECT_EQ(refused([](Packet& p) { p.checksum = Checksum::none; }), GsoCause::not_partial);
  EXPECT_EQ(refused([](Packet& p) { p.csum_start = 33; }), GsoCause::bad_headers);
  EXPECT_EQ(refused([](Packet& p) { p.csum_start = 65535; }), GsoCause::bad_headers);
  EXPECT_EQ(refused([](Packet& p) { p.csum_offset = 6; }), GsoCause::bad_headers);
  EXPECT_EQ(refused([](Packet& p) { p.gso = Gso::tcp6; }), GsoCause::bad_headers);
  EXPECT_EQ(refused([](Packet& p) { p.pull(1); }), GsoCause::bad_headers);
  EXPECT_EQ(refused([](Packet& p) { p.pull(p.head().size()); }), GsoCause::bad_headers);
  const auto byte = [&](size_t at, int value) {
    return refused([=](Packet& p) { p.mutable_head()[at] = static_cast<std::byte>(value); });
  };
  EXPECT_EQ(byte(12, 0x86), GsoCause::bad_headers);       // not IPv4
  EXPECT_EQ(byte(14, 0x65), GsoCause::bad_headers);       // version
  EXPECT_EQ(byte(14, 0x44), GsoCause::bad_headers);       // IHL 4
  EXPECT_EQ(byte(14, 0x4f), GsoCause::bad_headers);       // IHL 15: transport elsewhere
  EXPECT_EQ(byte(14 + 6, 0x20), GsoCause::bad_headers);   // a fragment
  EXPECT_EQ(byte(14 + 9, 17), GsoCause::bad_headers);     // UDP
  EXPECT_EQ(byte(34 + 12, 0x40), GsoCause::bad_headers);  // data offset 4
  EXPECT_EQ(byte(34 + 12, 0x50), GsoCause::bad_headers);  // shorter than the head
  EXPECT_EQ(byte(34 + 12, 0xf0), GsoCause::bad_headers);  // longer
}

TEST(GsoSplitter, TM40_random_heads_are_cut_or_refused) {
  ManualClock clock;
  StackEnd end(clock);
  size_t cut = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    PacketPtr packet = make_super(end, {}, pattern(2500));
    for (uint32_t i = random.below(3); i > 0; --i) {
      packet->mutable_head()[random.below(static_cast<uint32_t>(packet->head().size()))] =
          static_cast<std::byte>(random.next_u32());
    }
    if (random.below(4) == 0) packet->csum_start = static_cast<uint16_t>(random.below(80));
    auto splitter = GsoSplitter::open(std::move(packet));
    if (!splitter) continue;
    ++cut;
    size_t payload = 0;
    while (PacketPtr segment = splitter->next()) payload += segment->payload_size();
    ASSERT_EQ(payload, 2500U);
  }
  EXPECT_GT(cut, 500U);
}

TEST(GsoSplitter, ipv6_payload_length_and_checksum) {
  ManualClock clock;
  StackEnd end(clock);
  const ByteVector payload = pattern(2500);
  const auto from = *IpAddress::parse("2001:db8::1");
  const auto to = *IpAddress::parse("2001:db8::2");
  PacketPtr packet = end.packets.make();
  const Super super;
  super.tcp.emit(packet->append(super.tcp.size()));
  const Frag frag = end.make_frag(payload);
  ASSERT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
  const MutableBytes ip = packet->push(40);
  std::ranges::fill(ip, std::byte{0});
  ip[0] = std::byte{0x60};
  ip[6] = std::byte{6};
  std::ranges::copy(std::as_bytes(std::span(from.bytes())), ip.subspan(8).begin());
  std::ranges::copy(std::as_bytes(std::span(to.bytes())), ip.subspan(24).begin());
  wire::EthernetHeader link = kLink;
  link.ether_type = wire::kEtherTypeIpv6;
  link.emit(packet->push(14));
  packet->checksum = Checksum::partial;
  packet->csum_start = 54;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp6;
  packet->gso_size = 1000;
  const auto frames = split_all(std::move(packet));
  ASSERT_EQ(frames.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const Bytes piece = Bytes(payload).subspan(i * 1000, i == 2 ? 500 : 1000);
    wire::TcpHeader header = super.tcp;
    header.sequence += static_cast<uint32_t>(i * 1000);
    if (i < 2) header.flags = wire::kTcpAck;
    const ByteVector want = tcp(from, to, header, piece);
    EXPECT_EQ(ByteVector(frames[i].begin() + 54, frames[i].end()), want);
    EXPECT_EQ(load_be<uint16_t>(frames[i], 14 + 4), want.size());
  }
}

}  // namespace
}  // namespace nobounce::test
