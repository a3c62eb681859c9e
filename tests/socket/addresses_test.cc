// Several addresses of one stack, and connections of a stack with itself (N-1, N-9).
#include <gtest/gtest.h>

#include <thread>

#include "nobounce/stack.hpp"
#include "socket/stack_pair.hpp"
#include "support/backend_thread.hpp"
#include "support/guest.hpp"

namespace nobounce::test {
namespace {

using namespace std::chrono_literals;

const IpAddress kFirst = IpAddress::v4(10, 0, 0, 1);  // of the left stack
const IpAddress kOther = IpAddress::v4(10, 9, 0, 1);

StackOptions two_addresses() {
  StackOptions options;
  options.more_addresses = {{kOther, 24}};
  return options;
}

// The right stack must not have the second address: it gets one of its own.
struct TwoAddressPair {
  TwoAddressPair() {
    pair.left.reset();
    pair.left = pair.open(two_addresses(), 0);
  }
  StackPair pair;
};

TEST(Addresses, N9_a_stack_talks_to_itself) {
  TwoAddressPair two;
  Stack& stack = *two.pair.left;
  for (const auto& [listen_at, local] :
       {std::pair{kFirst, IpAddress()}, std::pair{kOther, IpAddress()},
        std::pair{kOther, kFirst}}) {
    auto listener = stack.tcp_listen({listen_at, 80});
    ASSERT_TRUE(listener);
    auto client = stack.tcp_connect({listen_at, 80}, 5s, {local, 0});
    ASSERT_TRUE(client) << listen_at.to_string();
    auto server = listener->accept(5s);
    ASSERT_TRUE(server);
    EXPECT_EQ(client->local().address, local.is_any() ? listen_at : local);
    EXPECT_EQ(server->remote(), client->local());
    constexpr size_t kBytes = 3 << 20;
    std::thread writer([&] {
      std::vector<std::byte> data(kBytes);
      fill_pattern(data, 7, 0);
      EXPECT_EQ(client->send(data), kBytes);
      EXPECT_TRUE(client->shutdown(Shutdown::send));
    });
    size_t got = 0;
    std::vector<std::byte> buffer(100'000);
    for (;;) {
      const auto part = server->recv(buffer);
      ASSERT_TRUE(part);
      if (*part == 0) break;
      for (size_t i = 0; i < *part; ++i) ASSERT_EQ(buffer[i], pattern(7, got + i));
      got += *part;
    }
    writer.join();
    EXPECT_EQ(got, kBytes);
  }
  EXPECT_EQ(stack.counter("tcp.bad_checksum"), 0U);
  EXPECT_EQ(stack.tcp_connect({kOther, 81}, 5s).error(), std::errc::connection_refused);
}

TEST(Addresses, N9_datagrams_to_itself_up_to_the_largest) {
  TwoAddressPair two;
  Stack& stack = *two.pair.left;
  auto a = stack.udp_bind({kFirst, 5000});
  auto b = stack.udp_bind({kOther, 6000});
  ASSERT_TRUE(a && b);
  b->set_receive_timeout(5s);
  std::vector<std::byte> buffer(65'507);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1472}, size_t{1473}, size_t{65'507}}) {
    std::vector<std::byte> data(size);
    fill_pattern(data, size, 0);
    ASSERT_EQ(a->send_to(data, {kOther, 6000}), size);
    const auto got = b->recv_from(buffer);
    ASSERT_TRUE(got) << size;
    EXPECT_EQ(got->bytes, size);
    EXPECT_EQ(got->from, (Endpoint{kFirst, 5000}));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), buffer.begin()));
  }
  EXPECT_TRUE(stack.ping(kOther, 1, 3000, 5s));
}

TEST(Addresses, N9_an_address_of_ones_own_may_be_chosen_another_may_not) {
  TwoAddressPair two;
  Stack& left = *two.pair.left;
  auto listener = two.pair.right->tcp_listen(right_endpoint(80));
  ASSERT_TRUE(listener);
  auto client = left.tcp_connect(right_endpoint(80), 5s, {kFirst, 4444});
  ASSERT_TRUE(client);
  auto server = listener->accept(5s);
  ASSERT_TRUE(server);
  EXPECT_EQ(server->remote(), (Endpoint{kFirst, 4444}));
  const IpAddress foreign = IpAddress::v4(10, 0, 0, 77);
  EXPECT_EQ(left.tcp_connect(right_endpoint(80), 5s, {foreign, 0}).error(),
            std::errc::address_not_available);
  EXPECT_EQ(left.tcp_listen({foreign, 80}).error(), std::errc::address_not_available);
  EXPECT_EQ(left.udp_bind({foreign, 80}).error(), std::errc::address_not_available);
  EXPECT_TRUE(left.tcp_listen({kOther, 80}));
  EXPECT_TRUE(left.udp_bind({kOther, 80}));
}

// A socket's own queue is bounded by what its datagrams hold back, not by how they are cut.
TEST(Addresses, TM67_datagrams_to_itself_count_as_whole_blocks) {
  TwoAddressPair two;
  Stack& stack = *two.pair.left;
  auto a = stack.udp_bind({kFirst, 5000});
  auto b = stack.udp_bind({kOther, 6000});
  ASSERT_TRUE(a && b);
  const std::vector<std::byte> data(65'507);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(a->send_to(data, {kOther, 6000}));
  ASSERT_TRUE(stack.ping(kOther, 1, 8, 5s));                            // comes after them
  EXPECT_EQ(stack.counter("shard.0.limit.udp_queue_full"), 40U - 16U);  // 64 KiB each of 1 MiB
  b->set_receive_timeout(5s);
  std::vector<std::byte> buffer(65'507);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < (round == 0 ? 16 : 4); ++i) ASSERT_TRUE(b->recv_from(buffer));
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(a->send_to(data, {kOther, 6000}));
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(b->recv_from(buffer));
  EXPECT_EQ(stack.counter("shard.0.limit.udp_queue_full"), 40U - 16U);
}

TEST(Addresses, T10_a_port_connected_to_itself) {
  TwoAddressPair two;
  auto socket = two.pair.left->tcp_connect({kFirst, 4444}, 5s, {kFirst, 4444});
  ASSERT_TRUE(socket);
  const std::vector<std::byte> data(3000, std::byte{7});
  ASSERT_EQ(socket->send(data), data.size());
  EXPECT_TRUE(socket->shutdown(Shutdown::send));
  socket->set_receive_timeout(5s);
  std::vector<std::byte> buffer(4000);
  size_t got = 0;
  for (;;) {
    const auto part = socket->recv(buffer);
    ASSERT_TRUE(part);
    if (*part == 0) break;
    got += *part;
  }
  EXPECT_EQ(got, data.size());
}

using WithBackEnd = BackendThread;

TEST_F(WithBackEnd, NC46_what_stays_inside_never_lies_in_shared_memory) {
  start();
  StackOptions options = guest_options(options_.sockets.front(), Mode::nocopy, 8 << 20, 64);
  options.more_addresses = {{kOther, 24}};
  auto stack = open_stack(options);
  ASSERT_TRUE(stack);
  auto listener = stack->tcp_listen({kOther, 80});
  auto client = stack->tcp_connect({kOther, 80}, 5s);
  ASSERT_TRUE(listener && client);
  auto server = listener->accept(5s);
  auto a = stack->udp_bind({{}, 5000});
  auto b = stack->udp_bind({kOther, 6000});
  ASSERT_TRUE(server && a && b);
  b->set_receive_timeout(5s);
  const std::vector<std::byte> data(20'000, std::byte{7});
  std::vector<std::byte> buffer(data.size());
  for (TcpSocket* from : {&*client, &*server}) {  // both ends are ours
    TcpSocket& to = from == &*client ? *server : *client;
    ASSERT_EQ(from->send(data), data.size());
    for (size_t got = 0; got < data.size();) {
      const auto part = to.recv(buffer);
      ASSERT_TRUE(part);
      got += *part;
    }
  }
  for (const size_t bytes : {size_t{100}, data.size()}) {
    ASSERT_TRUE(a->send_to(std::span(data).first(bytes), {kOther, 6000}));
    ASSERT_TRUE(b->recv_from(buffer));
  }
  EXPECT_EQ(stack->counter("socket.refill.nocopy"), 0U);
  EXPECT_EQ(stack->counter("socket.refill.private"), 3U);
  EXPECT_EQ(stack->counter("copy.io.local_bytes"), 2 * data.size() + 100 + data.size());
  // The same socket, to the outside and back: neither uses what is left of the other's block.
  ASSERT_TRUE(a->send_to(std::span(data).first(100), {kPeer, 7}));
  EXPECT_EQ(stack->counter("socket.refill.nocopy"), 1U);
  ASSERT_TRUE(a->send_to(std::span(data).first(100), {kOther, 6000}));
  EXPECT_EQ(stack->counter("socket.refill.nocopy"), 1U);
  EXPECT_EQ(stack->counter("socket.refill.private"), 3U);
}

TEST(Addresses, set_up_says_what_is_wrong) {
  const auto refused = [](auto change) {
    StackOptions options;
    options.address = *IpPrefix::parse("10.77.0.2/24");
    change(options);
    auto stack = StackSetUp::open_on(options, [](auto) -> Result<std::unique_ptr<NetDevice>> {
      return fail(std::errc::no_such_device, "make the device", "there is none", "");
    });
    return stack ? std::string() : stack.error().to_string();
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refused([](StackOptions&) {}), "there is none");  // right so far
  has(refused([](StackOptions& o) { o.more_addresses = {*IpPrefix::parse("10.77.0.2/16")}; }),
      "10.77.0.2 is given twice");
  has(refused([](StackOptions& o) { o.address = *IpPrefix::parse("127.0.0.2/8"); }),
      "127.0.0.2/8 is no address to have");
  has(refused([](StackOptions& o) { o.address = *IpPrefix::parse("10.77.0.255/24"); }),
      "10.77.0.255 is the broadcast address of 10.77.0.255/24");
  has(refused([](StackOptions& o) { o.more_addresses = {*IpPrefix::parse("10.77.0.255/16")}; }),
      "10.77.0.255 is the broadcast address of 10.77.0.2/24");
  has(refused([](StackOptions& o) { o.more_addresses = {*IpPrefix::parse("10.78.0.4/31")}; }),
      "there is none");  // a /31 has no broadcast address
  has(refused([](StackOptions& o) {
        o.routes = {*Route::parse("10.88.0.0/16=10.77.0.9"),
                    *Route::parse("10.88.1.0/16=10.77.0.8")};
      }),
      "10.88.1.0/16 has a route before");
  has(refused([](StackOptions& o) { o.routes = {*Route::parse("10.77.0.0/24=10.77.0.9")}; }),
      "10.77.0.0/24 has a route before");
  has(refused([](StackOptions& o) {
        o.gateway = IpAddress::v4(10, 77, 0, 1);
        o.routes = {*Route::parse("0.0.0.0/0=10.77.0.9")};
      }),
      "0.0.0.0/0 has a route before");
  has(refused([](StackOptions& o) {
        o.routes = {*Route::parse("10.88.0.0/16=10.77.0.9"),
                    *Route::parse("10.88.0.0/17=10.77.0.8"), *Route::parse("0.0.0.0/0=10.77.0.9")};
      }),
      "there is none");
  has(refused([](StackOptions& o) {
        for (uint8_t i = 0; i < 65; ++i)
          o.routes.push_back({{IpAddress::v4(10, 88, i, 0), 24}, IpAddress::v4(10, 77, 0, 9)});
      }),
      "at most 64");
  has(refused([](StackOptions& o) { o.more_addresses = {*IpPrefix::parse("224.0.0.1/24")}; }),
      "224.0.0.1/24 is no address to have");
  has(refused([](StackOptions& o) { o.more_addresses = {*IpPrefix::parse("2001:db8::1/64")}; }),
      "is no address to have");
  has(refused([](StackOptions& o) { o.routes = {*Route::parse("10.88.0.0/16=10.78.0.1")}; }),
      "gateway 10.78.0.1 is on none of this side's networks");
  has(refused([](StackOptions& o) { o.routes = {*Route::parse("10.88.0.0/16=10.77.0.2")}; }),
      "gateway 10.77.0.2 is on none");
  has(refused([](StackOptions& o) { o.routes = {*Route::parse("2001:db8::/32=10.77.0.1")}; }),
      "is not IPv4");
  has(refused([](StackOptions& o) { o.gateway = IpAddress::v4(10, 78, 0, 1); }),
      "the gateway 10.78.0.1 is on none");
  has(refused([](StackOptions& o) {
        o.gateway = IpAddress::v4(10, 78, 0, 1);
        o.more_addresses = {*IpPrefix::parse("10.78.0.2/24")};
        o.routes = {*Route::parse("10.88.0.0/16=10.78.0.9")};
      }),
      "there is none");  // both gateways are neighbours of the second address
  has(refused([](StackOptions& o) {
        for (uint8_t i = 0; i < 16; ++i)
          o.more_addresses.push_back({IpAddress::v4(10, i, 1, 1), 24});
      }),
      "at most 16");
}

}  // namespace
}  // namespace nobounce::test
