// TapDevice on the kernel's TAP, each test in a network namespace of its own.
#include "backend/tap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/if_tun.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "backend/isolation.hpp"
#include "netdev/checksum.hpp"
#include "nobounce/stack.hpp"
#include "socket/set_up.hpp"
#include "support/frames.hpp"
#include "support/namespace.hpp"

namespace nobounce::backend::test {
namespace {

using nobounce::test::ByteVector;
using nobounce::test::flatten;
using nobounce::test::Host;
using nobounce::test::in_namespace;
using nobounce::test::pattern;
using nobounce::test::request_for;
using nobounce::test::StackEnd;
using nobounce::test::wait_readable;

constexpr MacAddress kMac{{2, 0, 0, 0, 0, 0x10}};
const IpAddress kKernel = IpAddress::v4(10, 9, 0, 1);
const IpAddress kUs = IpAddress::v4(10, 9, 0, 2);

struct Tap {
  explicit Tap(Host& host, const TapOptions& options = {.name = "nbtest"})
      : interface(TapInterface::open(options).value()),
        device(TapDevice::open(interface, end.context, end.counters, kMac).value()) {
    host.set_addresses(interface.name(), kMac);
  }
  ~Tap() { burst.clear(); }

  // The next IPv4 frame from the kernel; null when none comes.
  PacketPtr next(int timeout_ms = 2000) {
    for (;;) {
      for (size_t i = 0; i < burst.size(); ++i) {
        PacketPtr packet = std::move(burst[i]);
        if (load_be<uint16_t>(packet->head(), 12) != wire::kEtherTypeIpv4) continue;
        burst.drop_front(i + 1);
        return packet;
      }
      burst.clear();
      if (device->receive(0, burst) > 0) continue;
      if (device->arm(0) && !wait_readable(device->wait_handle(0).fd, timeout_ms)) return {};
      device->acknowledge(0);
    }
  }
  ByteVector to_kernel(const ByteVector& ip) const {
    return nobounce::test::ethernet(
        {.destination = interface.mac(), .source = kMac, .ether_type = wire::kEtherTypeIpv4}, ip);
  }
  // Headers of `head` bytes, the rest in pages.
  PacketPtr make(Bytes frame, size_t head) {
    PacketPtr packet = end.packets.make(64);
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

  MonotonicClock clock;
  StackEnd end{clock};
  TapInterface interface;
  std::unique_ptr<TapDevice> device;
  PacketBurst burst;
};

TEST(Tap, is_made_brought_up_and_gone_with_its_last_queue) {
  in_namespace([](Host& host) {
    {
      const auto tap = TapInterface::open({.name = "nbtest", .mtu = 1428});
      ASSERT_TRUE(tap) << tap.error().to_string();
      EXPECT_EQ(tap->name(), "nbtest");
      EXPECT_EQ(tap->mtu(), 1428);
      EXPECT_EQ(host.mtu("nbtest"), 1428);
      EXPECT_FALSE(tap->mac().is_zero());
      EXPECT_TRUE(host.is_up("nbtest"));
      const auto largest = TapInterface::open({.name = "nblarge", .mtu = 65521});
      ASSERT_TRUE(largest) << largest.error().to_string();
      EXPECT_EQ(host.mtu("nblarge"), 65521);
      // The kernel has said no, and not because of a privilege.
      const auto beyond = TapInterface::open({.name = "nbbeyond", .mtu = 65522});
      ASSERT_FALSE(beyond.has_value());
      EXPECT_THAT(beyond.error().hint, testing::HasSubstr("68 to 65521"));
      const auto second = TapInterface::open({.name = "nbtest%d", .mtu = 9000});
      ASSERT_TRUE(second) << second.error().to_string();
      EXPECT_EQ(second->name(), "nbtest0");
      EXPECT_EQ(second->mtu(), 9000);
    }
    EXPECT_EQ(::if_nametoindex("nbtest"), 0U);
  });
}

TEST(Tap, frames_come_and_go_with_checksums_left_to_the_receiver) {
  in_namespace([](Host& host) {
    Tap tap(host);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    const ByteVector data = pattern(1000);
    Host::send_to(socket, 7001, data.data(), data.size());
    PacketPtr packet = tap.next();
    ASSERT_NE(packet, nullptr);
    EXPECT_EQ(packet->checksum, Checksum::partial);
    EXPECT_EQ(packet->csum_start, 34);
    EXPECT_EQ(packet->csum_offset, 6);
    ASSERT_TRUE(complete_checksum(*packet));
    const ByteVector frame = flatten(*packet);
    EXPECT_TRUE(nobounce::test::has_right_checksums(frame));
    EXPECT_EQ(ByteVector(frame.begin() + 42, frame.end()), data);

    // The other way: once whole, once left to the kernel.
    const ByteVector whole = tap.to_kernel(
        nobounce::test::ipv4({.protocol = 17, .source = kUs, .destination = kKernel},
                             nobounce::test::udp({kUs, 7001}, {kKernel, 7000}, data)));
    EXPECT_EQ(tap.send(tap.make(whole, 42)), 1U);
    PacketPtr partial = tap.make(whole, 42);
    const uint64_t pseudo = checksum_add(0, Bytes(whole).subspan(26, 8)) + 17 + 1008;
    store_be<uint16_t>(partial->mutable_head(), 40, checksum_fold(pseudo));
    partial->checksum = Checksum::partial;
    partial->csum_start = 34;
    partial->csum_offset = 6;
    EXPECT_EQ(tap.send(std::move(partial)), 1U);
    for (int i = 0; i < 2; ++i) {
      ByteVector got(2000);
      ASSERT_TRUE(wait_readable(socket.get())) << i;
      const ssize_t size = ::recv(socket.get(), got.data(), got.size(), 0);
      got.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
      EXPECT_EQ(got, data) << i;
    }
  });
}

TEST(Tap, offloads_follow_what_was_negotiated) {
  in_namespace([](Host& host) {
    Tap tap(host);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    for (const bool on : {false, true}) {
      ASSERT_TRUE(tap.interface.set_offloads({.checksum = on, .tso4 = on, .tso6 = on}));
      EXPECT_EQ(tap.device->features().lro, on);
      Host::send_to(socket, 7001, "hello", 5);
      PacketPtr packet = tap.next();
      ASSERT_NE(packet, nullptr);
      EXPECT_EQ(packet->checksum == Checksum::partial, on);
      if (!on) {
        EXPECT_TRUE(nobounce::test::has_right_checksums(flatten(*packet)));
      }
    }
  });
}

// The belief behind zeroing: the kernel does not write num_buffers.
TEST(Tap, C115_the_kernel_leaves_the_end_of_the_header_and_we_do_not_look) {
  in_namespace([](Host& host) {
    Tap tap(host);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    Host::send_to(socket, 7001, "first", 5);
    std::array<std::byte, 12> header;
    header.fill(std::byte{0xa5});
    std::array<std::byte, 2048> frame;
    std::array<iovec, 2> to{{{header.data(), header.size()}, {frame.data(), frame.size()}}};
    ASSERT_EQ(::readv(tap.interface.queue(0), to.data(), 2), 12 + 42 + 5);
    std::cout << "num_buffers as the kernel leaves it: " << std::hex
              << load_le<uint16_t>(header, 10) << std::dec << "\n";
    Host::send_to(socket, 7001, "second", 6);
    PacketPtr packet = tap.next();
    ASSERT_NE(packet, nullptr);
    EXPECT_EQ(packet->size(), 48U);
    EXPECT_EQ(tap.end.count("tap.rx.frames"), 1U);
  });
}

// A closed port answers a segment it accepted with a reset: IP and TCP checksums were right.
TEST(Tap, C123_a_super_frame_with_an_empty_ipv4_checksum_arrives) {
  in_namespace([](Host& host) {
    Tap tap(host);
    for (const uint16_t checksum : std::array<uint16_t, 2>{0x0000, 0x1234}) {
      wire::TcpHeader tcp{.source_port = 4000,
                          .destination_port = 4001,
                          .sequence = 1,
                          .acknowledgement = 77,
                          .flags = wire::kTcpAck,
                          .window = 1000};
      ByteVector frame = tap.to_kernel(
          nobounce::test::ipv4({.protocol = 6, .source = kUs, .destination = kKernel},
                               nobounce::test::tcp(kUs, kKernel, tcp, pattern(5000))));
      store_be<uint16_t>(frame, 24, checksum);
      const uint64_t pseudo = checksum_add(0, Bytes(frame).subspan(26, 8)) + 6 + 5020;
      store_be<uint16_t>(frame, 50, checksum_fold(pseudo));
      PacketPtr packet = tap.make(frame, 54);
      packet->checksum = Checksum::partial;
      packet->csum_start = 34;
      packet->csum_offset = 16;
      packet->gso = Gso::tcp4;
      packet->gso_size = 1400;
      EXPECT_EQ(tap.send(std::move(packet)), 1U);
      const PacketPtr answer = tap.next();
      ASSERT_NE(answer, nullptr);
      const ByteVector bytes = flatten(*answer);  // the view looks into it
      const auto reset = wire::TcpView::parse(Bytes(bytes).subspan(34));
      ASSERT_TRUE(reset);
      EXPECT_NE(reset->flags() & wire::kTcpRst, 0);
      EXPECT_EQ(reset->sequence(), 77U);
    }
    EXPECT_EQ(tap.end.count("tap.tx.ipv4_checksum_fixed"), 2U);
    EXPECT_EQ(tap.end.count("tap.tx.super_frames"), 2U);
  });
}

// The kernel's TCP against ours: a stream each way, in super-frames.
TEST(Tap, a_stream_goes_out_and_back_through_the_kernel_in_super_frames) {
  in_namespace([](Host&) {
    auto interface = TapInterface::open({.name = "nbtest"});
    ASSERT_TRUE(interface) << interface.error().to_string();
    Host host;
    host.set_addresses("nbtest", kMac);
    const UniqueFd listener = Host::bound(SOCK_STREAM, 7000);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    std::thread echo([&listener] {
      const UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::vector<char> buffer(1 << 18);
      for (;;) {
        const ssize_t got = ::recv(peer.get(), buffer.data(), buffer.size(), 0);
        if (got <= 0) break;
        for (ssize_t sent = 0; sent < got;) {
          const ssize_t n = ::send(peer.get(), buffer.data() + sent,
                                   static_cast<size_t>(got - sent), MSG_NOSIGNAL);
          if (n <= 0) return;
          sent += n;
        }
      }
      ::shutdown(peer.get(), SHUT_WR);
    });
    StackOptions options;
    options.address = *IpPrefix::parse("10.9.0.2/24");
    options.mac = kMac;
    options.mode = Mode::bounce;
    CounterRegistry counters;
    auto stack = StackSetUp::open_on(
        options,
        [&](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
          auto device = TapDevice::open(*interface, *contexts[0], counters, kMac);
          if (!device) return std::unexpected(device.error());
          return std::unique_ptr<NetDevice>(std::move(*device));
        });
    ASSERT_TRUE(stack) << stack.error().to_string();
    auto socket = (*stack)->tcp_connect({kKernel, 7000}, std::chrono::seconds(5));
    ASSERT_TRUE(socket);
    constexpr size_t kBytes = 8 << 20;
    const ByteVector data = pattern(kBytes, 5);
    std::thread sender([&] {
      EXPECT_EQ(socket->send(data), kBytes);
      EXPECT_TRUE(socket->shutdown(Shutdown::send).has_value());
    });
    ByteVector back(kBytes + 1);
    size_t received = 0;
    for (;;) {
      const auto got = socket->recv(MutableBytes(back).subspan(received));
      EXPECT_TRUE(got.has_value());
      if (!got || *got == 0) break;
      received += *got;
    }
    sender.join();
    socket->close();
    echo.join();
    back.resize(received);
    EXPECT_TRUE(back == data);
    EXPECT_GT(counters.value("tap.tx.super_frames"), 0U);
    EXPECT_GT(counters.value("tap.rx.super_frames"), 0U);
    EXPECT_EQ((*stack)->failure(), std::nullopt);
  });
}

TEST(Tap, C024_a_flood_is_dropped_by_the_kernel_and_the_next_frame_passes) {
  in_namespace([](Host& host) {
    Tap tap(host);
    host.set_queue_length("nbtest", 4);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    constexpr uint64_t kFlood = 300;
    for (uint64_t i = 0; i < kFlood; ++i) Host::send_to(socket, 7001, "flood", 5);
    uint64_t received = 0;
    while (tap.next(0) != nullptr) ++received;
    EXPECT_GT(received, 0U);
    EXPECT_LT(received, kFlood);
    EXPECT_EQ(received + Host::dropped("nbtest"), kFlood);
    Host::send_to(socket, 7001, "again", 5);
    EXPECT_NE(tap.next(), nullptr);
  });
}

TEST(Tap, C067_a_flooded_tap_does_not_wake_who_has_no_room) {
  in_namespace([](Host& host) {
    Tap tap(host);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    tap.device->set_receive_wanted(false);
    for (int i = 0; i < 300; ++i) Host::send_to(socket, 7001, "flood", 5);
    EXPECT_TRUE(tap.device->arm(0));
    EXPECT_FALSE(wait_readable(tap.device->wait_handle(0).fd, 0));
    tap.device->set_receive_wanted(true);
    EXPECT_FALSE(tap.device->arm(0));
    EXPECT_NE(tap.next(), nullptr);
  });
}

TEST(Tap, without_pages_a_flood_is_read_and_counted) {
  in_namespace([](Host& host) {
    Tap tap(host);
    std::vector<PacketPtr> held;
    while (PacketPtr packet = tap.end.packets.make()) held.push_back(std::move(packet));
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    const ByteVector data = pattern(1400);
    for (int i = 0; i < 50; ++i) Host::send_to(socket, 7001, data.data(), data.size());
    while (tap.device->receive(0, tap.burst) > 0) {
    }
    EXPECT_GE(tap.end.count("tap.rx.drop.no_packets"), 50U);
    EXPECT_TRUE(tap.device->arm(0));  // nothing is left in it
  });
}

TEST(Tap, C061_many_flows_on_four_queues_all_arrive) {
  in_namespace([](Host& host) {
    Tap tap(host, {.name = "nbtest", .queue_pairs = 4});
    EXPECT_EQ(tap.interface.queue_pairs(), 4);
    EXPECT_EQ(tap.device->queue_pairs(), 1);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    for (uint16_t i = 0; i < 200; ++i) {
      Host::send_to(socket, static_cast<uint16_t>(8000 + i), &i, sizeof i);
    }
    std::array<bool, 200> seen{};
    for (int i = 0; i < 200; ++i) {
      PacketPtr packet = tap.next();
      ASSERT_NE(packet, nullptr) << i;
      seen.at(load_be<uint16_t>(packet->head(), 36) - 8000U) = true;
    }
    EXPECT_TRUE(std::ranges::all_of(seen, std::identity{}));
  });
}

TEST(Tap, an_interface_that_is_down_drops_and_one_that_is_deleted_breaks) {
  in_namespace([](Host& host) {
    Tap tap(host);
    host.bring_down("nbtest");
    EXPECT_EQ(tap.send(tap.make(pattern(100), 54)), 1U);
    EXPECT_EQ(tap.end.count("tap.tx.drop.interface_down"), 1U);
    EXPECT_FALSE(tap.device->is_broken());
    EXPECT_TRUE(tap.device->arm(0));
    host.remove("nbtest");
    EXPECT_TRUE(wait_readable(tap.device->wait_handle(0).fd));
    tap.device->acknowledge(0);
    EXPECT_TRUE(tap.device->is_broken());
    EXPECT_FALSE(tap.device->link_up());
    EXPECT_EQ(tap.send(tap.make(pattern(100), 54)), 1U);
    EXPECT_EQ(tap.end.count("tap.tx.drop.gone"), 1U);
    EXPECT_FALSE(wait_readable(tap.device->wait_handle(0).fd, 0));  // and is quiet
  });
}

// ---- namespaces -------------------------------------------------------------------------------

TEST(Tap, netns_is_entered_for_the_opening_alone) {
  in_namespace([](Host&) {
    // A second namespace, held open by its descriptor.
    UniqueFd other;
    std::thread([&other] {
      ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
      other = UniqueFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    }).join();
    ASSERT_TRUE(other.is_open());
    const std::string path =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(other.get());
    const auto tap = TapInterface::open({.name = "nbtest", .mtu = 1400, .netns = path});
    ASSERT_TRUE(tap) << tap.error().to_string();
    EXPECT_EQ(tap->mtu(), 1400);
    EXPECT_EQ(::if_nametoindex("nbtest"), 0U);
    ASSERT_EQ(::setns(other.get(), CLONE_NEWNET), 0);
    EXPECT_NE(::if_nametoindex("nbtest"), 0U);
    EXPECT_TRUE(Host().is_up("nbtest"));
  });
}

// A mount namespace too, so that the name is seen here alone.
TEST(Tap, netns_by_name_is_looked_up_where_ip_netns_keeps_them) {
  in_namespace([](Host&) {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount("tmpfs", "/run", "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(::mkdir("/run/netns", 0755), 0);
    {
      const UniqueFd file(::open("/run/netns/blue", O_CREAT | O_RDONLY | O_CLOEXEC, 0600));
      ASSERT_TRUE(file.is_open());
    }
    ASSERT_EQ(::mount("/proc/thread-self/ns/net", "/run/netns/blue", nullptr, MS_BIND, nullptr), 0);
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    const auto tap = TapInterface::open({.name = "nbtest", .netns = "blue"});
    ASSERT_TRUE(tap) << tap.error().to_string();
    EXPECT_EQ(::if_nametoindex("nbtest"), 0U);
  });
}

// ---- errors -----------------------------------------------------------------------------------

std::string error_of(const TapOptions& options) {
  const auto tap = TapInterface::open(options);
  return tap ? "no error" : tap.error().to_string();
}

TEST(TapErrors, options_that_cannot_be_are_named_before_anything_is_tried) {
  EXPECT_THAT(error_of({.name = ""}), testing::HasSubstr("no interface name"));
  EXPECT_THAT(error_of({.name = "a-name-too-long0"}), testing::HasSubstr("at most 15"));
  EXPECT_THAT(error_of({.name = "a/b"}), testing::HasSubstr("not a name"));
  EXPECT_THAT(error_of({.name = "nb", .queue_pairs = 0}), testing::HasSubstr("give 1 to 256"));
  EXPECT_THAT(error_of({.name = "nb", .mtu = 60}), testing::HasSubstr("68 to 65521"));
  EXPECT_THAT(error_of({.name = "nb", .send_buffer_bytes = -1}), testing::HasSubstr("no bound"));
  EXPECT_THAT(error_of({.name = "nb", .netns = "no-such-one"}),
              testing::AllOf(testing::HasSubstr("/run/netns/no-such-one: No such file"),
                             testing::HasSubstr("ip netns add no-such-one")));
}

TEST(TapErrors, a_file_that_is_no_namespace_is_said_to_be_none) {
  in_namespace([](Host&) {
    EXPECT_THAT(error_of({.name = "nb", .netns = "/proc/self/status"}),
                testing::HasSubstr("is no network namespace"));
  });
}

TEST(TapErrors, busy_and_queue_mismatch_say_what_to_do) {
  in_namespace([](Host&) {
    const auto single = TapInterface::open({.name = "single"});
    ASSERT_TRUE(single);
    EXPECT_THAT(error_of({.name = "single"}), testing::HasSubstr("another process has it open"));
    EXPECT_THAT(error_of({.name = "single", .queue_pairs = 2}),
                testing::HasSubstr("made without multi_queue"));
    const auto many = TapInterface::open({.name = "many", .queue_pairs = 2});
    ASSERT_TRUE(many);
    EXPECT_THAT(error_of({.name = "many"}), testing::HasSubstr("made with multi_queue"));
    EXPECT_THAT(error_of({.name = "lo"}), testing::HasSubstr("it is no tap"));
  });
}

// The raw calls change the calling thread alone.
TEST(TapErrors, without_privileges_the_way_out_is_named) {
  in_namespace([](Host&) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
    data[0].effective &= ~(1U << CAP_NET_ADMIN);
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
    EXPECT_THAT(error_of({.name = "nb", .queue_pairs = 2}),
                testing::AllOf(testing::HasSubstr("CAP_NET_ADMIN"),
                               testing::HasSubstr("ip tuntap add nb mode tap multi_queue user")));
  });
}

TEST(TapErrors, a_persistent_tap_of_the_user_needs_no_privilege) {
  in_namespace([](Host& host) {
    constexpr unsigned kNobody = 65534;
    {
      const UniqueFd fd(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
      ifreq request = request_for("theirs");
      request.ifr_flags = IFF_TAP | IFF_NO_PI;  // made without vnet_hdr
      ASSERT_EQ(::ioctl(fd.get(), TUNSETIFF, &request), 0);
      ASSERT_EQ(::ioctl(fd.get(), TUNSETOWNER, static_cast<unsigned long>(kNobody)), 0);
      ASSERT_EQ(::ioctl(fd.get(), TUNSETPERSIST, 1UL), 0);
    }
    host.set_addresses("theirs", kMac);
    host.bring_up("theirs");
    // The one right that is kept stands for a /dev/net/tun that all may open, which it is elsewhere.
    ASSERT_EQ(::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
    ASSERT_EQ(::syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct rights[2]{};
    rights[0].effective = rights[0].permitted = 1U << CAP_DAC_OVERRIDE;
    ASSERT_EQ(::syscall(SYS_capset, &header, rights), 0);
    auto tap = TapInterface::open({.name = "theirs"});
    ASSERT_TRUE(tap) << tap.error().to_string();
    EXPECT_TRUE(tap->set_offloads({}));
  });
}

// ---- under the filter -------------------------------------------------------------------------

TEST(Tap, TM87_an_open_tap_works_under_the_system_call_filter) {
  in_namespace([](Host& host) {
    Tap tap(host);
    const UniqueFd socket = Host::bound(SOCK_DGRAM, 7000);
    Host::send_to(socket, 7001, "hello", 5);
    const ByteVector whole = tap.to_kernel(
        nobounce::test::ipv4({.protocol = 17, .source = kUs, .destination = kKernel},
                             nobounce::test::udp({kUs, 7001}, {kKernel, 7000}, pattern(10))));
    PacketPtr out = tap.make(whole, 42);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!forbid_dumps()) ::_exit(1);
      if (!filter_system_calls()) ::_exit(2);
      if (tap.next() == nullptr) ::_exit(3);
      if (tap.send(std::move(out)) != 1) ::_exit(4);
      if (tap.end.count("tap.tx.frames") != 1) ::_exit(5);
      if (!tap.interface.set_offloads({.checksum = true})) ::_exit(6);
      if (!tap.device->arm(0)) ::_exit(7);
      ifreq request = request_for("nbtest");
      if (::ioctl(tap.interface.queue(0), TUNSETIFF, &request) != -1 || errno != EPERM) ::_exit(8);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(wait_readable(socket.get()));
  });
}

}  // namespace
}  // namespace nobounce::backend::test
