// What a device must not do, one thing at a time, through the whole driver: broken or dropped,
// counted by kind, nothing lost, nothing delivered that was not posted.
#include <gtest/gtest.h>
#include <poll.h>

#include "base/log.hpp"
#include "support/virtio_rig.hpp"

namespace nobounce::test {
namespace {

bool is_readable(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

class VirtioBreach : public testing::Test {
 protected:
  VirtioBreach() { set_log_level(LogLevel::quiet); }
  ~VirtioBreach() override { set_log_level(LogLevel::warning); }
};

// Something in flight on both queues, so that there is something to bring home.
void fill(VirtioRig& rig) {
  ASSERT_EQ(rig.send(rig.make_packet(54, 3000 - 54 - 1500)), 1U);
  ASSERT_EQ(rig.send(rig.make_packet(54, 1000, VirtioRig::Memory::private_pages)), 1U);
  ASSERT_EQ(rig.packets->in_use(), 2U);
}

// Broken for this reason; everything home at once; every later call does nothing.
void expect_broken(VirtioRig& rig, const std::string& reason) {
  EXPECT_TRUE(rig.net->is_broken());
  EXPECT_FALSE(rig.net->link_up());
  EXPECT_NE(rig.net->broken_reason(), nullptr);
  EXPECT_EQ(rig.counter("broken." + reason), 1U) << reason;
  EXPECT_EQ(rig.device.stops, 1U);
  EXPECT_EQ(rig.packets->in_use(), 0U) << "in flight packets did not come home";
  EXPECT_TRUE(rig.receive().empty());
  PacketBurst burst;
  burst.push(rig.make_packet(54, 0));
  EXPECT_EQ(rig.net->transmit(0, burst), 0U);
  EXPECT_EQ(burst.size(), 1U);
  burst.clear();
  rig.net->reclaim(0);
  rig.net->disarm(0);
  EXPECT_EQ(rig.net->transmit_room(0), 0U);
  // C136: it is news once; then a broken device lets its thread sleep, whatever it signals.
  (void)rig.net->arm(0);
  EXPECT_TRUE(rig.net->arm(0));
  rig.device.signal(0);
  EXPECT_FALSE(is_readable(rig.net->wait_handle(0).fd));
  rig.net->acknowledge(0);
  EXPECT_EQ(rig.device.stops, 1U);
}

TEST_F(VirtioBreach, C016_receive_ids_and_lengths) {
  struct Lie {
    uint32_t id;
    uint32_t length;
    const char* reason;
  };
  const uint32_t size = 64;
  for (const Lie& lie : {Lie{size, 60, "id_range"}, Lie{65535, 60, "id_range"},
                         Lie{0x10000, 60, "id_range"}, Lie{0, kPageSize + 1, "length"},
                         Lie{0, 0xffffffff, "length"}, Lie{0, 0x80000000, "length"}}) {
    SCOPED_TRACE(lie.reason);
    VirtioRig rig;
    rig.open();
    fill(rig);
    rig.device.complete(0, lie.id, lie.length);
    EXPECT_TRUE(rig.receive().empty());
    expect_broken(rig, lie.reason);
  }
}

TEST_F(VirtioBreach, C016_the_same_buffer_twice) {
  VirtioRig rig;
  rig.open();
  fill(rig);
  const auto chain = rig.device.pop(0);
  ASSERT_TRUE(chain);
  std::vector<std::byte> bytes(100);
  wire::VirtioNetHeader{.num_buffers = 1}.emit(bytes);
  rig.device.write(chain->parts[0].address, bytes);
  rig.device.write_used(0, 0, chain->head, 100);
  rig.device.write_used(0, 1, chain->head, 100);
  rig.device.publish_used(0, 2);
  EXPECT_EQ(rig.receive().size(), 1U);  // the first was honest
  expect_broken(rig, "id_not_posted");
}

TEST_F(VirtioBreach, C016_transmit_ids) {
  struct Lie {
    uint32_t id;
    const char* reason;
  };
  for (const Lie& lie : {Lie{64, "id_range"}, Lie{0xffffffff, "id_range"}, Lie{1, "id_not_head"},
                         Lie{63, "id_not_posted"}}) {
    SCOPED_TRACE(lie.reason);
    VirtioRig rig;
    rig.open();
    fill(rig);  // chains 0-1 and 2-3
    rig.device.complete(1, lie.id, 0);
    rig.net->reclaim(0);
    expect_broken(rig, lie.reason);
  }
}

TEST_F(VirtioBreach, TM7_an_id_of_the_other_queue_is_nothing_here) {
  VirtioRig rig;
  rig.open();
  fill(rig);
  // 40 is posted on the receive queue and free on the transmit queue.
  rig.device.complete(1, 40, 0);
  rig.net->reclaim(0);
  expect_broken(rig, "id_not_posted");
}

TEST_F(VirtioBreach, TM6_index_jumps) {
  for (const uint16_t queue : {uint16_t{0}, uint16_t{1}}) {
    for (const uint16_t jump : {uint16_t{65}, uint16_t{32768}, uint16_t{65535}}) {
      VirtioRig rig;
      rig.open();
      fill(rig);
      rig.device.write_used_index(queue, jump);
      (void)rig.receive();
      rig.net->reclaim(0);
      expect_broken(rig, "used_index");
    }
  }
}

TEST_F(VirtioBreach, arm_tells_once_of_a_breach_whoever_found_it) {
  for (const bool found_by_receive : {false, true}) {
    VirtioRig rig;
    rig.open();
    rig.device.write_used_index(0, 1000);
    if (found_by_receive) {
      EXPECT_TRUE(rig.receive().empty());
    }
    EXPECT_FALSE(rig.net->arm(0)) << "the caller must look again";
    EXPECT_TRUE(rig.net->arm(0));
    expect_broken(rig, "used_index");
  }
}

TEST_F(VirtioBreach, C016_TM10_short_receive_lengths_drop_and_go_on) {
  VirtioRig rig;
  rig.open();
  const auto good = VirtioRig::pattern(100, 4);
  uint64_t dropped = 0;
  for (const uint32_t length : {0U, 1U, 11U, 12U, 13U, 25U}) {
    const auto chain = rig.device.pop(0);
    ASSERT_TRUE(chain);
    rig.device.write(chain->parts[0].address, std::vector<std::byte>(12));
    rig.device.write(chain->parts[0].address + 10, std::vector<std::byte>(1, std::byte{1}));
    rig.device.complete(0, chain->head, length);
    EXPECT_TRUE(rig.receive().empty()) << length;
    EXPECT_EQ(rig.counter("q0.rx_drop.runt"), ++dropped);
    ASSERT_TRUE(rig.device.deliver(good));
    const auto received = rig.receive();
    ASSERT_EQ(received.size(), 1U);
    EXPECT_EQ(VirtioRig::bytes_of(*received[0]), good);
  }
  EXPECT_FALSE(rig.net->is_broken());
}

TEST_F(VirtioBreach, C020_TM38_bad_buffer_counts_do_not_desynchronise_the_ring) {
  struct Lie {
    uint16_t count;
    const char* reason;
  };
  for (const Lie& lie :
       {Lie{0, "buffer_count"}, Lie{2, "incomplete"}, Lie{17, "incomplete"}, Lie{18, "incomplete"},
        Lie{19, "buffer_count"}, Lie{65535, "buffer_count"}}) {
    SCOPED_TRACE(lie.count);
    VirtioRig rig;
    rig.open();
    for (uint64_t round = 1; round <= 100; ++round) {
      ASSERT_TRUE(rig.device.deliver_raw(VirtioRig::pattern(100, 1), {.num_buffers = lie.count}));
      EXPECT_TRUE(rig.receive().empty());
      EXPECT_EQ(rig.counter(std::string("q0.rx_drop.") + lie.reason), round);
      const auto good = VirtioRig::pattern(9000, static_cast<uint8_t>(round));
      ASSERT_TRUE(rig.device.deliver(good));
      const auto received = rig.receive();
      ASSERT_EQ(received.size(), 1U);
      EXPECT_EQ(VirtioRig::bytes_of(*received[0]), good);
    }
    EXPECT_FALSE(rig.net->is_broken());
  }
}

TEST_F(VirtioBreach, TM38_partially_visible_frames_are_dropped_at_once) {
  VirtioRig rig;
  rig.open();
  // Five buffers claimed, two shown; the other three later: they are frames of their own, bad ones.
  for (int i = 0; i < 2; ++i) {
    const auto chain = rig.device.pop(0);
    std::vector<std::byte> bytes(1000);
    wire::VirtioNetHeader{.num_buffers = 5}.emit(bytes);
    rig.device.write(chain->parts[0].address, bytes);
    rig.device.write_used(0, static_cast<uint16_t>(i), chain->head, 1000);
  }
  rig.device.publish_used(0, 2);
  EXPECT_TRUE(rig.receive().empty());
  EXPECT_EQ(rig.counter("q0.rx_drop.incomplete"), 1U);
  EXPECT_EQ(rig.packets->in_use(), 0U);
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 1)));
  EXPECT_EQ(rig.receive().size(), 1U);
}

TEST_F(VirtioBreach, TM39_frames_beyond_the_largest_and_empty_buffers) {
  VirtioRig rig;
  rig.open();
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(65554, 0)));
  EXPECT_TRUE(rig.receive().empty());
  EXPECT_EQ(rig.counter("q0.rx_drop.too_long"), 1U);
  for (uint16_t i = 0; i < 2; ++i) {  // a second buffer with nothing in it
    const auto chain = rig.device.pop(0);
    std::vector<std::byte> bytes(100);
    wire::VirtioNetHeader{.num_buffers = 2}.emit(bytes);
    rig.device.write(chain->parts[0].address, bytes);
    rig.device.write_used(0, static_cast<uint16_t>(rig.device.queue(0).used + i), chain->head,
                          i == 0 ? 100 : 0);
  }
  rig.device.publish_used(0, 2);
  EXPECT_TRUE(rig.receive().empty());
  EXPECT_EQ(rig.counter("q0.rx_drop.empty_buffer"), 1U);
  EXPECT_FALSE(rig.net->is_broken());
}

TEST_F(VirtioBreach, TM39_many_tiny_buffers) {
  VirtioRig rig;
  rig.open();
  // One byte of the frame a buffer: what fits in the count arrives whole, more is dropped.
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(17, 3), {}, 0, 1));
  const auto received = rig.receive();
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(VirtioRig::bytes_of(*received[0]), VirtioRig::pattern(17, 3));
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(40, 3), {}, 0, 1));
  EXPECT_TRUE(rig.receive().empty());
  EXPECT_EQ(rig.counter("q0.rx_drop.buffer_count"), 1U);
}

TEST_F(VirtioBreach, C115_num_buffers_is_ignored_without_mergeable_buffers) {
  for (const uint16_t count : {uint16_t{0}, uint16_t{1}, uint16_t{0xa5a5}}) {
    VirtioRig rig;
    rig.device.offer &= ~wire::kNetMrgRxbuf;
    rig.open();
    ASSERT_TRUE(rig.device.deliver_raw(VirtioRig::pattern(60, 0), {.num_buffers = count}));
    EXPECT_EQ(rig.receive().size(), 1U);
  }
}

TEST_F(VirtioBreach, TM40_TM41_bad_offloads_drop_and_are_counted_by_kind) {
  VirtioRig rig;
  rig.open();
  const auto frame = VirtioRig::pattern(3000, 0);
  const auto dropped = [&](const wire::VirtioNetHeader& header, const char* reason) {
    const std::string counter = std::string("q0.rx_drop.") + reason;
    const uint64_t before = rig.counter(counter);
    EXPECT_TRUE(rig.device.deliver(frame, header));
    EXPECT_TRUE(rig.receive().empty());
    EXPECT_EQ(rig.counter(counter), before + 1) << reason;
  };
  dropped({.flags = 1, .csum_start = 65535, .csum_offset = 65535}, "checksum");
  dropped({.flags = 1, .csum_start = 2990, .csum_offset = 16}, "checksum");
  dropped({.flags = 1, .gso_type = 3, .gso_size = 1, .csum_start = 34, .csum_offset = 6},
          "gso_type");
  dropped({.flags = 1, .gso_type = 0x81, .gso_size = 1, .csum_start = 34, .csum_offset = 16},
          "gso_type");
  dropped({.flags = 1, .gso_type = 1, .gso_size = 0, .csum_start = 34, .csum_offset = 16},
          "gso_size");
  dropped({.flags = 0, .gso_type = 1, .gso_size = 1448}, "gso_checksum");
  EXPECT_FALSE(rig.net->is_broken());
}

TEST_F(VirtioBreach, TM26_the_offer_is_read_once) {
  VirtioRig rig;
  rig.open();
  EXPECT_EQ(rig.device.feature_reads, 1U);
  rig.device.offer = 0;
  EXPECT_TRUE(rig.net->features().tso4);
  ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(9000, 0)));
  EXPECT_EQ(rig.receive().size(), 1U);
}

// ---- the end ----------------------------------------------------------------------------------

TEST_F(VirtioBreach, TM33_pages_come_home_only_after_the_device_was_stopped) {
  VirtioRig rig;
  rig.open();
  fill(rig);
  const uint64_t posted = rig.pool->slots_used();
  bool checked = false;
  rig.device.on_stop = [&] {
    checked = true;
    EXPECT_EQ(rig.packets->in_use(), 2U);
    EXPECT_EQ(rig.pool->slots_used(), posted);
  };
  rig.device.gone = "the peer was killed";
  EXPECT_FALSE(rig.net->arm(0));
  EXPECT_TRUE(checked);
  EXPECT_STREQ(rig.net->broken_reason(), "the peer was killed");
  expect_broken(rig, "device_gone");
}

TEST_F(VirtioBreach, a_dead_device_is_noticed_by_every_way_in) {
  const auto noticed = [](auto&& call) {
    VirtioRig rig;
    rig.open();
    fill(rig);
    rig.device.gone = "gone";
    call(rig);
    expect_broken(rig, "device_gone");
  };
  noticed([](VirtioRig& rig) { EXPECT_FALSE(rig.net->arm(0)); });
  noticed([](VirtioRig& rig) {
    for (int i = 0; i < 16; ++i) (void)rig.receive();
  });
  noticed([](VirtioRig& rig) { rig.net->acknowledge(0); });
  // Under load too: never an idle call, still noticed soon.
  noticed([](VirtioRig& rig) {
    for (int i = 0; i < 200 && !rig.net->is_broken(); ++i) {
      ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
      ASSERT_EQ(rig.receive().size(), 1U);
    }
  });
}

TEST_F(VirtioBreach, closing_in_mid_traffic_brings_everything_home) {
  for (int in_flight = 0; in_flight < 20; ++in_flight) {
    VirtioRig rig;
    rig.open();
    for (int i = 0; i < in_flight; ++i) {
      ASSERT_EQ(
          rig.send(rig.make_packet(
              54, 1400, i % 2 == 0 ? VirtioRig::Memory::nocopy : VirtioRig::Memory::private_pages)),
          1U);
    }
    for (int i = 0; i < in_flight; ++i) ASSERT_TRUE(rig.device.deliver(VirtioRig::pattern(60, 0)));
    rig.close();
    EXPECT_EQ(rig.device.stops, 1U);
  }
}

}  // namespace
}  // namespace nobounce::test
