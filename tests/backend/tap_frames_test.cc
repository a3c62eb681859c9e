// TapDevice on a datagram socket that stands in for the kernel: it keeps frames apart, and the test
// decides what is in the header, when it is full and when it is read. For the kernel itself see
// tap_test.cc.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "backend/tap.hpp"
#include "base/random.hpp"
#include "support/frames.hpp"

namespace nobounce::backend::test {
namespace {

using nobounce::test::ByteVector;
using nobounce::test::concat;
using nobounce::test::flatten;
using nobounce::test::pattern;
using nobounce::test::StackEnd;
using nobounce::test::StackEndOptions;

constexpr MacAddress kMac{{2, 0, 0, 0, 0, 1}};
constexpr wire::EthernetHeader kLink{
    .destination = {{2, 0, 0, 0, 0, 2}}, .source = kMac, .ether_type = wire::kEtherTypeIpv4};

bool is_ready(int fd) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

struct StandIn {
  explicit StandIn(TapInterface::Facts facts = {.name = "stand-in"}, size_t queues = 1,
                   const StackEndOptions& options = {})
      : end(clock, options) {
    std::vector<UniqueFd> ours;
    for (size_t i = 0; i < queues; ++i) {
      int fds[2] = {-1, -1};
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      ours.emplace_back(fds[0]);
      kernel.emplace_back(fds[1]);
    }
    interface.emplace(std::move(ours), std::move(facts));
    device = TapDevice::open(*interface, end.context, end.counters, kMac).value();
  }
  ~StandIn() { burst.clear(); }

  void gives_raw(Bytes header, Bytes frame, size_t queue = 0) {
    const ByteVector all = concat(header, frame);
    EXPECT_EQ(::send(kernel[queue].get(), all.data(), all.size(), 0),
              static_cast<ssize_t>(all.size()));
  }
  void gives(const wire::VirtioNetHeader& header, Bytes frame, size_t queue = 0) {
    std::array<std::byte, wire::kNetHeaderBytes> bytes;
    header.emit(bytes);
    gives_raw(Bytes(bytes), frame, queue);
  }
  // What the device wrote: header and frame. Empty: nothing.
  ByteVector takes(size_t queue = 0) {
    ByteVector bytes(1 << 17);
    const ssize_t size = ::recv(kernel[queue].get(), bytes.data(), bytes.size(), 0);
    bytes.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return bytes;
  }
  // From now on it holds a few frames.
  void shrink() {
    const int bytes = 16 << 10;
    EXPECT_EQ(::setsockopt(interface->queue(0), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  }
  size_t receive() { return device->receive(0, burst); }
  uint64_t count(const std::string& name) const { return end.count(name); }

  // Head of 54 bytes, the rest in pages.
  PacketPtr make(Bytes frame) {
    PacketPtr packet = end.packets.make(64);
    const size_t head = std::min<size_t>(frame.size(), 54);
    std::ranges::copy(frame.first(head), packet->append(head).begin());
    for (size_t at = head; at < frame.size(); at += kPageSize) {
      const Frag frag = end.make_frag(frame.subspan(at, std::min(frame.size() - at, kPageSize)));
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    return packet;
  }
  size_t send(PacketPtr packet) {
    PacketBurst out;
    out.push(std::move(packet));
    return device->transmit(0, out);
  }

  ManualClock clock;
  StackEnd end;
  std::vector<UniqueFd> kernel;
  std::optional<TapInterface> interface;
  std::unique_ptr<TapDevice> device;
  PacketBurst burst;
};

TEST(TapFrames, frames_of_every_size_arrive_whole) {
  StandIn tap;
  for (const size_t size : {14U, 60U, 191U, 192U, 193U, 1514U, 4096U, 4097U, 9014U, 65553U}) {
    const ByteVector frame = pattern(size, size);
    tap.gives({}, frame);
    ASSERT_EQ(tap.receive(), 1U) << size;
    Packet& packet = *tap.burst[0];
    EXPECT_EQ(flatten(packet), frame);
    EXPECT_EQ(packet.head().size(), std::min<size_t>(size, kHeaderWindow));
    packet.give_back_head(14);  // what ip/ and above do
    EXPECT_EQ(flatten(packet), frame);
    EXPECT_EQ(packet.checksum, Checksum::none);
    tap.burst.clear();
  }
  EXPECT_EQ(tap.count("tap.rx.frames"), 10U);
}

TEST(TapFrames, C115_what_the_kernel_left_in_the_header_is_ignored) {
  StandIn tap;
  std::array<std::byte, 12> header{};
  header[10] = header[11] = std::byte{0xa5};  // num_buffers
  tap.gives_raw(Bytes(header), pattern(100));
  header.fill(std::byte{0xa5});
  header[0] = header[1] = std::byte{0};  // hdr_len, gso_size and csum_* mean nothing without flags
  tap.gives_raw(Bytes(header), pattern(100));
  EXPECT_EQ(tap.receive(), 2U);
  for (PacketPtr& packet : tap.burst) {
    EXPECT_EQ(flatten(*packet), pattern(100));
    EXPECT_EQ(packet->gso, Gso::none);
    EXPECT_EQ(packet->gso_size, 0U);
    EXPECT_EQ(packet->checksum, Checksum::none);
  }
}

TEST(TapFrames, checksum_and_segmentation_are_taken_over) {
  StandIn tap;
  tap.gives({.flags = wire::kNetDataValid}, pattern(100));
  tap.gives({.flags = wire::kNetNeedsCsum, .csum_start = 34, .csum_offset = 6}, pattern(100));
  tap.gives({.flags = wire::kNetNeedsCsum,
             .gso_type = wire::kNetGsoTcp4,
             .gso_size = 1000,
             .csum_start = 34,
             .csum_offset = 16},
            ByteVector(5054));  // a TCP header without options
  ASSERT_EQ(tap.receive(), 3U);
  EXPECT_EQ(tap.burst[0]->checksum, Checksum::verified);
  EXPECT_EQ(tap.burst[1]->checksum, Checksum::partial);
  EXPECT_EQ(tap.burst[1]->csum_start, 34U);
  EXPECT_EQ(tap.burst[1]->csum_offset, 6U);
  EXPECT_EQ(tap.burst[2]->gso, Gso::tcp4);
  EXPECT_EQ(tap.burst[2]->gso_size, 1000U);
  EXPECT_EQ(tap.burst[2]->gso_segments, 5U);
  EXPECT_EQ(tap.count("tap.rx.super_frames"), 1U);
}

TEST(TapFrames, headers_that_make_no_sense_drop_their_frame_by_reason) {
  StandIn tap;
  const ByteVector frame = pattern(100);
  tap.gives({.gso_type = wire::kNetGsoUso}, frame);
  tap.gives({.gso_type = wire::kNetGsoTcp4, .gso_size = 1000}, frame);  // no partial checksum
  tap.gives({.flags = wire::kNetNeedsCsum, .csum_start = 90, .csum_offset = 9}, frame);
  tap.gives({}, pattern(13));
  tap.gives({}, pattern(65554));
  tap.gives_raw(Bytes(), pattern(5));  // not even a header
  tap.gives({}, frame);
  EXPECT_EQ(tap.receive(), 1U);
  EXPECT_EQ(tap.count("tap.rx.drop.gso_not_negotiated"), 1U);
  EXPECT_EQ(tap.count("tap.rx.drop.gso_invalid"), 1U);
  EXPECT_EQ(tap.count("tap.rx.drop.csum_range"), 1U);
  EXPECT_EQ(tap.count("tap.rx.drop.short_frame"), 2U);
  EXPECT_EQ(tap.count("tap.rx.drop.long_frame"), 1U);
}

TEST(TapFrames, any_header_is_survived_and_accounted_for) {
  StandIn tap;
  constexpr uint64_t kSeed = 11;
  SeededRandom random(kSeed);
  uint64_t given = 0;
  uint64_t received = 0;
  for (int round = 0; round < 2000; ++round) {
    std::array<std::byte, 12> header;
    random.fill(header);
    if (random.below(2) == 0) header[1] = static_cast<std::byte>(random.below(6));
    tap.gives_raw(Bytes(header), pattern(random.below(300)));
    ++given;
    received += tap.receive();
    tap.burst.clear();
  }
  uint64_t dropped = 0;
  for (const CounterSample& sample : tap.end.counters.samples()) {
    if (sample.name.starts_with("tap.rx.drop.")) dropped += sample.value;
  }
  EXPECT_EQ(received + dropped, given) << "seed " << kSeed;
  EXPECT_GT(received, 0U);
}

TEST(TapFrames, offloads_that_were_taken_back_are_done_here) {
  StandIn tap({.name = "stand-in", .offloads = {}});
  const IpAddress from = IpAddress::v4(10, 9, 0, 1);
  const IpAddress to = IpAddress::v4(10, 9, 0, 2);
  const ByteVector whole = nobounce::test::ethernet(
      kLink, nobounce::test::ipv4({.protocol = 17, .source = from, .destination = to},
                                  nobounce::test::udp({from, 7}, {to, 8}, pattern(501))));
  ByteVector partial = whole;
  const uint64_t pseudo = checksum_add(0, Bytes(whole).subspan(26, 8)) + 17 + 509;
  store_be<uint16_t>(partial, 40, checksum_fold(pseudo));
  tap.gives({.flags = wire::kNetNeedsCsum, .csum_start = 34, .csum_offset = 6}, partial);
  ASSERT_EQ(tap.receive(), 1U);
  EXPECT_EQ(tap.burst[0]->checksum, Checksum::none);
  EXPECT_EQ(flatten(*tap.burst[0]), whole);
  tap.gives({.flags = wire::kNetNeedsCsum,
             .gso_type = wire::kNetGsoTcp4,
             .gso_size = 1000,
             .csum_start = 34,
             .csum_offset = 16},
            ByteVector(5054));
  EXPECT_EQ(tap.receive(), 0U);
  EXPECT_EQ(tap.count("tap.rx.drop.gso_not_negotiated"), 1U);
}

TEST(TapFrames, without_packets_or_pages_frames_are_read_and_dropped) {
  StandIn tap({.name = "stand-in"}, 1, {.packets = 4, .arena_bytes = 32 * kPageSize});
  std::vector<PacketPtr> held;
  while (PacketPtr packet = tap.end.packets.make()) held.push_back(std::move(packet));
  for (int i = 0; i < 3; ++i) tap.gives({}, pattern(60000));
  EXPECT_EQ(tap.receive(), 0U);
  EXPECT_EQ(tap.count("tap.rx.drop.no_packets"), 3U);
  EXPECT_FALSE(is_ready(tap.device->wait_handle(0).fd));
  held.clear();

  std::vector<Page*> pages;
  while (Page* page = tap.end.arena->alloc(0)) pages.push_back(page);
  tap.gives({}, pattern(60000));  // lands in the pages that lay ready
  tap.gives({}, pattern(100));
  EXPECT_EQ(tap.receive(), 1U);
  EXPECT_EQ(tap.count("tap.rx.drop.no_pages"), 1U);
  for (Page* page : pages) page_put(*page);
  tap.burst.clear();
  tap.gives({}, pattern(100));
  EXPECT_EQ(tap.receive(), 1U);
}

TEST(TapFrames, a_kernel_without_the_header_carries_bare_frames) {
  StandIn tap({.name = "stand-in", .vnet_header = false, .offloads = {}});
  const DeviceFeatures features = tap.device->features();
  EXPECT_FALSE(features.tx_checksum || features.tso4 || features.rx_checksum || features.lro);
  tap.gives_raw(Bytes(), pattern(777));
  ASSERT_EQ(tap.receive(), 1U);
  EXPECT_EQ(flatten(*tap.burst[0]), pattern(777));
  EXPECT_EQ(tap.send(tap.make(pattern(1000))), 1U);
  EXPECT_EQ(tap.takes(), pattern(1000));
  PacketPtr partial = tap.make(pattern(1000));
  partial->checksum = Checksum::partial;
  partial->csum_start = 34;
  EXPECT_EQ(tap.send(std::move(partial)), 1U);
  EXPECT_EQ(tap.count("tap.tx.drop.csum_not_negotiated"), 1U);
  EXPECT_TRUE(tap.interface->set_offloads({}));
  EXPECT_FALSE(tap.interface->set_offloads({.checksum = true}));
}

TEST(TapFrames, sent_frames_carry_all_of_the_header) {
  StandIn tap;
  for (const size_t size : {14U, 54U, 1514U, 65553U}) {
    EXPECT_EQ(tap.send(tap.make(pattern(size, size))), 1U);
    EXPECT_EQ(tap.takes(), concat(ByteVector(12), pattern(size, size)));
  }
  PacketPtr super = tap.make(concat(pattern(46), ByteVector(9000)));
  store_be<uint8_t>(super->mutable_head(), 46, 0x50);
  super->checksum = Checksum::partial;
  super->csum_start = 34;
  super->csum_offset = 16;
  super->gso = Gso::tcp6;
  super->gso_size = 1440;
  EXPECT_EQ(tap.send(std::move(super)), 1U);
  const auto header = wire::VirtioNetHeader::parse(tap.takes());
  ASSERT_TRUE(header);
  EXPECT_EQ(*header, (wire::VirtioNetHeader{.flags = wire::kNetNeedsCsum,
                                            .gso_type = wire::kNetGsoTcp6,
                                            .hdr_len = 54,
                                            .gso_size = 1440,
                                            .csum_start = 34,
                                            .csum_offset = 16}));
  PacketPtr verified = tap.make(pattern(100));
  verified->checksum = Checksum::verified;  // came from elsewhere; nothing to say to the kernel
  EXPECT_EQ(tap.send(std::move(verified)), 1U);
  EXPECT_EQ(tap.takes(), concat(ByteVector(12), pattern(100)));
  EXPECT_EQ(tap.count("tap.tx.frames"), 6U);
}

TEST(TapFrames, C123_the_ipv4_checksum_of_a_super_frame_is_mended) {
  StandIn tap;
  const ByteVector right = nobounce::test::ethernet(
      kLink, nobounce::test::ipv4({.protocol = 6,
                                   .source = IpAddress::v4(10, 9, 0, 2),
                                   .destination = IpAddress::v4(10, 9, 0, 1)},
                                  ByteVector(4000)));
  for (const uint16_t wrong : std::array<uint16_t, 2>{0x0000, 0x1234}) {
    ByteVector frame = right;
    store_be<uint16_t>(frame, 24, wrong);
    PacketPtr packet = tap.make(frame);
    packet->checksum = Checksum::partial;
    packet->csum_start = 34;
    packet->csum_offset = 16;
    packet->gso = Gso::tcp4;
    packet->gso_size = 1000;
    EXPECT_EQ(tap.send(std::move(packet)), 1U);
    const ByteVector sent = tap.takes();
    EXPECT_EQ(ByteVector(sent.begin() + 12, sent.end()), right);
  }
  EXPECT_EQ(tap.count("tap.tx.ipv4_checksum_fixed"), 2U);
}

TEST(TapFrames, C024_a_full_tap_keeps_packets_with_the_caller_and_wakes_it) {
  StandIn tap;
  tap.shrink();
  PacketBurst out;
  for (uint64_t i = 0; i < kBurstMax; ++i) out.push(tap.make(pattern(1000, i)));
  const size_t sent = tap.device->transmit(0, out);
  ASSERT_LT(sent, kBurstMax);
  ASSERT_EQ(out.size(), kBurstMax - sent);
  EXPECT_EQ(tap.count("tap.tx.eagain"), 1U);
  EXPECT_EQ(tap.device->transmit_room(0), 0U);
  EXPECT_TRUE(tap.device->arm(0));
  EXPECT_FALSE(is_ready(tap.device->wait_handle(0).fd));

  uint64_t next = 0;  // in order, none twice
  const auto takes_next = [&] {
    ASSERT_EQ(tap.takes(), concat(ByteVector(12), pattern(1000, next))) << next;
    ++next;
  };
  while (next < sent) takes_next();
  EXPECT_TRUE(is_ready(tap.device->wait_handle(0).fd));
  tap.device->acknowledge(0);
  EXPECT_GT(tap.device->transmit_room(0), 0U);
  while (next < kBurstMax) {
    static_cast<void>(tap.device->transmit(0, out));
    takes_next();
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(out.empty());
  // Writability is not watched any more.
  EXPECT_TRUE(tap.device->arm(0));
  EXPECT_FALSE(is_ready(tap.device->wait_handle(0).fd));
}

TEST(TapFrames, C024_room_is_found_without_a_sleep_too) {
  StandIn tap;
  tap.shrink();
  PacketBurst out;
  for (uint64_t i = 0; i < kBurstMax; ++i) out.push(tap.make(pattern(1000, i)));
  ASSERT_LT(tap.device->transmit(0, out), kBurstMax);
  EXPECT_EQ(tap.device->transmit_room(0), 0U);
  while (!tap.takes().empty()) {
  }
  EXPECT_GT(tap.device->transmit_room(0), 0U);
}

TEST(TapFrames, C067_a_tap_nobody_wants_to_read_does_not_wake) {
  StandIn tap;
  tap.gives({}, pattern(100));
  EXPECT_FALSE(tap.device->arm(0));
  tap.device->set_receive_wanted(false);
  EXPECT_TRUE(tap.device->arm(0));
  EXPECT_FALSE(is_ready(tap.device->wait_handle(0).fd));
  EXPECT_EQ(tap.receive(), 0U);
  tap.device->set_receive_wanted(true);
  EXPECT_FALSE(tap.device->arm(0));
  EXPECT_TRUE(is_ready(tap.device->wait_handle(0).fd));
  EXPECT_EQ(tap.receive(), 1U);
  EXPECT_TRUE(tap.device->arm(0));
}

TEST(TapFrames, C061_a_flow_leaves_by_the_queue_it_came_by) {
  StandIn tap({.name = "stand-in"}, 4);
  const IpAddress here = IpAddress::v4(10, 9, 0, 2);
  const IpAddress there = IpAddress::v4(10, 9, 0, 1);
  const auto frame = [](const Endpoint& from, const Endpoint& to) {
    return nobounce::test::ethernet(
        kLink,
        nobounce::test::ipv4({.protocol = 17, .source = from.address, .destination = to.address},
                             nobounce::test::udp(from, to, pattern(64))));
  };
  for (uint16_t i = 0; i < 4; ++i) {
    const auto port = static_cast<uint16_t>(1000 + i);
    tap.gives({}, frame({there, port}, {here, 9}), i);
    EXPECT_EQ(tap.receive(), 1U);
    EXPECT_EQ(tap.send(tap.make(frame({here, 9}, {there, port}))), 1U);
    EXPECT_FALSE(tap.takes(i).empty()) << i;
  }
}

}  // namespace
}  // namespace nobounce::backend::test
