// The built-in peer, met by our own front-end and stack over a real vhost-user socket.
#include "backend/peer.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <thread>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "guest_driver.hpp"
#include "support/backend_thread.hpp"
#include "support/guest.hpp"

namespace nobounce::backend::test {
namespace {

using namespace std::chrono_literals;

using nobounce::test::kPeer;

class PeerTest : public nobounce::test::BackendThread {
 protected:
  void start() {
    const PeerOptions peer{.address = options_.address,
                           .mac = options_.mac,
                           .private_bytes = 64 << 20,
                           .connections_max = 64};
    BackendThread::start([peer](const ServicePlace& place) { return Peer::open(place, peer); });
  }
  [[nodiscard]] StackOptions guest_options(Mode mode = Mode::nocopy) const {
    StackOptions options = nobounce::test::guest_options(options_.sockets[0], mode, 16 << 20, 64);
    options.queue_size = 256;
    options.send_buffer = 1 << 20;
    options.receive_buffer = 1 << 20;
    return options;
  }
  [[nodiscard]] std::unique_ptr<Stack> open_guest(Mode mode = Mode::nocopy) const {
    return nobounce::test::open_stack(guest_options(mode));
  }
  static TcpSocket connect(Stack& stack, uint16_t port) {
    return nobounce::test::connect_to_peer(stack, port, 10s);
  }
};

// Sends `bytes` of self-describing payload from a thread of its own and checks what comes back.
void echo(TcpSocket& socket, size_t bytes, uint64_t seed) {
  std::thread sender([&] {
    ByteVector out(60'000);
    for (size_t at = 0; at < bytes;) {
      const size_t part = std::min(out.size(), bytes - at);
      for (size_t i = 0; i < part; ++i) out[i] = pattern(seed, at + i);
      const auto sent = socket.send(Bytes(out).first(part));
      ASSERT_TRUE(sent) << static_cast<int>(sent.error());
      at += *sent;
    }
    EXPECT_TRUE(socket.shutdown(Shutdown::send));
  });
  ByteVector in(1 << 16);
  size_t at = 0;
  for (;;) {
    const auto got = socket.recv(in);
    if (!got) ADD_FAILURE() << "after " << at << ": " << static_cast<int>(got.error());
    if (!got || *got == 0) break;
    for (size_t i = 0; i < *got; ++i) {
      if (in[i] != pattern(seed, at + i)) {
        ADD_FAILURE() << "byte " << at + i << " differs";
        break;
      }
    }
    at += *got;
  }
  EXPECT_EQ(at, bytes);
  sender.join();
}

TEST_F(PeerTest, answers_ping_and_udp) {
  start();
  const auto stack = open_guest();
  ASSERT_NE(stack, nullptr);
  const auto reply = stack->ping(kPeer, 1, 1000, 5s);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->from, kPeer);
  auto socket = stack->udp_bind();
  ASSERT_TRUE(socket);
  socket->set_receive_timeout(5s);
  for (const size_t size : {size_t{1}, size_t{100}, size_t{1472}, size_t{0}, size_t{1473},
                            size_t{8000}, size_t{65'507}}) {
    ByteVector out(size);
    for (size_t i = 0; i < size; ++i) out[i] = pattern(size, i);
    ASSERT_TRUE(socket->send_to(out, {kPeer, Peer::kEchoPort}));
    ByteVector in(65'507);
    const auto got = socket->recv_from(in);
    ASSERT_TRUE(got) << size;
    EXPECT_EQ(got->bytes, size);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
  }
}

TEST_F(PeerTest, echoes_a_stream_in_both_modes) {
  start();
  for (const Mode mode : {Mode::nocopy, Mode::bounce}) {
    SCOPED_TRACE(mode == Mode::nocopy ? "nocopy" : "bounce");
    const auto stack = open_guest(mode);
    ASSERT_NE(stack, nullptr);
    for (const size_t bytes : {size_t{1}, size_t{1460}, size_t{5} << 20}) {
      TcpSocket socket = connect(*stack, Peer::kEchoPort);
      ASSERT_TRUE(socket.is_open());
      echo(socket, bytes, bytes);
    }
  }
  EXPECT_EQ(count("backend.drop.no_pages"), 0u);
}

TEST_F(PeerTest, discards_and_closes_when_the_client_does) {
  start();
  const auto stack = open_guest();
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, Peer::kDiscardPort);
  ASSERT_TRUE(socket.is_open());
  const ByteVector out(1 << 20, std::byte{0x5a});
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(socket.send(out));
  ASSERT_TRUE(socket.shutdown(Shutdown::send));
  ByteVector in(16);
  const auto end = socket.recv(in);
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, 0u);
  EXPECT_GE(count("backend.guest_tx_bytes"), 8u << 20);
}

TEST_F(PeerTest, the_source_sends_its_pattern_until_the_client_closes) {
  start();
  const auto stack = open_guest();
  ASSERT_NE(stack, nullptr);
  for (int turn = 0; turn < 2; ++turn) {
    TcpSocket socket = connect(*stack, Peer::kSourcePort);
    ASSERT_TRUE(socket.is_open());
    ByteVector in(1 << 16);
    ByteVector expected(in.size());
    for (uint64_t at = 0; at < 6 << 20;) {
      const auto got = socket.recv(in);
      ASSERT_TRUE(got) << "after " << at << ": " << static_cast<int>(got.error());
      ASSERT_GT(*got, 0u);
      Peer::fill_pattern(at, MutableBytes(expected).first(*got));
      ASSERT_TRUE(
          std::equal(in.begin(), in.begin() + static_cast<ptrdiff_t>(*got), expected.begin()))
          << "at " << at;
      at += *got;
    }
    turn == 0 ? socket.close() : socket.abort();
  }
}

TEST_F(PeerTest, many_connections_come_and_go) {
  start();
  const auto stack = open_guest();
  ASSERT_NE(stack, nullptr);
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    TcpSocket socket = connect(*stack, Peer::kEchoPort);
    ASSERT_TRUE(socket.is_open());
    const ByteVector out(100, static_cast<std::byte>(i));
    ASSERT_TRUE(socket.send(out));
    ByteVector in(100);
    size_t got = 0;
    while (got < in.size()) {
      const auto part = socket.recv(MutableBytes(in).subspan(got));
      ASSERT_TRUE(part);
      ASSERT_GT(*part, 0u);
      got += *part;
    }
    EXPECT_EQ(in, out);
    socket.abort();  // no TIME-WAIT here: 64 places are enough
  }
}

TEST_F(PeerTest, a_guest_killed_in_mid_stream_is_followed_by_the_next) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer allows no new thread in the child of a threaded process; "
                  "tests/system does the same with processes of their own";
#endif
  start();
  for (int i = 0; i < 2; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      StackOptions options = guest_options();
      options.drive = Drive::inline_drive;  // no threads in a child of a process with threads
      auto stack = Stack::open(options);
      if (!stack) ::_exit(1);
      auto socket = (*stack)->tcp_connect({kPeer, Peer::kSourcePort}, 5s);
      if (!socket) ::_exit(2);
      ByteVector in(1 << 16);
      for (;;) static_cast<void>(socket->recv(in));
    }
    const uint64_t before = count("backend.guest_rx_bytes");
    for (int n = 0; n < 5000 && count("backend.guest_rx_bytes") < before + (4 << 20); ++n) {
      ::usleep(1000);
    }
    EXPECT_GE(count("backend.guest_rx_bytes"), before + (4 << 20));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
  }
  const auto stack = open_guest();
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, Peer::kEchoPort);
  ASSERT_TRUE(socket.is_open());
  echo(socket, 1 << 20, 3);
}

// As the program runs it, in a process of its own behind its filter.
TEST_F(PeerTest, TM87_serves_two_guests_behind_the_system_call_filter) {
  const pid_t child = ::fork();
  if (child == 0) {
    options_.isolate = true;
    auto backend = open_backend(options_);
    if (!backend) ::_exit(4);
    std::stop_source stop;
    std::thread([&stop] {
      ::sleep(30);
      stop.request_stop();
    }).detach();
    ::_exit((*backend)->run(stop.get_token()) ? 0 : 3);
  }
  for (int n = 0; n < 5000 && !std::filesystem::exists(options_.sockets[0]); ++n) ::usleep(1000);
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    const auto stack = open_guest();
    ASSERT_NE(stack, nullptr);
    TcpSocket socket = connect(*stack, Peer::kEchoPort);
    ASSERT_TRUE(socket.is_open());
    echo(socket, 4 << 20, 9);
    // Its memory is closed to others of the same user (not to root).
    if (::geteuid() != 0) {
      EXPECT_LT(::open(("/proc/" + std::to_string(child) + "/mem").c_str(), O_RDONLY), 0);
    }
  }
  EXPECT_EQ(::kill(child, 0), 0);  // alive
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

}  // namespace
}  // namespace nobounce::backend::test
