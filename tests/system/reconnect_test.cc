// `--on-disconnect wait` with real processes: back-ends are killed and come back, connections go on.
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstdio>
#include <random>

#include "backend_process.hpp"
#include "base/log.hpp"
#include "base/random.hpp"

namespace nobounce::test {
namespace {

using Time = std::chrono::steady_clock;

// Waits until `ready()`, at most `limit`.
template <class Ready>
[[nodiscard]] bool eventually(Ready ready, std::chrono::nanoseconds limit) {
  for (const auto end = Time::now() + limit; Time::now() < end;) {
    if (ready()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return ready();
}

struct ReconnectTest : SystemTest {
  explicit ReconnectTest(std::vector<std::string> words = {"--net", "link"})
      : SystemTest(std::move(words)) {
    set_log_level(LogLevel::quiet);
  }
  ~ReconnectTest() override { set_log_level(LogLevel::warning); }

  [[nodiscard]] std::unique_ptr<Stack> guest(uint8_t number, const std::string& more = "") const {
    StackOptions asked = options(Mode::nocopy);
    asked.net += more;
    asked.address = {IpAddress::v4(10, 77, 0, number), 24};
    asked.on_disconnect = OnDisconnect::wait;
    auto stack = Stack::open(asked);
    EXPECT_TRUE(stack) << stack.error().to_string();
    return stack ? std::move(*stack) : nullptr;
  }
  void kill_backend() {
    backend->kill(SIGKILL);
    backend.reset();
  }
  static bool is_waiting(const Stack& stack) { return stack.counter("reconnect.waiting") == 1; }
  static void expect_no_failure(const Stack& stack) {
    EXPECT_FALSE(stack.failure().has_value()) << stack.failure().value_or("");
  }
};

// One direction of a connection: a sender that goes on until it is told to end, and a receiver that checks
// every byte.
class Transfer {
 public:
  Transfer(TcpSocket from, TcpSocket to, uint64_t seed)
      : from_(std::move(from)), to_(std::move(to)), seed_(seed) {
    receiver_ = std::thread([this] { receive(); });
    sender_ = std::thread([this] { send(); });
  }
  ~Transfer() { finish(); }
  void finish() {
    stop_ = true;
    if (sender_.joinable()) sender_.join();
    if (receiver_.joinable()) receiver_.join();
  }
  [[nodiscard]] uint64_t sent() const { return sent_; }
  [[nodiscard]] uint64_t received() const { return received_; }
  [[nodiscard]] std::chrono::nanoseconds longest_stall() const { return longest_; }
  [[nodiscard]] bool has_failed() const { return failed_; }

 private:
  void send() {
    std::vector<std::byte> chunk(50'021);
    while (!stop_) {
      fill_letters(chunk, seed_, sent_);
      const auto taken = from_.send(chunk);
      if (!taken) {
        ADD_FAILURE() << "send: " << static_cast<int>(taken.error());
        failed_ = true;
        break;
      }
      sent_ += *taken;
    }
    EXPECT_TRUE(from_.shutdown(Shutdown::send).has_value());
  }
  void receive() {
    std::vector<std::byte> buffer(1 << 16);
    auto last = Time::now();
    for (;;) {
      const auto taken = to_.recv(buffer);
      if (!taken) {
        ADD_FAILURE() << "recv: " << static_cast<int>(taken.error());
        failed_ = true;
        break;
      }
      if (*taken == 0) break;
      size_t wrong = 0;
      for (size_t i = 0; i < *taken; ++i) wrong += buffer[i] != letter(seed_, received_ + i);
      EXPECT_EQ(wrong, 0u) << "after " << received_;
      received_ += *taken;
      const auto now = Time::now();
      longest_ = std::max(longest_.load(), now - last);
      last = now;
    }
  }

  TcpSocket from_, to_;
  const uint64_t seed_;
  std::atomic<bool> stop_{false}, failed_{false};
  std::atomic<uint64_t> sent_{0}, received_{0};
  std::atomic<Time::duration> longest_{Time::duration::zero()};
  std::thread sender_, receiver_;
};

struct TransfersTest : ReconnectTest {
  static constexpr uint16_t kPort = 5000;

  void SetUp() override {
    left = guest(2);
    right = guest(3);
    ASSERT_TRUE(left && right);
    listener = std::move(*right->tcp_listen({IpAddress::v4(0, 0, 0, 0), kPort}));
    for (uint64_t i = 0; i < 3; ++i) {
      auto near = left->tcp_connect({IpAddress::v4(10, 77, 0, 3), kPort}, 5s);
      ASSERT_TRUE(near);
      auto far = listener.accept(5s);
      ASSERT_TRUE(far);
      for (TcpSocket* socket : {&*near, &*far}) {
        socket->set_send_timeout(60s);
        socket->set_receive_timeout(60s);
      }
      if (i == 2) std::swap(*near, *far);
      transfers.push_back(std::make_unique<Transfer>(std::move(*near), std::move(*far), i));
    }
  }
  // Killed, absent for that long, and back: then every transfer moves again.
  void restart_after(std::chrono::milliseconds outage) {
    const uint64_t times = left->counter("reconnect.count");
    kill_backend();
    ASSERT_TRUE(eventually([&] { return is_waiting(*left) && is_waiting(*right); }, 1s));
    std::this_thread::sleep_for(outage);
    const auto start = Time::now();
    start_backend();
    ASSERT_TRUE(eventually(
        [&] {
          return left->counter("reconnect.count") > times && !is_waiting(*left) &&
                 !is_waiting(*right);
        },
        10s));
    const auto linked = Time::now();
    std::vector<uint64_t> before;
    for (const auto& transfer : transfers) before.push_back(transfer->received());
    for (size_t i = 0; i < transfers.size(); ++i) {
      ASSERT_TRUE(eventually(
          [&] {
            return transfers[i]->received() > before[i] + 100'000 || transfers[i]->has_failed();
          },
          15s))
          << "transfer " << i;
      ASSERT_FALSE(transfers[i]->has_failed());
    }
    to_link = std::max(to_link, linked - start);
    to_data = std::max(to_data, Time::now() - linked);
  }
  void finish_and_check() {
    for (auto& transfer : transfers) {
      transfer->finish();
      EXPECT_EQ(transfer->sent(), transfer->received());
      RecordProperty("longest_stall_ms", static_cast<int>(transfer->longest_stall() / 1ms));
      std::printf("    %.1f MB, longest stall %.3f s\n",
                  static_cast<double>(transfer->received()) / 1e6,
                  std::chrono::duration<double>(transfer->longest_stall()).count());
    }
    std::printf("    back-end started to link up: at most %.3f s; link up to data on all: %.3f s\n",
                std::chrono::duration<double>(to_link).count(),
                std::chrono::duration<double>(to_data).count());
    expect_no_failure(*left);
    expect_no_failure(*right);
    transfers.clear();
    listener = {};
    // The destructors assert that every page, packet and connection came home.
    left.reset();
    right.reset();
  }

  std::unique_ptr<Stack> left, right;
  TcpListener listener;
  std::vector<std::unique_ptr<Transfer>> transfers;
  Time::duration to_link{}, to_data{};
};

TEST_F(TransfersTest, C058_transfers_survive_twenty_kills_at_random_points) {
  const uint64_t seed = std::random_device{}();
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  SeededRandom random(seed);
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(400)));
    restart_after(100ms);
    if (HasFatalFailure()) return;
  }
  finish_and_check();
}

TEST_F(TransfersTest, C058_an_outage_of_two_seconds) {
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_for(200ms);
    restart_after(2s);
    if (HasFatalFailure()) return;
  }
  EXPECT_LE(left->counter("reconnect.attempts"), 40u);
  finish_and_check();
}

// A back-end that dies again before the guests are settled: they are only ever later, never lost.
TEST_F(TransfersTest, TM33_killed_again_while_they_come_back) {
  for (int i = 0; i < 10; ++i) {
    kill_backend();
    start_backend();
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * i));
  }
  restart_after(100ms);
  if (HasFatalFailure()) return;
  finish_and_check();
}

TEST_F(ReconnectTest, a_guest_is_killed_and_the_next_one_is_served) {
  auto stays = guest(2);
  ASSERT_NE(stays, nullptr);
  for (int round = 0; round < 3; ++round) {
    {
      Child other({kProgram, "perf", "--net", "vhost-user:" + socket_path, "--ip", "10.77.0.9/24",
                   "--server", "--on-disconnect", "wait"});
      ASSERT_TRUE(eventually(
          [&] { return stays->ping(IpAddress::v4(10, 77, 0, 9), 1, 56, 100ms).has_value(); }, 5s));
      other.kill(SIGKILL);
    }
    auto next = guest(3);
    ASSERT_NE(next, nullptr);
    EXPECT_TRUE(next->ping(IpAddress::v4(10, 77, 0, 2), 1, 56, 5s).has_value());
  }
  EXPECT_EQ(stays->counter("reconnect.attempts"), 0u);
  expect_no_failure(*stays);
}

// Sends so many bytes to an echo and compares what comes back; how many were right.
uint64_t echo(TcpSocket& socket, uint64_t seed, uint64_t bytes) {
  std::thread sender([&] {
    std::vector<std::byte> chunk(50'021);
    for (uint64_t sent = 0; sent < bytes;) {
      fill_letters(chunk, seed, sent);
      const auto taken = socket.send(Bytes(chunk).first(std::min(chunk.size(), bytes - sent)));
      if (!taken) return;
      sent += *taken;
    }
    (void)socket.shutdown(Shutdown::send);
  });
  std::vector<std::byte> buffer(1 << 16);
  uint64_t right = 0;
  for (;;) {
    const auto taken = socket.recv(buffer);
    if (!taken || *taken == 0) break;
    for (size_t i = 0; i < *taken; ++i) right += buffer[i] == letter(seed, right);
  }
  sender.join();
  return right;
}

// The back-end and the other guest live on: twenty times the new one carries three transfers to their
// end, and dies under the next three.
TEST_F(ReconnectTest, C058_a_guest_is_killed_under_three_transfers_and_comes_back) {
  constexpr uint64_t kBytes = 4 << 20;
  constexpr IpAddress kAddress = IpAddress::v4(10, 77, 0, 9);
  const uint64_t seed = std::random_device{}();
  std::printf("    seed %llu\n", static_cast<unsigned long long>(seed));
  SeededRandom random(seed);
  auto stays = guest(2);
  ASSERT_NE(stays, nullptr);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    Child other({kProgram, "perf", "--net", "vhost-user:" + socket_path, "--ip", "10.77.0.9/24",
                 "--server"});
    ASSERT_TRUE(eventually([&] { return stays->ping(kAddress, 1, 56, 100ms).has_value(); }, 5s));
    for (const bool is_killed : {false, true}) {
      std::vector<TcpSocket> sockets(3);
      std::vector<std::thread> transfers;
      std::atomic<uint64_t> right{0};
      for (TcpSocket& socket : sockets) {
        SocketResult<TcpSocket> made = std::unexpected(std::errc::connection_refused);
        // It answers pings before it listens.
        ASSERT_TRUE(eventually(
            [&] {
              made = stays->tcp_connect({kAddress, kEcho}, 5s);
              return made.has_value() || made.error() != std::errc::connection_refused;
            },
            5s));
        ASSERT_TRUE(made) << static_cast<int>(made.error());
        socket = std::move(*made);
        socket.set_send_timeout(is_killed ? 300ms : 60s);  // nobody is there to answer
        socket.set_receive_timeout(is_killed ? 300ms : 60s);
      }
      for (TcpSocket& socket : sockets) {
        transfers.emplace_back([&, is_killed] {
          right += echo(socket, seed, is_killed ? uint64_t{1} << 40 : kBytes);
        });
      }
      if (is_killed) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random.below(100)));
        other.kill(SIGKILL);
      }
      for (std::thread& transfer : transfers) transfer.join();
      if (!is_killed) {
        ASSERT_EQ(right, 3 * kBytes);
      }
    }
  }
  expect_no_failure(*stays);
  EXPECT_EQ(stays->counter("reconnect.attempts"), 0u);
}

// ---- waiting ------------------------------------------------------------------------------------

TEST_F(ReconnectTest, closing_a_stack_that_waits_is_prompt) {
  for (const std::string role : {"client", "server"}) {
    SCOPED_TRACE(role);
    std::unique_ptr<Stack> stack;
    std::unique_ptr<Child> other;
    if (role == "client") {
      stack = guest(2);
      kill_backend();
    } else {
      other = std::make_unique<Child>(std::vector<std::string>{
          kProgram, "backend", "--client", "--socket", directory + "/reverse.sock"});
      StackOptions asked = options(Mode::nocopy);
      asked.net = "vhost-user:" + directory + "/reverse.sock,server";
      asked.on_disconnect = OnDisconnect::wait;
      auto opened = Stack::open(asked);
      ASSERT_TRUE(opened) << opened.error().to_string();
      stack = std::move(*opened);
      other->kill(SIGKILL);
    }
    ASSERT_TRUE(eventually([&] { return is_waiting(*stack); }, 1s));
    std::this_thread::sleep_for(300ms);
    const auto start = Time::now();
    stack.reset();
    EXPECT_LT(Time::now() - start, 500ms);
  }
}

TEST_F(ReconnectTest, a_program_that_waits_ends_at_once_when_it_is_asked) {
  for (const std::string role : {"--server", "--client=10.77.0.2"}) {
    SCOPED_TRACE(role);
    if (backend == nullptr) start_backend();
    auto far = guest(2);
    auto listener = far->tcp_listen({IpAddress::v4(0, 0, 0, 0), 9});
    Child program({kProgram, "perf", "--net", "vhost-user:" + socket_path, "--ip", "10.77.0.9/24",
                   role, "--on-disconnect", "wait"});
    ASSERT_TRUE(eventually(
        [&] { return far->ping(IpAddress::v4(10, 77, 0, 9), 1, 56, 100ms).has_value(); }, 5s));
    TcpSocket socket;
    if (role != "--server") {  // it is sending: the first byte is here, and more than fits follows
      auto accepted = listener->accept(20s);
      ASSERT_TRUE(accepted);
      socket = std::move(*accepted);
      socket.set_receive_timeout(60s);
      std::byte byte{};
      ASSERT_EQ(socket.recv({&byte, 1}), 1u);
    }
    kill_backend();
    ASSERT_TRUE(eventually([&] { return is_waiting(*far); }, 1s));
    std::this_thread::sleep_for(500ms);
    EXPECT_TRUE(program.is_running());
    const auto start = Time::now();
    program.kill(SIGINT);
    EXPECT_LT(Time::now() - start, 2s);
  }
}

// A server that takes connections and talks nonsense, or nothing at all.
class GarbageServer {
 public:
  GarbageServer(const std::string& path, bool is_silent) {
    ::unlink(path.c_str());
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    thread_ = std::thread([this, is_silent] {
      for (int fd = -1; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        ++accepted;
        if (!is_silent) (void)::send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
        is_silent ? open_.push_back(fd) : void(::close(fd));
      }
    });
  }
  ~GarbageServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    for (const int fd : open_) ::close(fd);
  }
  std::atomic<int> accepted{0};

 private:
  int listener_ = -1;
  std::vector<int> open_;
  std::thread thread_;
};

TEST_F(ReconnectTest, TM25_a_server_of_nonsense_is_asked_again_without_spinning) {
  auto stack = guest(2);
  ASSERT_NE(stack, nullptr);
  for (const bool is_silent : {false, true}) {
    SCOPED_TRACE(is_silent);
    kill_backend();
    {
      GarbageServer garbage(socket_path, is_silent);
      std::this_thread::sleep_for(4s);
      EXPECT_GE(garbage.accepted, 3);
      EXPECT_LE(garbage.accepted, 12);
      EXPECT_TRUE(is_waiting(*stack));
    }
    start_backend();
    EXPECT_TRUE(eventually([&] { return !is_waiting(*stack); }, 10s));
    auto other = guest(3);
    EXPECT_TRUE(other->ping(IpAddress::v4(10, 77, 0, 2), 1, 56, 5s).has_value());
  }
  expect_no_failure(*stack);
}

TEST_F(ReconnectTest, C136_waiting_costs_next_to_nothing) {
  auto left = guest(2), right = guest(3);
  ASSERT_TRUE(left && right);
  auto listener = right->tcp_listen({IpAddress::v4(0, 0, 0, 0), 9});
  ASSERT_TRUE(listener);
  auto socket = left->tcp_connect({IpAddress::v4(10, 77, 0, 3), 9}, 5s);
  ASSERT_TRUE(socket);
  kill_backend();
  ASSERT_TRUE(eventually([&] { return is_waiting(*left) && is_waiting(*right); }, 1s));
  std::vector<std::byte> chunk(100'000);
  ASSERT_TRUE(socket->send(chunk).has_value());
  std::this_thread::sleep_for(200ms);
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(2s);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  EXPECT_LT(used, 0.4);  // of two stacks
  std::printf("    %.3f s of CPU in 2 s\n", used);
  // What was sent and never acknowledged does not hold up the end over a link that is down.
  socket->close();
  const auto start = Time::now();
  left.reset();
  EXPECT_LT(Time::now() - start, 500ms);
}

TEST_F(ReconnectTest, closing_in_the_middle_of_a_handshake_is_prompt) {
  auto stack = guest(2);
  ASSERT_NE(stack, nullptr);
  kill_backend();
  GarbageServer garbage(socket_path, true);
  ASSERT_TRUE(eventually([&] { return garbage.accepted > 0; }, 3s));
  const auto start = Time::now();
  stack.reset();
  EXPECT_LT(Time::now() - start, 300ms);
}

// ---- who comes back -----------------------------------------------------------------------------

struct ReconnectPeerTest : ReconnectTest {
  ReconnectPeerTest() : ReconnectTest({"--mtu", "1500"}) {}
};

TEST_F(ReconnectPeerTest, C113_sockets_of_before_and_after) {
  auto stack = guest(2);
  ASSERT_NE(stack, nullptr);
  auto udp = stack->udp_bind();
  ASSERT_TRUE(udp);
  TcpSocket old = connect(*stack, kEcho);
  kill_backend();
  ASSERT_TRUE(eventually([&] { return is_waiting(*stack); }, 1s));
  const auto failed = stack->ping(kPeer, 1, 56, 200ms);
  EXPECT_FALSE(failed.has_value());
  start_backend();
  ASSERT_TRUE(eventually([&] { return !is_waiting(*stack); }, 10s));
  EXPECT_TRUE(stack->ping(kPeer, 2, 56, 5s).has_value());
  // The peer's connections died with it: ours spoke up when the link came back, and is told.
  std::byte byte{'x'};
  const auto answer = old.recv({&byte, 1});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error(), std::errc::connection_reset);
  TcpSocket fresh = connect(*stack, kEcho);
  ASSERT_TRUE(fresh.send({&byte, 1}).has_value());
  EXPECT_EQ(fresh.recv({&byte, 1}), 1u);
}

TEST_F(ReconnectPeerTest, TM28_a_smaller_mtu_fails_the_device) {
  auto stack = guest(2);
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, kEcho);
  kill_backend();
  backend_words = {"--mtu", "1400"};
  start_backend();
  std::byte byte{};
  const auto answer = socket.recv({&byte, 1});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error(), std::errc::network_down);
  ASSERT_TRUE(stack->failure().has_value());
  EXPECT_NE(stack->failure()->find("poorer"), std::string::npos) << *stack->failure();
  EXPECT_NE(stack->failure()->find("1400"), std::string::npos) << *stack->failure();
}

TEST_F(ReconnectTest, C119_as_the_server_of_the_socket) {
  const std::string path = directory + "/reverse.sock";
  const std::vector<std::string> words{kProgram, "backend", "--client", "--socket", path};
  auto other = std::make_unique<Child>(words);
  StackOptions asked = options(Mode::nocopy);
  asked.net = "vhost-user:" + path + ",server";
  asked.on_disconnect = OnDisconnect::wait;
  auto opened = Stack::open(asked);
  ASSERT_TRUE(opened) << opened.error().to_string();
  Stack& stack = **opened;
  EXPECT_TRUE(stack.ping(kPeer, 1, 56, 5s).has_value());
  for (int i = 0; i < 3; ++i) {
    other->kill(SIGKILL);
    ASSERT_TRUE(eventually([&] { return is_waiting(stack); }, 1s));
    other = std::make_unique<Child>(words);
    ASSERT_TRUE(eventually([&] { return !is_waiting(stack); }, 10s));
    EXPECT_TRUE(stack.ping(kPeer, 1, 56, 5s).has_value());
  }
}

}  // namespace
}  // namespace nobounce::test
