// Whole guests on one back-end with the switch between them.
#include "backend/switch.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "backend/backend.hpp"
#include "base/log.hpp"
#include "guest_driver.hpp"
#include "nobounce/stack.hpp"

namespace nobounce::backend::test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kTransfer = 8 << 20;

class SwitchTest : public testing::Test {
 protected:
  SwitchTest() {
    set_log_level(LogLevel::quiet);
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
    options_.sockets = {directory_ + "/a.sock", directory_ + "/b.sock"};
    options_.net = "link";
  }
  ~SwitchTest() override {
    guests_.clear();
    if (thread_.joinable()) {
      thread_.request_stop();
      thread_.join();
      EXPECT_TRUE(result_);
    }
    if (backend_ != nullptr) {
      EXPECT_EQ(count("backend.disconnections"), count("backend.connections"));
    }
    backend_.reset();
    set_log_level(LogLevel::info);
    std::filesystem::remove_all(directory_);
  }
  void start() {
    auto opened = open_backend(options_);
    ASSERT_TRUE(opened) << opened.error().to_string();
    backend_ = std::move(*opened);
    thread_ = std::jthread([this](std::stop_token token) { result_ = backend_->run(token); });
  }
  [[nodiscard]] static IpAddress address_of(size_t guest) {
    return IpAddress::v4(10, 77, 0, static_cast<uint8_t>(10 + guest));
  }
  // Guest n, on the first or the second socket.
  Stack& add_guest(size_t n, size_t socket = 0) {
    StackOptions options;
    options.net = "vhost-user:" + options_.sockets[socket];
    options.address = {address_of(n), 24};
    options.pool_bytes = 16 << 20;
    options.private_bytes = 16 << 20;
    options.queue_size = 256;
    options.connections_max = 64;
    options.send_buffer = 1 << 20;
    options.receive_buffer = 1 << 20;
    auto stack = Stack::open(options);
    EXPECT_TRUE(stack) << stack.error().to_string();
    guests_.push_back(std::move(*stack));
    return *guests_.back();
  }
  [[nodiscard]] uint64_t count(const std::string& name) const {
    return backend_->registry().value(name);
  }

  std::string directory_;
  BackendOptions options_;
  std::unique_ptr<Backend> backend_;
  std::jthread thread_;
  Result<void> result_;
  std::vector<std::unique_ptr<Stack>> guests_;
};

// `bytes` from one stack to the other over TCP; every byte is checked.
void transfer(Stack& from, Stack& to, const IpAddress& address, uint16_t port, size_t bytes) {
  auto listener = to.tcp_listen({address, port});
  ASSERT_TRUE(listener);
  std::jthread sender([&from, address, port, bytes] {
    auto socket = from.tcp_connect({address, port}, 10s);
    ASSERT_TRUE(socket) << static_cast<int>(socket.error());
    socket->set_send_timeout(20s);
    ByteVector out(60'000);
    for (size_t at = 0; at < bytes;) {
      const size_t part = std::min(out.size(), bytes - at);
      for (size_t i = 0; i < part; ++i) out[i] = pattern(port, at + i);
      const auto sent = socket->send(Bytes(out).first(part));
      ASSERT_TRUE(sent) << static_cast<int>(sent.error());
      at += *sent;
    }
    EXPECT_TRUE(socket->shutdown(Shutdown::send));
    socket->set_receive_timeout(20s);
    std::array<std::byte, 16> rest;
    const auto end = socket->recv(rest);  // the other side has taken everything
    EXPECT_TRUE(end && *end == 0);
  });
  auto socket = listener->accept(10s);
  ASSERT_TRUE(socket);
  socket->set_receive_timeout(20s);
  ByteVector in(1 << 16);
  size_t at = 0;
  for (;;) {
    const auto got = socket->recv(in);
    ASSERT_TRUE(got) << "after " << at << ": " << static_cast<int>(got.error());
    if (*got == 0) break;
    for (size_t i = 0; i < *got; ++i) {
      if (in[i] == pattern(port, at + i)) continue;
      FAIL() << "byte " << at + i << " differs";
    }
    at += *got;
  }
  EXPECT_EQ(at, bytes);
}

TEST_F(SwitchTest, two_guests_on_two_sockets_are_a_wire) {
  start();
  Stack& a = add_guest(0, 0);
  Stack& b = add_guest(1, 1);
  EXPECT_NE(a.mac(), b.mac());
  ASSERT_TRUE(a.ping(address_of(1), 1, 1000, 5s));
  transfer(a, b, address_of(1), 5001, kTransfer);
  transfer(b, a, address_of(0), 5002, kTransfer);
  EXPECT_EQ(count("switch.drop.queue_full"), 0u);  // a wire holds back, it does not drop
  EXPECT_EQ(count("switch.ports"), 2u);
}

TEST_F(SwitchTest, three_guests_on_one_socket_and_all_pairs_at_once) {
  start();
  for (size_t i = 0; i < 3; ++i) add_guest(i);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(guests_[i]->ping(address_of((i + 1) % 3), 1, 100, 5s)) << i;
  }
  {
    std::vector<std::jthread> transfers;
    for (size_t i = 0; i < 3; ++i) {
      transfers.emplace_back([this, i] {
        const size_t to = (i + 1) % 3;
        transfer(*guests_[i], *guests_[to], address_of(to), static_cast<uint16_t>(6000 + i),
                 kTransfer);
      });
    }
  }
  EXPECT_GT(count("switch.flooded"), 0u);  // the first frames
  // Learnt: what goes from one guest to another does not come by the third.
  EXPECT_LT(count("switch.flooded"), count("switch.frames") / 100);
}

TEST_F(SwitchTest, a_guest_that_leaves_and_one_that_comes_do_not_disturb_others) {
  start();
  Stack& a = add_guest(0);
  Stack& b = add_guest(1);
  std::jthread traffic([&] {
    for (uint16_t round = 0; round < 5; ++round) {
      transfer(a, b, address_of(1), static_cast<uint16_t>(7000 + round), kTransfer);
    }
  });
  for (size_t i = 0; i < 10; ++i) {
    StackOptions options;
    options.net = "vhost-user:" + options_.sockets[0];
    options.address = {address_of(2), 24};
    options.pool_bytes = 8 << 20;
    options.private_bytes = 8 << 20;
    options.queue_size = 128;
    auto third = Stack::open(options);
    ASSERT_TRUE(third) << third.error().to_string();
    EXPECT_TRUE((*third)->ping(address_of(0), static_cast<uint16_t>(i), 100, 5s)) << i;
  }
  traffic.join();
  EXPECT_EQ(count("switch.ports"), 2u);
}

TEST_F(SwitchTest, one_guest_alone_costs_nothing_and_loses_only_its_own) {
  start();
  Stack& a = add_guest(0);
  EXPECT_FALSE(a.ping(address_of(1), 1, 100, 300ms));
  EXPECT_GT(count("switch.drop.nobody_there"), 0u);
  // Who comes later is found.
  add_guest(1);
  EXPECT_TRUE(a.ping(address_of(1), 2, 100, 5s));
}

}  // namespace
}  // namespace nobounce::backend::test
