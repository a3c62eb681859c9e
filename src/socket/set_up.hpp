// Composition of a stack on any device: what Stack::open() does with virtio-net, for the back-end's
// peer, tests and tools that bring a device of their own. The only floor that names drivers.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "nobounce/stack.hpp"

namespace nobounce {

class Shard;
struct TcpCore;

// Makes the device once the shard's packets, pages and timers are there (they outlive the device).
using DeviceFactory = std::move_only_function<Result<std::unique_ptr<NetDevice>>(
    std::span<ShardContext* const> contexts)>;

// Where time and randomness come from; null: the real ones. They must outlive the stack.
struct Surroundings {
  Clock* clock = nullptr;
  Random* random = nullptr;
};

class StackSetUp {
 public:
  // `options.net` is not looked at.
  static Result<std::unique_ptr<Stack>> open_on(const StackOptions& options, DeviceFactory factory,
                                                const Surroundings& surroundings = {});
  // The shard behind a stack, for services that live on it (see shard.hpp) and for tests.
  static Shard& shard(Stack& stack) noexcept;
  // Everything of it, for tests that look at memory and pools.
  static StackCore& core(Stack& stack) noexcept;
  // What a socket shares with its shard, for tests that play one of the two. It must be open.
  static TcpCore& core(TcpSocket& socket) noexcept;
};

}  // namespace nobounce
