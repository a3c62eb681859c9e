// A guest's stack behind a back-end whose peer is 10.77.0.1.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "nobounce/stack.hpp"

namespace nobounce::test {

inline constexpr IpAddress kPeer = IpAddress::v4(10, 77, 0, 1);

inline StackOptions guest_options(const std::string& socket, Mode mode, uint64_t memory_bytes,
                                  size_t connections_max) {
  StackOptions options;
  options.net = "vhost-user:" + socket;
  options.address = {IpAddress::v4(10, 77, 0, 2), 24};
  options.mode = mode;
  options.pool_bytes = memory_bytes;
  options.private_bytes = memory_bytes;
  options.connections_max = connections_max;
  return options;
}

inline std::unique_ptr<Stack> open_stack(const StackOptions& options) {
  auto stack = Stack::open(options);
  EXPECT_TRUE(stack) << stack.error().to_string();
  return stack ? std::move(*stack) : nullptr;
}

inline TcpSocket connect_to_peer(Stack& stack, uint16_t port, std::chrono::seconds limit) {
  auto socket = stack.tcp_connect({kPeer, port}, std::chrono::seconds(5));
  EXPECT_TRUE(socket) << static_cast<int>(socket.error());
  if (!socket) return {};
  socket->set_receive_timeout(limit);
  socket->set_send_timeout(limit);
  return std::move(*socket);
}

}  // namespace nobounce::test
