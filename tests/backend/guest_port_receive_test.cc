// From the guest to packets.
#include <optional>

#include "port_fixture.hpp"

namespace nobounce::backend::test {
namespace {

using Fixture = PortFixture;

// ---- from the guest -----------------------------------------------------------------------------

TEST(GuestPort, frames_arrive_whole_whatever_the_buffers) {
  const std::vector<std::vector<uint32_t>> layouts = {
      {UINT32_MAX},
      {12, UINT32_MAX},
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, UINT32_MAX},
      {5, 5, 5, UINT32_MAX},
      {13, 4096},
      {4096},
      {2048, 100, 3, UINT32_MAX}};
  for (const size_t size :
       {14u, 60u, 191u, 192u, 193u, 1514u, 4096u, 4097u, 9014u, 65535u, 65553u}) {
    for (const auto& cuts : layouts) {
      SCOPED_TRACE(testing::Message() << size << " cut at " << cuts[0]);
      Fixture f;
      const ByteVector frame = make_frame(size, size);
      f.guest_sends({}, frame, cuts);
      ASSERT_EQ(f.receive(), 1u);
      Packet& packet = *f.burst[0];
      EXPECT_EQ(packet.size(), size);
      EXPECT_EQ(packet.head().size(), std::min<size_t>(size, kHeaderWindow));
      EXPECT_EQ(packet.checksum, Checksum::none);
      EXPECT_EQ(packet.gso, Gso::none);
      EXPECT_EQ(bytes_of(packet), frame);
      packet.give_back_head(14);  // the convention of every driver
      EXPECT_EQ(packet.payload_size(), size - 14);
      EXPECT_EQ(bytes_of(packet), frame);
      EXPECT_EQ(f.tx().take_used(), (UsedEntry{0, 0}));
      EXPECT_EQ(f.registry.value("backend.guest_tx_frames"), 1u);
      EXPECT_EQ(f.registry.value("backend.guest_tx_bytes"), size);
      EXPECT_EQ(f.all_drops(), 0u);
    }
  }
}

TEST(GuestPort, frames_of_impossible_length_are_dropped_and_returned) {
  Fixture f;
  for (const size_t size : {1u, 11u, 12u, 13u, 25u}) {
    f.guest_sends_raw(make_frame(size, 1));
    EXPECT_EQ(f.receive(), 0u);
    EXPECT_EQ(f.tx().take_used().id, 0u);
  }
  EXPECT_EQ(f.drops(Drop::short_frame), 5u);
  f.guest_sends_raw(make_frame(12 + 65554, 1));
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::long_frame), 1u);
  EXPECT_EQ(f.tx().take_used().id, 0u);
  // The port goes on.
  f.guest_sends({}, make_frame(60, 2));
  EXPECT_EQ(f.receive(), 1u);
}

struct HeaderCase {
  const char* name;
  wire::VirtioNetHeader header;
  size_t frame_bytes;
  uint64_t features;
  std::optional<Drop> drop;
};

// CVE-2024-11614 and its kin: what the guest says about checksum and segmentation.
TEST(GuestPort, TM41_the_net_header_counts_only_when_negotiated_and_inside) {
  constexpr uint8_t kCsum = wire::kNetNeedsCsum;
  const HeaderCase cases[] = {
      {"plain", {}, 60, kAll, {}},
      {"partial tcp", {.flags = kCsum, .csum_start = 34, .csum_offset = 16}, 60, kAll, {}},
      {"field ends the frame", {.flags = kCsum, .csum_start = 34, .csum_offset = 16}, 52, kAll, {}},
      {"field one beyond",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 16},
       51,
       kAll,
       Drop::csum_range},
      {"start in the link header",
       {.flags = kCsum, .csum_start = 13, .csum_offset = 16},
       60,
       kAll,
       Drop::csum_range},
      {"start beyond",
       {.flags = kCsum, .csum_start = 60, .csum_offset = 0},
       60,
       kAll,
       Drop::csum_range},
      {"both at the top",
       {.flags = kCsum, .csum_start = 65535, .csum_offset = 65535},
       60,
       kAll,
       Drop::csum_range},
      {"sum wraps 16 bits",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 65535},
       60,
       kAll,
       Drop::csum_range},
      {"start without the flag is nothing",
       {.csum_start = 65535, .csum_offset = 65535},
       60,
       kAll,
       {}},
      {"partial, not negotiated",
       {.flags = kCsum, .csum_start = 34, .csum_offset = 16},
       60,
       kAll & ~(wire::kNetCsum | wire::kNetHostTso4 | wire::kNetHostTso6),
       Drop::csum_not_negotiated},
      {"other flags are ignored", {.flags = 0xfe}, 60, kAll, {}},
      {"hdr_len and num_buffers are hints", {.hdr_len = 65535, .num_buffers = 65535}, 60, kAll, {}},
      {"tso4",
       {.flags = kCsum, .gso_type = 1, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll,
       {}},
      {"tso6",
       {.flags = kCsum, .gso_type = 4, .gso_size = 1440, .csum_start = 54, .csum_offset = 16},
       9014,
       kAll,
       {}},
      {"tso4 not negotiated",
       {.flags = kCsum, .gso_type = 1, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll & ~wire::kNetHostTso4,
       Drop::gso_not_negotiated},
      {"tso6 not negotiated",
       {.flags = kCsum, .gso_type = 4, .gso_size = 1460, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll & ~wire::kNetHostTso6,
       Drop::gso_not_negotiated},
      {"no segment size",
       {.flags = kCsum, .gso_type = 1, .gso_size = 0, .csum_start = 34, .csum_offset = 16},
       9014,
       kAll,
       Drop::gso_invalid},
      {"no partial checksum", {.gso_type = 1, .gso_size = 1460}, 9014, kAll, Drop::gso_invalid},
      {"ufo",
       {.flags = kCsum, .gso_type = 3, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"uso",
       {.flags = kCsum, .gso_type = 5, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"ecn flag",
       {.flags = kCsum, .gso_type = 0x81, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
      {"unknown type",
       {.flags = kCsum, .gso_type = 2, .gso_size = 1460, .csum_start = 34},
       9014,
       kAll,
       Drop::gso_not_negotiated},
  };
  for (const HeaderCase& c : cases) {
    SCOPED_TRACE(c.name);
    Fixture f({.features = c.features});
    f.guest_sends(c.header, make_frame(c.frame_bytes, 3));
    EXPECT_EQ(f.receive(), c.drop ? 0u : 1u);
    if (c.drop) {
      EXPECT_EQ(f.drops(*c.drop), 1u);
    } else {
      const bool partial = (c.header.flags & kCsum) != 0;
      EXPECT_EQ(f.burst[0]->checksum, partial ? Checksum::partial : Checksum::none);
      EXPECT_EQ(f.burst[0]->gso_size, c.header.gso_type == 0 ? 0 : c.header.gso_size);
    }
    EXPECT_EQ(f.tx().take_used().id, 0u);  // returned either way
    EXPECT_EQ(f.session.transmit_ring(0).queue.broken(), RingBreak::none);
  }
}

TEST(GuestPort, super_frames_say_how_many_segments_they_stand_for) {
  Fixture f;
  ByteVector frame = make_frame(34 + 20 + 10 * 1460 + 1, 4);
  frame[34 + 12] = std::byte{0x50};
  f.guest_sends({.flags = wire::kNetNeedsCsum,
                 .gso_type = wire::kNetGsoTcp4,
                 .gso_size = 1460,
                 .csum_start = 34,
                 .csum_offset = 16},
                frame);
  ASSERT_EQ(f.receive(), 1u);
  EXPECT_EQ(f.burst[0]->gso, Gso::tcp4);
  EXPECT_EQ(f.burst[0]->gso_segments, 11);
  f.burst.clear();
  // A segment size of 1 and a data offset of 15 words: bounded, no more than a count.
  frame[34 + 12] = std::byte{0xf0};
  f.guest_sends({.flags = wire::kNetNeedsCsum,
                 .gso_type = wire::kNetGsoTcp4,
                 .gso_size = 1,
                 .csum_start = 34,
                 .csum_offset = 16},
                frame);
  ASSERT_EQ(f.receive(), 1u);
  EXPECT_EQ(f.burst[0]->gso_segments, frame.size() - 34 - 60);
}

TEST(GuestPort, bounds_that_are_hit_drop_and_count) {
  {
    Fixture f({.arena_bytes = 256 << 10});  // 64 pages; each frame takes 15
    for (int i = 0; i < 10; ++i) {
      f.guest_sends({}, make_frame(60000, 1));
      static_cast<void>(f.receive());  // kept in the burst
      EXPECT_EQ(f.tx().take_used().id, 0u);
    }
    EXPECT_EQ(f.burst.size(), 4u);
    EXPECT_EQ(f.drops(Drop::no_pages), 6u);
  }
  {
    Fixture f({.packets = 4});
    for (int i = 0; i < 6; ++i) {
      f.guest_sends({}, make_frame(60, 1));
      static_cast<void>(f.receive());
    }
    EXPECT_EQ(f.burst.size(), 4u);
    EXPECT_EQ(f.drops(Drop::no_packets), 2u);
  }
}

TEST(GuestPort, a_disabled_ring_is_emptied_and_nothing_is_delivered) {
  Fixture f;
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{1, 0})));
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{0, 0})));
  f.guest_sends({}, make_frame(60, 1));
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::disabled), 1u);
  EXPECT_TRUE(f.tx().has_used());
  f.post(4, 2048);
  EXPECT_FALSE(f.port->link_up());
  EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
  EXPECT_EQ(f.drops(Drop::not_ready), 1u);
  EXPECT_FALSE(f.rx().has_used());
}

TEST(GuestPort, TM13_work_a_call_is_bounded) {
  Fixture f({.ring_size = 256});
  for (uint16_t i = 0; i < 256; ++i) {
    f.tx().set_chain(i, {{kGuestBase + kData, 20}}, false);  // all too short
    f.tx().offer(i);
  }
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::short_frame), 2 * kBurstMax);
  EXPECT_EQ(f.receive(), 0u);
  EXPECT_EQ(f.drops(Drop::short_frame), 256u);
}

}  // namespace
}  // namespace nobounce::backend::test
