// From packets to the guest.
#include "port_fixture.hpp"

namespace nobounce::backend::test {
namespace {

using Fixture = PortFixture;

// ---- to the guest -------------------------------------------------------------------------------

TEST(GuestPort, C020_mergeable_frames_carry_their_payload_in_one_to_many_buffers) {
  for (const uint32_t buffer : {64u, 100u, 1526u, 2048u, 4096u, 65536u}) {
    for (const uint16_t pieces : {uint16_t{1}, uint16_t{3}}) {
      for (const size_t size : {14u, 60u, 1514u, 9014u, 65549u}) {
        SCOPED_TRACE(testing::Message() << size << " in buffers of " << buffer);
        Fixture f({.ring_size = 256});
        const size_t needed = (size + 12 + buffer - 1) / buffer;
        if (needed * pieces > 250) continue;
        // Buffers must not overlap for this test: one each in 64 KiB steps, at most 32.
        if (needed > 32) continue;
        f.post(needed, buffer, 0, pieces);
        ASSERT_EQ(f.send(f.make_packet(size, size + 5)), 1u);
        const auto [header, bytes] = f.guest_takes();
        EXPECT_EQ(header.num_buffers, needed);
        EXPECT_EQ(header.flags, 0);
        EXPECT_EQ(header.gso_type, 0);
        EXPECT_EQ(bytes, make_frame(size, size + 5));
        EXPECT_FALSE(f.rx().has_used());
        EXPECT_EQ(f.registry.value("backend.guest_rx_frames"), 1u);
        EXPECT_EQ(f.all_drops(), 0u);
      }
    }
  }
}

TEST(GuestPort, C020_bursts_of_jumbo_frames_in_two_to_five_buffers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f({.ring_size = 256});
    for (int round = 0; round < 20; ++round) {
      const uint32_t buffer = 9026 / (2 + random.below(4)) + 1;
      const size_t frames = 1 + random.below(4);
      f.post(frames * ((9026 + buffer - 1) / buffer), buffer);
      PacketBurst out;
      for (size_t i = 0; i < frames; ++i) out.push(f.make_packet(9014, seed + i));
      ASSERT_EQ(f.port->transmit(0, out), frames);
      for (size_t i = 0; i < frames; ++i) {
        const auto [header, bytes] = f.guest_takes();
        EXPECT_EQ(header.num_buffers, (9026 + buffer - 1) / buffer);
        EXPECT_EQ(bytes, make_frame(9014, seed + i));
      }
      EXPECT_FALSE(f.rx().has_used());
    }
  }
}

TEST(GuestPort, C115_the_header_is_written_whole_and_num_buffers_is_one_without_merging) {
  Fixture f({.features = kAll & ~kMrg});
  std::memset(f.ram.at(kData), 0xa5, 1 << 20);
  f.post(1, 1526);
  ASSERT_EQ(f.send(f.make_packet(60, 1)), 1u);
  const auto [header, bytes] = f.guest_takes();
  EXPECT_EQ(header, (wire::VirtioNetHeader{.num_buffers = 1}));
  EXPECT_EQ(bytes, make_frame(60, 1));
  EXPECT_EQ(*f.ram.at(kData + 72), std::byte{0xa5});  // nothing behind the frame
}

TEST(GuestPort, C021_frames_that_cannot_fit_are_dropped_and_counted) {
  // All combinations of what decides the size of a frame and of the buffers for it.
  for (uint32_t mask = 0; mask < 8; ++mask) {
    SCOPED_TRACE(mask);
    uint64_t features = kAll;
    if ((mask & 1) == 0) features &= ~kMrg;
    if ((mask & 2) == 0) features &= ~wire::kNetGuestTso4;
    if ((mask & 4) == 0) features &= ~wire::kNetGuestTso6;
    Fixture f({.features = features, .ring_size = 8});
    f.post(8, 2048);
    PacketPtr super = f.make_packet(65549, 1);
    super->checksum = Checksum::partial;
    super->csum_start = 34;
    super->csum_offset = 16;
    super->gso = Gso::tcp4;
    super->gso_size = 1460;
    ASSERT_EQ(f.send(std::move(super)), 1u);
    EXPECT_EQ(f.drops(Drop::gso_not_negotiated), (mask & 2) == 0 ? 1u : 0u);
    EXPECT_EQ(f.drops(Drop::cannot_fit), (mask & 2) == 0 ? 0u : 1u);
    EXPECT_FALSE(f.rx().has_used());
    // A large plain frame: fits merged buffers only.
    ASSERT_EQ(f.send(f.make_packet(9014, 1)), 1u);
    if ((mask & 1) != 0) {
      EXPECT_EQ(f.guest_takes().second, make_frame(9014, 1));
    } else {
      EXPECT_EQ(f.drops(Drop::cannot_fit), (mask & 2) == 0 ? 1u : 2u);
    }
    // And the buffers that were too small are not lost.
    ASSERT_EQ(f.send(f.make_packet(1514, 2)), 1u);
    EXPECT_EQ(f.guest_takes().second, make_frame(1514, 2));
    EXPECT_EQ(f.session.receive_ring(0).queue.broken(), RingBreak::none);
  }
}

TEST(GuestPort, partial_checksums_and_super_frames_are_announced) {
  Fixture f;
  EXPECT_TRUE(f.port->features().tx_checksum);
  EXPECT_TRUE(f.port->features().tso4);
  EXPECT_TRUE(f.port->features().lro);
  f.post(20, 4096);
  PacketPtr packet = f.make_packet(30000, 9);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp4;
  packet->gso_size = 1448;
  ASSERT_EQ(f.send(std::move(packet)), 1u);
  const auto [header, bytes] = f.guest_takes();
  EXPECT_EQ(header.flags, wire::kNetNeedsCsum);
  EXPECT_EQ(header.gso_type, wire::kNetGsoTcp4);
  EXPECT_EQ(header.gso_size, 1448);
  EXPECT_EQ(header.csum_start, 34);
  EXPECT_EQ(header.csum_offset, 16);
  EXPECT_EQ(header.hdr_len, 54);
  EXPECT_EQ(bytes, make_frame(30000, 9));
}

TEST(GuestPort, a_checksum_that_was_verified_is_passed_on_where_it_was_negotiated) {
  for (const bool negotiated : {false, true}) {
    Fixture f({.features = negotiated ? kAll : kAll & ~wire::kNetGuestCsum});
    f.post(4, 2048);
    PacketPtr packet = f.make_packet(1514, 1);
    packet->checksum = Checksum::verified;
    ASSERT_EQ(f.send(std::move(packet)), 1u);
    EXPECT_EQ(f.guest_takes().first.flags, negotiated ? wire::kNetDataValid : 0);
  }
}

TEST(GuestPort, what_the_guest_did_not_negotiate_is_never_sent) {
  Fixture f({.features = wire::kVersion1 | wire::kVhostUserProtocolFeatures});
  const DeviceFeatures features = f.port->features();
  EXPECT_FALSE(features.tx_checksum || features.tso4 || features.tso6 || features.rx_checksum ||
               features.lro);
  f.post(4, 2048);
  PacketPtr packet = f.make_packet(1514, 1);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  EXPECT_EQ(f.send(std::move(packet)), 1u);
  EXPECT_EQ(f.drops(Drop::csum_not_negotiated), 1u);
  EXPECT_FALSE(f.rx().has_used());
}

TEST(GuestPort, TSO_without_GUEST_CSUM_is_not_believed) {
  Fixture f({.features = kAll & ~wire::kNetGuestCsum});
  EXPECT_FALSE(f.port->features().tso4);
}

TEST(GuestPort, frames_wait_for_buffers_and_go_when_they_come) {
  Fixture f;
  PacketBurst out;
  for (uint64_t i = 0; i < 3; ++i) out.push(f.make_packet(1514, i));
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  EXPECT_EQ(out.size(), 3u);
  EXPECT_EQ(f.port->transmit_room(0), 0u);
  f.post(2, 2048);
  EXPECT_EQ(f.port->transmit_room(0), 1u);
  EXPECT_EQ(f.port->transmit(0, out), 2u);
  EXPECT_EQ(out.size(), 1u);
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 0));
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 1));
  // It asks to be told of the next buffer, and is.
  EXPECT_TRUE(f.port->arm(0));
  EXPECT_EQ(f.rx().avail_event(), 2);
  f.post(1, 2048);
  EXPECT_FALSE(f.port->arm(0));
  EXPECT_EQ(f.port->transmit(0, out), 1u);
  EXPECT_TRUE(f.port->arm(0));  // buffers are no news now
  EXPECT_EQ(f.all_drops(), 0u);
}

TEST(GuestPort, a_frame_that_waits_too_long_lets_others_pass) {
  Fixture f;
  f.post(2, 2048);
  PacketBurst out;
  out.push(f.make_packet(9014, 1));
  out.push(f.make_packet(1514, 2));
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  f.clock.advance(GuestPort::kStallNs / 2);
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 0u);
  f.clock.advance(GuestPort::kStallNs);
  f.end.begin_round();
  EXPECT_EQ(f.port->transmit(0, out), 2u);
  EXPECT_EQ(f.drops(Drop::rx_stalled), 1u);
  EXPECT_EQ(f.guest_takes().second, make_frame(1514, 2));
}

TEST(GuestPort, a_receive_buffer_smaller_than_the_header_is_a_breach) {
  for (const uint32_t size : {0u, 1u, 11u}) {
    SCOPED_TRACE(size);
    Fixture f;
    f.post(4, size);
    EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
    EXPECT_EQ(f.session.receive_ring(0).queue.broken(), RingBreak::buffer_too_small);
    EXPECT_TRUE(f.port->is_broken());
    EXPECT_FALSE(f.port->link_up());
    EXPECT_EQ(f.all_drops(), 1u);
    EXPECT_EQ(f.send(f.make_packet(60, 1)), 1u);
    EXPECT_EQ(f.drops(Drop::not_ready), 2u);
  }
}

TEST(GuestPort, TM64_memory_that_vanishes_drops_the_frame_and_breaks_the_ring) {
  {
    Fixture f;
    f.guest_sends({}, make_frame(1514, 1));
    ASSERT_EQ(::ftruncate(f.ram.fd(), kData), 0);
    EXPECT_EQ(f.receive(), 0u);
    EXPECT_EQ(f.drops(Drop::memory_fault), 1u);
    EXPECT_TRUE(f.port->is_broken());
  }
  {
    Fixture f;
    f.post(4, 2048);
    ASSERT_EQ(::ftruncate(f.ram.fd(), kData), 0);
    EXPECT_EQ(f.send(f.make_packet(1514, 1)), 1u);
    EXPECT_EQ(f.drops(Drop::memory_fault), 1u);
    EXPECT_FALSE(f.rx().has_used());
  }
}

TEST(GuestPort, C061_frames_go_to_the_pair_the_flow_uses_and_to_active_ones_only) {
  Fixture f({.pairs = 2});
  // Two flows of IPv4/UDP by hand: guest port 1000 + n, ours 7.
  const auto flow = [](uint16_t port, bool from_guest) {
    ByteVector frame(60);
    store_be<uint16_t>(frame, 12, 0x0800);
    frame[14] = std::byte{0x45};
    frame[23] = std::byte{17};
    store_be<uint32_t>(frame, from_guest ? 26 : 30, 0x0a4d0002);
    store_be<uint32_t>(frame, from_guest ? 30 : 26, 0x0a4d0001);
    store_be<uint16_t>(frame, from_guest ? 34 : 36, port);
    store_be<uint16_t>(frame, from_guest ? 36 : 34, 7);
    return frame;
  };
  const auto reply = [&](uint16_t port) {
    PacketPtr packet = f.end.packets.make(64);
    const ByteVector frame = flow(port, false);
    std::ranges::copy(frame, packet->append(frame.size()).begin());
    return packet;
  };
  f.guest_sends({}, flow(1000, true), {UINT32_MAX}, 0);
  ASSERT_EQ(f.receive(), 1u);
  f.guest_sends({}, flow(1001, true), {UINT32_MAX}, 1);
  ASSERT_EQ(f.receive(), 1u);
  f.post(2, 2048, 0);
  f.post(2, 2048, 1);
  ASSERT_EQ(f.send(reply(1001)), 1u);
  EXPECT_TRUE(f.rx(1).has_used());
  EXPECT_FALSE(f.rx(0).has_used());
  ASSERT_EQ(f.send(reply(1000)), 1u);
  EXPECT_TRUE(f.rx(0).has_used());
  // The second pair is switched off: its flows come on the first.
  static_cast<void>(f.guest_takes(0));
  f.driver.expect_accepted(
      f.driver.send(Request::set_vring_enable, encode(wire::VringState{2, 0})));
  ASSERT_EQ(f.send(reply(1001)), 1u);
  EXPECT_TRUE(f.rx(0).has_used());
}

}  // namespace
}  // namespace nobounce::backend::test
