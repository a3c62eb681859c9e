#include "skb/packet.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/wire_link.hpp"

namespace nobounce::test {
namespace {

struct PacketTest : testing::Test {
  // A frag of `size` bytes counting up from `first`, at `offset` of a page of its own.
  Frag frag(uint32_t offset, uint32_t size, uint8_t first) {
    std::vector<std::byte> bytes(size);
    for (uint32_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + i);
    return end.make_frag(bytes, offset);
  }
  void add(Packet& packet, const Frag& f) {
    ASSERT_TRUE(packet.add_frag(*f.page, f.offset, f.size));
  }
  std::vector<uint8_t> bytes(const Packet& packet) {
    std::vector<uint8_t> out(packet.size());
    packet.read(0, std::as_writable_bytes(std::span(out)));
    return out;
  }
  static std::vector<uint8_t> counting(uint8_t first, size_t count) {
    std::vector<uint8_t> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(first + i);
    return out;
  }

  ManualClock clock;
  StackEnd end{clock};  // asserts at the end that all pages and packets are back
};

TEST_F(PacketTest, head_grows_in_front_and_shrinks) {
  PacketPtr packet = end.packets.make(64);
  EXPECT_EQ(packet->headroom(), 64u);
  store_be<uint32_t>(packet->append(4), 0, 0x01020304);
  store_be<uint16_t>(packet->push(2), 0, 0xaabb);
  EXPECT_EQ(bytes(*packet), (std::vector<uint8_t>{0xaa, 0xbb, 1, 2, 3, 4}));
  packet->pull(3);
  EXPECT_EQ(bytes(*packet), (std::vector<uint8_t>{2, 3, 4}));
  EXPECT_EQ(packet->headroom(), 65u);
  EXPECT_EQ(packet->tailroom(), kHeadBytes - 65 - 3);
}

TEST_F(PacketTest, frag_that_continues_the_last_takes_no_slot) {  // ZN-74
  PacketPtr packet = end.packets.make();
  Frag f = frag(100, 10, 1);
  add(*packet, f);
  page_get(*f.page);
  ASSERT_TRUE(packet->add_frag(*f.page, 110, 5));
  EXPECT_EQ(packet->data().frag_count, 1);
  EXPECT_EQ(packet->payload_size(), 15u);
  EXPECT_EQ(f.page->refcount.load(), 1u);
}

TEST_F(PacketTest, full_packet_refuses_and_leaves_the_reference) {
  PacketPtr packet = end.packets.make();
  for (size_t i = 0; i < kFragsMax; ++i) add(*packet, frag(0, 1, 0));
  EXPECT_EQ(packet->frag_room(), 0u);
  const Frag extra = frag(0, 1, 0);
  EXPECT_FALSE(packet->add_frag(*extra.page, extra.offset, extra.size));
  page_put(*extra.page);
}

TEST_F(PacketTest, clone_shares_data_and_the_last_drop_returns_it) {  // ZN-5, PP-78
  PacketPtr packet = end.packets.make();
  const Frag f = frag(0, 100, 0);
  page_get(*f.page);
  add(*packet, f);
  PacketPtr copy = end.packets.clone(*packet);
  EXPECT_TRUE(packet->is_cloned());
  EXPECT_EQ(bytes(*copy), counting(0, 100));
  packet.reset();
  EXPECT_FALSE(copy->is_cloned());
  EXPECT_EQ(f.page->refcount.load(), 2u);
  copy.reset();
  EXPECT_EQ(f.page->refcount.load(), 1u);
  page_put(*f.page);
}

TEST_F(PacketTest, split_at_every_position) {
  for (size_t at = 1; at < 30; ++at) {
    PacketPtr packet = end.packets.make();
    add(*packet, frag(0, 10, 0));
    add(*packet, frag(50, 10, 10));
    add(*packet, frag(7, 10, 20));
    PacketPtr rest = end.packets.split(*packet, at);
    ASSERT_NE(rest, nullptr);
    EXPECT_EQ(bytes(*packet), counting(0, at)) << at;
    EXPECT_EQ(bytes(*rest), counting(static_cast<uint8_t>(at), 30 - at)) << at;
  }
}

TEST_F(PacketTest, split_of_a_cloned_packet_leaves_the_clone_whole) {
  PacketPtr packet = end.packets.make();
  add(*packet, frag(0, 10, 0));
  add(*packet, frag(0, 10, 10));
  PacketPtr in_flight = end.packets.clone(*packet);
  PacketPtr rest = end.packets.split(*packet, 13);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(bytes(*in_flight), counting(0, 20));
  EXPECT_EQ(bytes(*packet), counting(0, 13));
  EXPECT_EQ(bytes(*rest), counting(13, 7));
}

TEST_F(PacketTest, trim_and_pull_frags_at_every_size) {
  for (size_t size = 0; size <= 24; ++size) {
    PacketPtr packet = end.packets.make();
    packet->append(4);
    for (size_t i = 0; i < 4; ++i) packet->mutable_head()[i] = static_cast<std::byte>(i);
    add(*packet, frag(0, 10, 4));
    add(*packet, frag(0, 10, 14));
    packet->trim(size);
    EXPECT_EQ(bytes(*packet), counting(0, size));
    if (size > 4) {
      const size_t pulled = (size - 4) / 2;
      packet->pull_frags(pulled);
      EXPECT_EQ(packet->payload_size(), size - 4 - pulled);
      std::vector<uint8_t> rest(packet->payload_size());
      packet->read(4, std::as_writable_bytes(std::span(rest)));
      EXPECT_EQ(rest, counting(static_cast<uint8_t>(4 + pulled), rest.size()));
    }
  }
}

TEST_F(PacketTest, give_back_head_reads_payload_where_it_lies) {  // TM-44
  for (const size_t frame : {size_t{60}, kHeaderWindow - 1, kHeaderWindow, size_t{1000}}) {
    WireFrame wire;
    wire.bytes.resize(frame);
    for (size_t i = 0; i < frame; ++i) wire.bytes[i] = static_cast<std::byte>(i);
    PacketPtr packet = make_received(end.context, wire);
    ASSERT_EQ(packet->size(), frame);
    packet->pull(14);
    packet->give_back_head(20);
    EXPECT_EQ(packet->head().size(), 20u);
    EXPECT_EQ(packet->payload_size(), frame - 34);
    EXPECT_EQ(bytes(*packet), counting(14, frame - 14));
    packet->trim(20);  // the first frag stays, empty
    packet->give_back_head(10);
    EXPECT_EQ(bytes(*packet), counting(14, 20));
  }
}

TEST_F(PacketTest, sum_equals_the_sum_of_the_bytes_at_odd_bounds) {
  PacketPtr packet = end.packets.make();
  packet->append(7);
  for (size_t i = 0; i < 7; ++i) packet->mutable_head()[i] = static_cast<std::byte>(i);
  add(*packet, frag(3, 11, 7));
  add(*packet, frag(0, 30, 18));
  const std::vector<uint8_t> all = counting(0, 48);
  for (size_t from = 0; from < 48; ++from) {
    for (size_t size = 0; from + size <= 48; ++size) {
      EXPECT_EQ(checksum_finish(packet->sum(from, size)),
                checksum_finish(checksum_add(0, std::as_bytes(std::span(all)).subspan(from, size))))
          << from << "+" << size;
    }
  }
}

// ---- notifiers ----

struct CountingNotifier : Notifier {
  static void on_complete(Notifier& notifier, bool success) noexcept {
    auto& self = static_cast<CountingNotifier&>(notifier);
    ++(success ? self.succeeded : self.copied);
    if (--notifier.references == 0) ++self.released;
  }
  static constexpr NotifierOps kOps{.complete = on_complete, .link = nullptr};
  CountingNotifier() { ops = &kOps; }
  int succeeded = 0, copied = 0, released = 0;
};

TEST_F(PacketTest, ZN1_ZN2_notifier_is_attached_once_and_completed_once) {
  CountingNotifier notifier;
  PacketPtr packet = end.packets.make();
  attach_notifier(packet->data(), notifier);
  attach_notifier(packet->data(), notifier);
  EXPECT_EQ(notifier.references, 2u);
  EXPECT_EQ(packet->data().flags, kZerocopyFrag | kDoNotOrphan);
  PacketPtr copy = end.packets.clone(*packet);
  packet.reset();
  EXPECT_EQ(notifier.succeeded, 0);  // ZN-5: waits for the last clone
  copy.reset();
  EXPECT_EQ(notifier.succeeded, 1);
  EXPECT_EQ(notifier.references, 1u);
  EXPECT_EQ(notifier.released, 0);  // the submitter still holds its own
}

TEST_F(PacketTest, ZN6_split_shares_the_notifier) {
  CountingNotifier notifier;
  PacketPtr packet = end.packets.make();
  add(*packet, frag(0, 10, 0));
  attach_notifier(packet->data(), notifier);
  PacketPtr in_flight = end.packets.clone(*packet);
  PacketPtr rest = end.packets.split(*packet, 4);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(notifier.references, 4u);  // submitter, clone's data, both halves
  packet.reset();
  rest.reset();
  in_flight.reset();
  EXPECT_EQ(notifier.references, 1u);
  EXPECT_EQ(notifier.succeeded, 3);
}

TEST_F(PacketTest, empty_pool_refuses_and_counts) {
  PacketPool small(3, end.counters);
  PacketPtr a = small.make();
  PacketPtr b = small.make();
  add(*a, frag(0, 10, 0));
  EXPECT_EQ(small.split(*a, 5), nullptr);  // needs one packet and two data areas
  EXPECT_EQ(bytes(*a), counting(0, 10));
  PacketPtr c = small.make();
  EXPECT_EQ(small.make(), nullptr);
  EXPECT_EQ(small.clone(*a), nullptr);
  EXPECT_GE(end.count("skb.pool_exhausted"), 3u);
}

}  // namespace
}  // namespace nobounce::test
