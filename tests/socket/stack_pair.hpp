// Two stacks on one pipe: 10.0.0.1 (left) and 10.0.0.2 (right).
#pragma once

#include <gtest/gtest.h>

#include "nobounce/stack.hpp"
#include "socket/set_up.hpp"
#include "socket/shard.hpp"
#include "support/pipe_device.hpp"

namespace nobounce::test {

inline Endpoint left_endpoint(uint16_t port) { return {IpAddress::v4(10, 0, 0, 1), port}; }
inline Endpoint right_endpoint(uint16_t port) { return {IpAddress::v4(10, 0, 0, 2), port}; }

struct StackPair {
  explicit StackPair(StackOptions options = {}, const PipeOptions& pipe_options = {})
      : pipe(pipe_options) {
    options.private_bytes = 32 << 20;
    if (options.connections_max == 4096) options.connections_max = 256;
    left = open(options, 0);
    options.linger_ns = 0;  // it goes last: nobody is left to acknowledge anything
    right = open(options, 1);
  }
  ~StackPair() {
    left.reset();
    right.reset();
  }

  std::unique_ptr<Stack> open(StackOptions options, int end) {
    options.address = {IpAddress::v4(10, 0, 0, static_cast<uint8_t>(end + 1)), 24};
    auto stack = StackSetUp::open_on(
        options,
        [this, end](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
          return std::make_unique<PipeDevice>(pipe, end, *contexts[0]);
        });
    if (!stack) {
      ADD_FAILURE() << stack.error().to_string();
      std::abort();
    }
    return std::move(*stack);
  }

  Pipe pipe;
  std::unique_ptr<Stack> left;
  std::unique_ptr<Stack> right;
};

// A connected pair of sockets: `client` on the left, `server` on the right.
struct Connection {
  TcpListener listener;
  TcpSocket client;
  TcpSocket server;
};

inline Connection connect(StackPair& pair, uint16_t port = 80) {
  using namespace std::chrono_literals;
  Connection connection;
  auto listener = pair.right->tcp_listen(right_endpoint(port));
  EXPECT_TRUE(listener.has_value());
  if (!listener) return connection;
  connection.listener = std::move(*listener);
  auto client = pair.left->tcp_connect(right_endpoint(port), 5s);
  EXPECT_TRUE(client.has_value());
  if (!client) return connection;
  connection.client = std::move(*client);
  auto server = connection.listener.accept(5s);
  EXPECT_TRUE(server.has_value());
  if (server) connection.server = std::move(*server);
  return connection;
}

// Self-describing test data: the byte at each position follows from the seed.
inline std::byte pattern(uint64_t seed, uint64_t position) {
  return static_cast<std::byte>((position * 0x9e3779b97f4a7c15 + seed) >> 56);
}
inline void fill_pattern(MutableBytes bytes, uint64_t seed, uint64_t position) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, position + i);
}

}  // namespace nobounce::test
