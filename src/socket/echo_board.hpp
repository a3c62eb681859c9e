// Echo requests under way on one shard: who waits for which reply. For ping.
//
// Threads: the shard's thread fills replies in; application threads wait on their own entry.
// Bound: kWaitersMax at a time.
#pragma once

#include <array>
#include <atomic>

#include "base/event.hpp"
#include "ip/ip_layer.hpp"
#include "nobounce/stack.hpp"

namespace nobounce {

struct EchoWaiter {
  IpAddress to;
  uint16_t id = 0;
  uint16_t sequence = 0;
  uint64_t sent_ns = 0;
  PingReply reply;
  std::errc error{};
  std::atomic<bool> finished{false};
  Event event;
};

class EchoBoard final : public ip::Layer::EchoSink {
 public:
  static constexpr size_t kWaitersMax = 16;

  explicit EchoBoard(const ShardContext& context) : context_(context) {}

  [[nodiscard]] bool add(EchoWaiter& waiter) noexcept;
  void remove(EchoWaiter& waiter) noexcept;

  void echo_reply(const IpAddress& from, uint16_t id, uint16_t sequence, uint8_t ttl,
                  size_t bytes) noexcept override;
  void echo_error(const ip::IcmpError& error) noexcept override;

 private:
  static void finish(EchoWaiter& waiter, std::errc error) noexcept;

  const ShardContext& context_;
  std::array<EchoWaiter*, kWaitersMax> waiters_{};
};

}  // namespace nobounce
