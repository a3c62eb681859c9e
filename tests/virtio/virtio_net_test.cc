// The driver with an honest device: what leaves, what arrives, notifications, set-up and end.
#include "virtio/virtio_net.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include "support/virtio_rig.hpp"
#include "virtio/features.hpp"

namespace nobounce::test {
namespace {

using Memory = VirtioRig::Memory;

bool is_readable(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

// ---- transmit ---------------------------------------------------------------------------------

TEST(VirtioNetTransmit, bytes_arrive_as_they_were_sent) {
  VirtioRig rig;
  rig.open();
  for (const Memory memory : {Memory::nocopy, Memory::private_pages}) {
    for (const size_t payload : {0U, 1U, 100U, 1400U}) {
      SCOPED_TRACE(payload);
      PacketPtr packet = rig.make_packet(54, payload, memory, 3);
      ASSERT_EQ(rig.send(std::move(packet)), 1U);
      const auto sent = rig.device.take_sent();
      ASSERT_TRUE(sent);
      EXPECT_EQ(sent->bytes, VirtioRig::pattern(54 + payload, 3));
      EXPECT_EQ(sent->header, wire::VirtioNetHeader{});
      EXPECT_EQ(sent->descriptors, payload == 0 ? 1U : 2U);
      rig.net->reclaim(0);
      EXPECT_EQ(rig.packets->in_use(), 0U);
    }
  }
  EXPECT_EQ(rig.counter("q0.tx_packets"), 8U);
  EXPECT_EQ(rig.counter("q0.tx_completed"), 8U);
}

TEST(VirtioNetTransmit, nocopy_payload_is_not_copied_and_private_payload_once) {
  VirtioRig rig;
  rig.open();
  const auto copied = [&](CopyKind kind) {
    return rig.copies.bytes(ThreadKind::application, kind);
  };
  ASSERT_EQ(rig.send(rig.make_packet(54, 1400, Memory::nocopy)), 1U);
  EXPECT_EQ(copied(CopyKind::bounce), 0U);
  EXPECT_EQ(copied(CopyKind::header), 54U + wire::kNetHeaderBytes);
  (void)rig.device.take_sent();
  ASSERT_EQ(rig.send(rig.make_packet(54, 1400, Memory::private_pages)), 1U);
  EXPECT_EQ(copied(CopyKind::bounce), 1400U);
  (void)rig.device.take_sent();
  rig.net->reclaim(0);
}

TEST(VirtioNetTransmit, TM43_TM60_nothing_but_the_packet_is_posted) {
  VirtioRig rig;
  rig.open();
  // A long head leaves its marks in the slot; a short one follows in the same slot.
  ASSERT_EQ(rig.send(rig.make_packet(kHeadBytes, 0, Memory::nocopy, 0xa5)), 1U);
  (void)rig.device.take_sent();
  rig.net->reclaim(0);
  ASSERT_EQ(rig.send(rig.make_packet(14, 0, Memory::nocopy, 1)), 1U);
  const auto chain = rig.device.pop(1);
  ASSERT_TRUE(chain);
  ASSERT_EQ(chain->parts.size(), 1U);
  EXPECT_EQ(chain->parts[0].length, wire::kNetHeaderBytes + 14);
  const SentFrame frame = rig.device.read_chain(*chain);
  EXPECT_EQ(frame.header, wire::VirtioNetHeader{});
  rig.device.complete(1, chain->head, 0);
  rig.net->reclaim(0);
}

TEST(VirtioNetTransmit, partial_checksum_and_segmentation_reach_the_header) {
  VirtioRig rig;
  rig.open();
  PacketPtr packet = rig.make_packet(66, 20000);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp4;
  packet->gso_size = 1448;
  ASSERT_EQ(rig.send(std::move(packet)), 1U);
  const auto sent = rig.device.take_sent();
  ASSERT_TRUE(sent);
  const wire::VirtioNetHeader expected{.flags = wire::kNetNeedsCsum,
                                       .gso_type = wire::kNetGsoTcp4,
                                       .hdr_len = 66,
                                       .gso_size = 1448,
                                       .csum_start = 34,
                                       .csum_offset = 16,
                                       .num_buffers = 0};
  EXPECT_EQ(sent->header, expected);
  EXPECT_EQ(sent->bytes.size(), 20066U);
  rig.net->reclaim(0);
}

TEST(VirtioNetTransmit, the_largest_super_frame_fits) {
  RigOptions options;
  options.arena_bytes = 8 << 20;
  VirtioRig rig(options);
  rig.open();
  PacketPtr packet = rig.make_packet(54, 65535 - 40);
  packet->checksum = Checksum::partial;
  packet->csum_start = 34;
  packet->csum_offset = 16;
  packet->gso = Gso::tcp4;
  packet->gso_size = 1460;
  ASSERT_EQ(rig.send(std::move(packet)), 1U);
  const auto sent = rig.device.take_sent();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->bytes, VirtioRig::pattern(65535 + 14, 0));
  rig.net->reclaim(0);
}

TEST(VirtioNetTransmit, what_can_never_be_sent_is_dropped_and_counted) {
  VirtioRig rig;
  rig.options.net.features_wanted = wire::kVersion1 | wire::kRingEventIdx;
  rig.open();
  EXPECT_EQ(rig.send(rig.make_packet(13, 0)), 1U);
  EXPECT_EQ(rig.counter("q0.tx_drop.too_small"), 1U);
  EXPECT_EQ(rig.send(rig.make_packet(54, 1500 + 18 - 54 + 1)), 1U);
  EXPECT_EQ(rig.counter("q0.tx_drop.too_large"), 1U);
  PacketPtr partial = rig.make_packet(54, 100);
  partial->checksum = Checksum::partial;
  EXPECT_EQ(rig.send(std::move(partial)), 1U);
  PacketPtr gso = rig.make_packet(54, 3000);
  gso->gso = Gso::tcp6;
  EXPECT_EQ(rig.send(std::move(gso)), 1U);
  EXPECT_EQ(rig.counter("q0.tx_drop.unsupported"), 2U);
  EXPECT_FALSE(rig.device.take_sent());
  EXPECT_EQ(rig.packets->in_use(), 0U);
  // The largest plain frame passes.
  EXPECT_EQ(rig.send(rig.make_packet(54, 1500 + 18 - 54)), 1U);
  EXPECT_TRUE(rig.device.take_sent());
}

TEST(VirtioNetTransmit, a_full_ring_leaves_packets_with_the_caller_in_order) {
  VirtioRig rig;
  rig.open();
  PacketBurst burst;
  for (uint8_t i = 0; i < 40; ++i) burst.push(rig.make_packet(54, 100, Memory::nocopy, i));
  // 64 descriptors, two a packet.
  EXPECT_EQ(rig.net->transmit(0, burst), 32U);
  ASSERT_EQ(burst.size(), 8U);
  EXPECT_EQ(VirtioRig::bytes_of(*burst[0]), VirtioRig::pattern(154, 32));
  EXPECT_EQ(rig.net->transmit_room(0), 0U);
  EXPECT_GT(rig.counter("q0.tx_ring_full"), 0U);
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(rig.device.take_sent());
  EXPECT_EQ(rig.net->transmit(0, burst), 8U);
  EXPECT_TRUE(burst.empty());
  for (uint8_t i = 32; i < 40; ++i) {
    const auto sent = rig.device.take_sent();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->bytes, VirtioRig::pattern(154, i));
  }
  rig.net->reclaim(0);
  EXPECT_EQ(rig.net->transmit_room(0), 64U / (1 + kFragsMax));
}

TEST(VirtioNetTransmit, exhausted_bounce_slots_keep_the_packet_and_unmap_its_frags) {
  RigOptions options;
  options.region_bytes = 4 << 20;
  options.quotas = {.tx_percent = 45, .rx_percent = 0};
  VirtioRig rig(options);
  rig.open();
  std::vector<Page*> taken;  // all nocopy slots, then bounces fill the rest
  while (Page* page = rig.pool->alloc_block(0, BlockUse::transmit)) taken.push_back(page);
  std::vector<DmaAddr> bounced;
  Page* original = rig.arena->alloc(0);
  for (;;) {
    const auto address = rig.dma->map({.address = page_address(*original),
                                       .size = kPageSize,
                                       .direction = DmaDirection::to_device,
                                       .attrs = {}});
    if (!address) break;
    bounced.push_back(*address);
  }
  ASSERT_FALSE(bounced.empty());
  const uint64_t used = rig.pool->slots_used();
  PacketBurst burst;
  burst.push(rig.make_packet(54, 1000, Memory::private_pages));
  EXPECT_EQ(rig.net->transmit(0, burst), 0U);
  EXPECT_EQ(burst.size(), 1U);
  EXPECT_EQ(rig.counter("q0.tx_map_exhausted"), 1U);
  EXPECT_EQ(rig.pool->slots_used(), used);
  for (const DmaAddr address : bounced) {
    rig.dma->unmap(address, kPageSize, DmaDirection::to_device);
  }
  EXPECT_EQ(rig.net->transmit(0, burst), 1U);
  EXPECT_TRUE(rig.device.take_sent());
  rig.net->reclaim(0);
  for (Page* page : taken) page_put(*page);
  page_put(*original);
}

TEST(VirtioNetTransmit, a_clone_and_its_original_may_both_be_in_flight) {
  VirtioRig rig;
  rig.open();
  PacketPtr original = rig.make_packet(0, 1000, Memory::nocopy, 5);
  for (int i = 0; i < 3; ++i) {
    PacketPtr clone = rig.packets->clone(*original, 128);
    std::ranges::copy(VirtioRig::pattern(54, 1), clone->push(54).begin());
    ASSERT_EQ(rig.send(std::move(clone)), 1U);
  }
  original.reset();  // acknowledged while the device still has it
  for (int i = 0; i < 3; ++i) {
    const auto sent = rig.device.take_sent();
    ASSERT_TRUE(sent);
    EXPECT_EQ(std::vector(sent->bytes.begin() + 54, sent->bytes.end()),
              VirtioRig::pattern(1000, 5));
  }
  rig.net->reclaim(0);
  EXPECT_EQ(rig.packets->in_use(), 0U);
}

TEST(VirtioNetTransmit, one_publish_and_at_most_one_kick_a_burst) {
  VirtioRig rig;
  rig.open();
  const uint64_t before = rig.device.queue(1).kicks;
  PacketBurst burst;
  for (int i = 0; i < 20; ++i) burst.push(rig.make_packet(54, 0));
  EXPECT_EQ(rig.net->transmit(0, burst), 20U);
  EXPECT_EQ(rig.device.queue(1).kicks, before + 1);
  EXPECT_EQ(rig.device.available(1), 20U);
  // The device has not asked again: no kick (EVENT_IDX).
  EXPECT_EQ(rig.send(rig.make_packet(54, 0)), 1U);
  EXPECT_EQ(rig.device.queue(1).kicks, before + 1);
  while (rig.device.take_sent()) {
  }
  EXPECT_EQ(rig.send(rig.make_packet(54, 0)), 1U);
  EXPECT_EQ(rig.device.queue(1).kicks, before + 2);
  EXPECT_TRUE(rig.device.take_sent());
}

TEST(VirtioNetTransmit, without_event_idx_the_used_flag_suppresses_kicks) {
  VirtioRig rig;
  rig.device.offer &= ~wire::kRingEventIdx;
  rig.open();
  const uint64_t before = rig.device.queue(1).kicks;
  EXPECT_EQ(rig.send(rig.make_packet(54, 0)), 1U);
  EXPECT_EQ(rig.device.queue(1).kicks, before + 1);
  rig.device.queue(1).layout.device_area.store_le<uint16_t>(wire::kUsedFlags, wire::kUsedNoNotify);
  EXPECT_EQ(rig.send(rig.make_packet(54, 0)), 1U);
  EXPECT_EQ(rig.device.queue(1).kicks, before + 1);
}

TEST(VirtioNetTransmit, C134_a_used_length_of_transmit_means_nothing) {
  VirtioRig rig;
  rig.open();
  for (const uint32_t length : {0U, 66U, 12U, 4096U, 0xffffffffU}) {
    ASSERT_EQ(rig.send(rig.make_packet(54, 500)), 1U);
    ASSERT_TRUE(rig.device.take_sent(1, length));
    rig.net->reclaim(0);
    EXPECT_FALSE(rig.net->is_broken());
    EXPECT_EQ(rig.packets->in_use(), 0U);
  }
}

TEST(VirtioNetTransmit, TM24_a_device_that_finishes_nothing_is_reported_once) {
  VirtioRig rig;
  rig.open();
  ASSERT_EQ(rig.send(rig.make_packet(54, 0)), 1U);
  rig.net->reclaim(0);
  EXPECT_EQ(rig.counter("q0.tx_stalled"), 0U);
  for (int i = 0; i < 3; ++i) {
    rig.clock.advance(6 * kNsPerSecond);
    rig.context->now_ns = rig.clock.now_ns();
    rig.net->reclaim(0);
    EXPECT_EQ(rig.counter("q0.tx_stalled"), 1U);
  }
  EXPECT_FALSE(rig.net->is_broken());
  EXPECT_TRUE(rig.device.take_sent());
  rig.net->reclaim(0);
  EXPECT_EQ(rig.packets->in_use(), 0U);
}

// ---- receive ----------------------------------------------------------------------------------

TEST(VirtioNetReceive, frames_of_every_size_arrive_whole) {
  for (const bool mergeable : {true, false}) {
    for (const unsigned rx_percent : {45U, 0U}) {  // 0: private pages, bounced
      RigOptions options;
      options.quotas.rx_percent = rx_percent;
      VirtioRig rig(options);
      if (!mergeable) rig.device.offer &= ~wire::kNetMrgRxbuf;
      rig.open();
      for (const size_t size : {14U, 15U, 60U, 191U, 192U, 193U, 204U, 1514U, 4084U}) {
        SCOPED_TRACE(size);
        const auto frame = VirtioRig::pattern(size, 9);
        ASSERT_TRUE(rig.device.deliver(frame));
        auto received = rig.receive();
        ASSERT_EQ(received.size(), 1U);
        EXPECT_EQ(received[0]->head().size(), std::min<size_t>(size, kHeaderWindow));
        EXPECT_EQ(VirtioRig::bytes_of(*received[0]), frame);
        EXPECT_EQ(received[0]->checksum, Checksum::none);
        // Whatever the window took too much can be given back.
        received[0]->give_back_head(14);
        EXPECT_EQ(VirtioRig::bytes_of(*received[0]), frame);
        EXPECT_EQ(received[0]->time_ns, rig.context->now_ns);
      }
      EXPECT_FALSE(rig.net->is_broken());
    }
  }
}

TEST(VirtioNetReceive, merged_buffers_arrive_whole) {
  VirtioRig rig;
  rig.open();
  for (const size_t size : {4085U, 9000U, 8180U, 8181U, 65535U, 65553U}) {
    SCOPED_TRACE(size);
    const auto frame = VirtioRig::pattern(size, 1);
    ASSERT_TRUE(rig.device.deliver(frame));
    auto received = rig.receive();
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(VirtioRig::bytes_of(*received[0]), frame);
  }
}

TEST(VirtioNetReceive, C020_bursts_of_merged_frames_keep_their_contexts_apart) {
  RigOptions options;
  options.net.queue_size = 256;
  VirtioRig rig(options);
  rig.open();
  for (uint8_t round = 0; round < 4; ++round) {
    size_t sent = 0;
    for (uint8_t i = 0; i < 64; ++i) {
      const size_t piece = 1800 + 100 * (i % 24u);  // 3 to 5 buffers a frame
      if (!rig.device.deliver(VirtioRig::pattern(8000 + i, i), {}, 0, piece)) break;
      ++sent;
    }
    ASSERT_GT(sent, 40U);
    const auto received = rig.receive();
    ASSERT_EQ(received.size(), sent);
    for (size_t i = 0; i < sent; ++i) {
      EXPECT_EQ(VirtioRig::bytes_of(*received[i]),
                VirtioRig::pattern(8000 + i, static_cast<uint8_t>(i)));
    }
  }
}

TEST(VirtioNetReceive, only_the_header_window_is_copied) {
  VirtioRig rig;
  rig.open();
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(1514, 0)));
  const auto received = rig.receive();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(rig.copies.bytes(ThreadKind::application, CopyKind::header),
            wire::kNetHeaderBytes + kHeaderWindow);
  EXPECT_EQ(rig.copies.bytes(ThreadKind::application, CopyKind::bounce), 0U);
}

TEST(VirtioNetReceive, bounced_pages_are_synced_for_exactly_the_reported_length) {
  RigOptions options;
  options.quotas.rx_percent = 0;
  VirtioRig rig(options);
  rig.open();
  const uint64_t before = rig.copies.bytes(ThreadKind::application, CopyKind::bounce);
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(1000, 0)));
  const auto received = rig.receive();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(rig.copies.bytes(ThreadKind::application, CopyKind::bounce) - before,
            1000 + wire::kNetHeaderBytes);
}

TEST(VirtioNetReceive, offloads_are_carried_in_the_packet) {
  VirtioRig rig;
  rig.open();
  const auto frame = VirtioRig::pattern(54 + 14480, 0);
  ASSERT_TRUE(rig.device.deliver(frame, {.flags = wire::kNetNeedsCsum,
                                         .gso_type = wire::kNetGsoTcp4,
                                         .hdr_len = 54,
                                         .gso_size = 1448,
                                         .csum_start = 34,
                                         .csum_offset = 16}));
  ASSERT_TRUE(rig.device.deliver(frame, {.flags = wire::kNetDataValid}));
  const auto received = rig.receive();
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0]->checksum, Checksum::partial);
  EXPECT_EQ(received[0]->csum_start, 34U);
  EXPECT_EQ(received[0]->csum_offset, 16U);
  EXPECT_EQ(received[0]->gso, Gso::tcp4);
  EXPECT_EQ(received[0]->gso_size, 1448U);
  EXPECT_EQ(received[0]->gso_segments, 10U);
  EXPECT_EQ(received[1]->checksum, Checksum::verified);
  EXPECT_EQ(received[1]->gso, Gso::none);
}

TEST(VirtioNetReceive, at_most_the_bursts_room_and_the_rest_later) {
  VirtioRig rig;
  rig.options.net.queue_size = 128;
  rig.open();
  for (uint8_t i = 0; i < 100; ++i) ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, i)));
  PacketBurst burst;
  EXPECT_EQ(rig.net->receive(0, burst), kBurstMax);
  EXPECT_EQ(rig.net->receive(0, burst), 0U);
  burst.clear();
  EXPECT_EQ(rig.net->receive(0, burst), 100 - kBurstMax);
  EXPECT_EQ(VirtioRig::bytes_of(*burst[0]), VirtioRig::pattern(60, kBurstMax));
}

TEST(VirtioNetReceive, TM69_the_ring_never_runs_dry_while_others_hold_the_pages) {
  RigOptions options;
  options.arena_bytes = 2 << 20;
  options.region_bytes = 4 << 20;
  options.quotas = {.tx_percent = 45, .rx_percent = 0};
  options.packets = 4096;
  VirtioRig rig(options);
  rig.open();
  std::vector<PacketPtr> held;  // a reader that never reads
  uint64_t delivered = 0;
  for (int i = 0; i < 3000; ++i) {
    if (!rig.device.deliver(VirtioRig::pattern(1000, 7))) {
      ADD_FAILURE() << "the ring is empty after " << i;
      break;
    }
    ++delivered;
    for (PacketPtr& packet : rig.receive()) held.push_back(std::move(packet));
  }
  EXPECT_GT(rig.counter("q0.rx_drop.low_buffers"), 0U);
  EXPECT_GT(rig.counter("q0.rx_refill_short"), 0U);
  EXPECT_EQ(rig.counter("q0.rx_drop.low_buffers") + held.size(), delivered);
  // Pages come back: so does the traffic.
  held.clear();
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(1000, 7)));
  EXPECT_EQ(rig.receive().size(), 1U);
}

TEST(VirtioNetReceive, an_empty_packet_pool_drops_and_counts) {
  RigOptions options;
  options.packets = 4;
  VirtioRig rig(options);
  rig.open();
  for (uint8_t i = 0; i < 6; ++i) ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, i)));
  const auto received = rig.receive();
  EXPECT_EQ(received.size(), 4U);
  EXPECT_EQ(rig.counter("q0.rx_drop.no_packet"), 2U);
}

TEST(VirtioNetReceive, packets_outlive_the_device) {
  VirtioRig rig;
  rig.open();
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(1514, 2)));
  auto received = rig.receive();
  ASSERT_EQ(received.size(), 1U);
  rig.net.reset();
  EXPECT_EQ(VirtioRig::bytes_of(*received[0]), VirtioRig::pattern(1514, 2));
  received.clear();
}

// ---- notifications ----------------------------------------------------------------------------

TEST(VirtioNetWake, TM23_arm_sees_what_came_before_it) {
  for (const uint64_t without : {uint64_t{0}, wire::kRingEventIdx}) {
    VirtioRig rig;
    rig.device.offer &= ~without;
    rig.open();
    EXPECT_TRUE(rig.net->arm(0));
    ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
    EXPECT_FALSE(rig.net->arm(0));
    EXPECT_EQ(rig.receive().size(), 1U);
    rig.net->acknowledge(0);
    EXPECT_TRUE(rig.net->arm(0));
  }
}

TEST(VirtioNetWake, the_handle_signals_once_armed_and_not_while_polling) {
  for (const uint64_t without : {uint64_t{0}, wire::kRingEventIdx}) {
    VirtioRig rig;
    rig.device.offer &= ~without;
    rig.open();
    const int fd = rig.net->wait_handle(0).fd;
    ASSERT_GE(fd, 0);
    ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
    EXPECT_FALSE(is_readable(fd)) << "not armed";
    EXPECT_EQ(rig.receive().size(), 1U);
    ASSERT_TRUE(rig.net->arm(0));
    ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
    EXPECT_TRUE(is_readable(fd));
    rig.net->acknowledge(0);
    EXPECT_FALSE(is_readable(fd));
    EXPECT_EQ(rig.receive().size(), 1U);
    rig.net->disarm(0);
    ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
    EXPECT_FALSE(is_readable(fd)) << "disarmed";
  }
}

TEST(VirtioNetWake, C039_the_last_completed_packet_wakes_the_sleeper) {
  for (const int in_flight : {1, 2, 3, 7}) {
    VirtioRig rig;
    rig.open();
    const int fd = rig.net->wait_handle(0).fd;
    for (int i = 0; i < in_flight; ++i) ASSERT_EQ(rig.send(rig.make_packet(54, 100)), 1U);
    // As a shard does: reclaim, arm, sleep, acknowledge; until nothing is in flight.
    int wakes = 0;
    while (rig.packets->in_use() > 0) {
      ASSERT_TRUE(rig.net->arm(0));
      while (!is_readable(fd)) ASSERT_TRUE(rig.device.take_sent()) << "asleep for ever";
      rig.net->acknowledge(0);
      ++wakes;
      rig.net->reclaim(0);
    }
    EXPECT_LE(wakes, 3);
  }
}

TEST(VirtioNetWake, TM22_a_storm_of_calls_costs_one_read) {
  VirtioRig rig;
  rig.open();
  for (int i = 0; i < 1000; ++i) rig.device.signal(0);
  const int fd = rig.net->wait_handle(0).fd;
  EXPECT_TRUE(is_readable(fd));
  rig.net->acknowledge(0);
  EXPECT_FALSE(is_readable(fd));
  rig.net->acknowledge(0);  // spurious: does not wait
}

}  // namespace
}  // namespace nobounce::test
