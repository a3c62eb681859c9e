// The whole back-end over its real socket, with a service that turns frames round.
#include "backend/backend.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <filesystem>
#include <thread>

#include "guest_driver.hpp"
#include "support/backend_thread.hpp"

namespace nobounce::backend::test {
namespace {

using Request = wire::VhostUserRequest;

constexpr size_t kTxData = 1 << 20;
constexpr size_t kRxData = 2 << 20;

// A front-end on a real socket.
class FrontEnd {
 public:
  explicit FrontEnd(const std::string& path) : rx(ram, 0, 64), tx(ram, 65536, 64) {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    connected_ =
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const timeval limit{5, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  [[nodiscard]] bool is_connected() const { return connected_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  void hang_up() { socket_.reset(); }

  void send(Request request, Bytes payload = {}, int fd = -1, bool need_reply = false) const {
    ByteVector bytes(12);
    const uint32_t words[3] = {static_cast<uint32_t>(request), need_reply ? 9u : 1u,
                               static_cast<uint32_t>(payload.size())};
    std::memcpy(bytes.data(), words, sizeof words);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
    }
    static_cast<void>(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL));
  }
  [[nodiscard]] std::optional<uint64_t> receive_u64() const {
    std::array<std::byte, 20> reply;
    if (::recv(socket_.get(), reply.data(), reply.size(), MSG_WAITALL) != 20) return {};
    uint64_t value = 0;
    std::memcpy(&value, reply.data() + 12, sizeof value);
    return value;
  }
  // True when the back-end has closed its end.
  [[nodiscard]] bool is_closed_by_peer() const {
    std::byte byte{};
    return ::recv(socket_.get(), &byte, 1, 0) == 0;
  }

  bool start() {
    send(Request::get_features);
    const auto features = receive_u64();
    if (!features) return false;
    send(Request::set_protocol_features, encode_u64(wire::kProtocolReplyAck));
    send(Request::set_owner);
    send(Request::set_features, encode_u64(*features));
    send(Request::set_mem_table, encode(ram.table()), ram.fd(), true);
    if (receive_u64() != 0u) return false;
    start_ring(0, rx, rx_kick);
    start_ring(1, tx, tx_kick);
    post_buffers();
    send(Request::set_vring_enable, encode(wire::VringState{0, 1}));
    send(Request::set_vring_enable, encode(wire::VringState{1, 1}), -1, true);
    return receive_u64() == 0u;
  }
  void start_ring(uint32_t index, DriverRing& ring, const UniqueFd& kick) const {
    send(Request::set_vring_num, encode(wire::VringState{index, ring.size()}));
    send(Request::set_vring_base, encode(wire::VringState{index, ring.avail_index()}));
    send(Request::set_vring_addr, encode(ring.address(index)));
    send(Request::set_vring_call, encode(wire::VringFd{.index = static_cast<uint8_t>(index)}),
         call.get());
    send(Request::set_vring_kick, encode(wire::VringFd{.index = static_cast<uint8_t>(index)}),
         kick.get());
  }
  void post_buffers() {
    for (uint16_t i = 0; i < 32; ++i) {
      rx.set_chain(i, {{kGuestBase + kRxData + 4096u * i, 4096}}, true);
      rx.offer(i);
    }
  }
  // One frame out and back; false when it does not come back in five seconds.
  bool exchange(uint64_t seed) {
    ByteVector frame(wire::kNetHeaderBytes + 1000);
    for (size_t i = 12; i < frame.size(); ++i) frame[i] = pattern(seed, i);
    ram.write(kTxData, frame);
    tx.set_chain(0, {{kGuestBase + kTxData, static_cast<uint32_t>(frame.size())}}, false);
    tx.offer(0);
    const uint64_t one = 1;
    static_cast<void>(::write(tx_kick.get(), &one, sizeof one));
    const uint64_t deadline = MonotonicClock().now_ns() + 5 * kNsPerSecond;
    while (!rx.has_used()) {
      pollfd entry{call.get(), POLLIN, 0};
      ::poll(&entry, 1, 10);
      static_cast<void>(event_count(call.get()));
      if (MonotonicClock().now_ns() > deadline) return false;
    }
    const UsedEntry used = rx.take_used();
    const ByteVector back = ram.read(kRxData + 4096u * used.id, used.length);
    const bool same = std::equal(back.begin() + 12, back.end(), frame.begin() + 12, frame.end());
    rx.set_used_event(rx.device_used_index());
    rx.offer(static_cast<uint16_t>(used.id));
    while (tx.has_used()) static_cast<void>(tx.take_used());
    return same;
  }

  GuestRam ram;
  DriverRing rx;
  DriverRing tx;
  UniqueFd rx_kick = make_event();
  UniqueFd tx_kick = make_event();
  UniqueFd call = make_event();

 private:
  UniqueFd socket_;
  bool connected_ = false;
};

using BackendTest = nobounce::test::BackendThread;

TEST_F(BackendTest, serves_a_guest_and_the_next_and_frees_everything) {
  start();
  {  // whatever is made once
    FrontEnd first(options_.sockets[0]);
    ASSERT_TRUE(first.start());
    EXPECT_TRUE(first.exchange(1));
  }
  wait_for("backend.disconnections", 1);
  const size_t fds = open_fds();
  for (uint64_t guest = 2; guest < 12; ++guest) {
    SCOPED_TRACE(guest);
    FrontEnd front(options_.sockets[0]);
    ASSERT_TRUE(front.start());
    for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(front.exchange(guest * 100 + i));
    front.hang_up();
    wait_for("backend.disconnections", guest);
  }
  EXPECT_EQ(open_fds(), fds);
  stop();
}

TEST_F(BackendTest, a_killed_guest_is_forgotten_and_the_next_is_served) {
  start();
  for (int i = 0; i < 3; ++i) {
    const uint64_t frames = backend_->registry().value("backend.guest_rx_frames");
    const pid_t child = ::fork();
    if (child == 0) {
      FrontEnd front(options_.sockets[0]);
      const bool served = front.start() && front.exchange(7);
      if (!served) ::_exit(1);
      for (uint64_t n = 0;; ++n) static_cast<void>(front.exchange(n));
    }
    wait_for("backend.guest_rx_frames", frames + 50);  // this one's, in mid-stream
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    wait_for("backend.disconnections", static_cast<uint64_t>(i + 1));
  }
  FrontEnd front(options_.sockets[0]);
  ASSERT_TRUE(front.start());
  EXPECT_TRUE(front.exchange(9));
}

TEST_F(BackendTest, one_at_a_time_the_next_waits_its_turn) {
  start();
  auto first = std::make_unique<FrontEnd>(options_.sockets[0]);
  ASSERT_TRUE(first->start());
  FrontEnd second(options_.sockets[0]);
  ASSERT_TRUE(second.is_connected());
  second.send(Request::get_features);
  pollfd entry{second.socket(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 50), 0);
  EXPECT_TRUE(first->exchange(1));
  first.reset();
  EXPECT_TRUE(second.receive_u64());
  EXPECT_TRUE(second.start());
  EXPECT_TRUE(second.exchange(2));
}

TEST_F(BackendTest, V3_a_front_end_that_breaks_the_protocol_is_left) {
  start();
  {
    FrontEnd front(options_.sockets[0]);
    ASSERT_TRUE(front.start());
    front.send(static_cast<Request>(77));
    EXPECT_TRUE(front.is_closed_by_peer());
  }
  {
    FrontEnd front(options_.sockets[0]);  // refused, and it did not ask for an answer
    front.send(Request::set_features, encode_u64(~uint64_t{0}));
    EXPECT_TRUE(front.is_closed_by_peer());
  }
  {
    FrontEnd front(options_.sockets[0]);  // refused, and told so
    front.send(Request::set_protocol_features, encode_u64(wire::kProtocolReplyAck));
    front.send(Request::set_features, encode_u64(~uint64_t{0}), -1, true);
    EXPECT_EQ(front.receive_u64(), 1u);
    EXPECT_TRUE(front.start());
    EXPECT_TRUE(front.exchange(1));
  }
}

TEST_F(BackendTest, TM79_a_broken_ring_is_latched_and_the_front_end_may_start_again) {
  start();
  FrontEnd front(options_.sockets[0]);
  ASSERT_TRUE(front.start());
  EXPECT_TRUE(front.exchange(1));
  front.tx.offer(60000);
  const uint64_t one = 1;
  ASSERT_EQ(::write(front.tx_kick.get(), &one, sizeof one), 8);
  wait_for("backend.ring_broken.head_range", 1);
  // Idle now, not spinning on it; the control socket still answers.
  front.send(Request::get_vring_base, encode(wire::VringState{1, 0}));
  ASSERT_TRUE(front.receive_u64());
  front.send(Request::get_vring_base, encode(wire::VringState{0, 0}));
  ASSERT_TRUE(front.receive_u64());
  front.rx = DriverRing(front.ram, 0, 64);
  front.tx = DriverRing(front.ram, 65536, 64);
  EXPECT_TRUE(front.start());
  EXPECT_TRUE(front.exchange(2));
  EXPECT_EQ(backend_->registry().value("backend.ring_broken.head_range"), 1u);
}

TEST_F(BackendTest, a_flood_of_messages_holds_up_neither_the_rings_nor_the_stop) {
  start();
  FrontEnd front(options_.sockets[0]);
  ASSERT_TRUE(front.start());
  std::atomic<bool> end{false};
  std::array<std::thread, 2> floods;
  for (std::thread& flood : floods) {
    flood = std::thread([&] {
      while (!end.load(std::memory_order_relaxed)) {
        front.send(Request::set_vring_enable, encode(wire::VringState{0, 1}));
      }
    });
  }
  for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(front.exchange(i));
  stop();
  end.store(true);
  for (std::thread& flood : floods) flood.join();
}

TEST_F(BackendTest, TM71_a_front_end_cannot_fill_the_log) {
  start();
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  const uint64_t start_ns = MonotonicClock().now_ns();
  for (uint64_t guest = 1; guest <= 20; ++guest) {
    FrontEnd front(options_.sockets[0]);
    front.send(Request::set_protocol_features, encode_u64(wire::kProtocolReplyAck));
    for (int i = 0; i < 20; ++i) {
      front.send(Request::set_features, encode_u64(~uint64_t{0}), -1, true);
      EXPECT_EQ(front.receive_u64(), 1u);
    }
    front.hang_up();
    wait_for("backend.disconnections", guest);
  }
  stop();
  const uint64_t seconds = (MonotonicClock().now_ns() - start_ns) / kNsPerSecond + 1;
  const std::string log = testing::internal::GetCapturedStderr();
  // Three kinds of line, one a second each, and the lines of set-up.
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), static_cast<long>(3 * (seconds + 1) + 2))
      << log;
  EXPECT_NE(log.find("refused"), std::string::npos) << log;
}

TEST_F(BackendTest, C067_idle_costs_nothing) {
  start();
  FrontEnd front(options_.sockets[0]);
  ASSERT_TRUE(front.start());
  EXPECT_TRUE(front.exchange(1));
  ::usleep(20'000);
  timespec before{}, after{};
  ASSERT_EQ(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
  ::usleep(500'000);
  ASSERT_EQ(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 0.5 * 0.02);  // asan included
  EXPECT_TRUE(front.exchange(2));
}

TEST_F(BackendTest, once_ends_with_the_first_front_end) {
  options_.once = true;
  start();
  {
    FrontEnd front(options_.sockets[0]);
    ASSERT_TRUE(front.start());
  }
  thread_.join();
  EXPECT_TRUE(result_);
  EXPECT_EQ(backend_->registry().value("backend.disconnections"), 1u);
  backend_.reset();
}

TEST_F(BackendTest, bad_options_are_told) {
  const auto refused = [&](auto&& change) {
    BackendOptions options = options_;
    change(options);
    const auto opened = Backend::open(options, {});
    EXPECT_FALSE(opened);
    EXPECT_FALSE(opened.error().hint.empty());
  };
  refused([](auto& o) { o.queue_size_limit = 0; });
  refused([](auto& o) { o.queue_size_limit = 100; });
  refused([](auto& o) { o.queue_pairs = 0; });
  refused([](auto& o) { o.queue_pairs = 9; });
  refused([](auto& o) { o.mtu = 67; });
  refused([](auto& o) { o.mac = {}; });
  refused([](auto& o) { o.guest_mac = MacAddress::broadcast(); });
  refused([](auto& o) { o.sockets.clear(); });
}

}  // namespace
}  // namespace nobounce::backend::test
