// A shard: one queue pair, one I/O thread, everything run to completion.
//
// One round, in this order:
//   receive burst -> ip -> tcp/udp -> end of burst (held ACKs)
//   the link, when it went down or came back: address announced, connections resume
//   timers that are due
//   submissions of all application threads, bounded a round
//   control calls
//   push of every connection that got data -> output burst -> device (one publish, one kick)
//   reclaim of what the device has sent
//   wake-ups: each socket with news, once
// When rounds find nothing for the spin budget (spin_budget.hpp), the thread arms the device's event and its own doorbell,
// looks once more, and sleeps until either signals or the next timer is due. It never sleeps longer
// than kPollNs while connections are open: correctness does not depend on the device's signal
// (TM-21).
//
// The same round() is driven by the I/O thread or, inline, by the application's own thread.
//
// Leaving: a stack that is closed sees its closed sockets through, as a kernel does for a process
// that has ended: bytes and FIN acknowledged, last frames with the device; or its time is over.
//
// Down: once the device is broken or gone, or the stack closed, nothing drives the shard any more;
// what application threads still submit is then settled by themselves under `down_lock_`.
//
// Threads: as marked. Cost: a round is O(work); nothing allocates.
// Spec: design "Threads"; TM-13, TM-21..TM-24, T-29; C022, C120, C136.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork_mark.hpp"
#include "base/unique_fd.hpp"
#include "ip/ip_layer.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"
#include "socket/control.hpp"
#include "socket/core.hpp"
#include "socket/echo_board.hpp"
#include "socket/spin_budget.hpp"
#include "socket/submission.hpp"
#include "tcp/tcp_layer.hpp"
#include "udp/udp_layer.hpp"

namespace nobounce {

struct ShardOptions {
  unsigned index = 0;
  size_t connections_max = 4096;
  size_t listeners_max = 64;
  size_t udp_max = 256;
  size_t packets = 16384;
  uint64_t spin_ns = 50'000;  // at most
  uint32_t send_buffer = 4 << 20;
  uint64_t linger_ns = 0;
  tcp::ConnectionOptions connection;
  bool inline_drive = false;
};

class Shard {
 public:
  static constexpr uint64_t kPollNs = 10 * kNsPerMs;

  Shard(const ShardOptions& options, Clock& clock, Random& random, PrivateArena& arena,
        CounterRegistry& counters, CopyLedger& copies, UniqueFd doorbell);
  ~Shard();  // down, and every handle closed

  [[nodiscard]] ShardContext& context() noexcept { return context_; }
  // Puts the layers on the device. Once, before anything runs.
  void attach(std::unique_ptr<NetDevice> device, const ip::Options& options);

  // ---- driving thread ----
  // One round; returns how much was done (0: idle).
  size_t round() noexcept;
  // The I/O thread's body: rounds and sleeps until stop(), or until the device has failed.
  void run() noexcept;
  // Sleeps until there may be work, at most `limit_ns`.
  void sleep(uint64_t limit_ns) noexcept;
  // The stack closes: sees to what was handed over before (see StackOptions::linger_ns), then resets
  // the connections that are left. Waits for peers, bounded.
  void leave() noexcept;
  // Ends everything: sockets get network_down, layers and device are closed. Idempotent.
  void shut_down(const std::string& why) noexcept;

  [[nodiscard]] ip::Layer& ip() noexcept { return *ip_; }
  [[nodiscard]] tcp::Layer& tcp() noexcept { return *tcp_; }
  [[nodiscard]] udp::Layer& udp() noexcept { return *udp_; }
  [[nodiscard]] NetDevice& device() noexcept { return *device_; }
  [[nodiscard]] EchoBoard& echo_board() noexcept { return echo_board_; }
  [[nodiscard]] const ShardOptions& options() const noexcept { return options_; }

  // Sockets come and go on the driving thread. Null when the pool is empty (counted).
  [[nodiscard]] TcpCore* acquire_tcp() noexcept;
  [[nodiscard]] bool has_tcp_room() const noexcept { return tcp_cores_.room() > 0; }
  [[nodiscard]] ListenerCore* acquire_listener(uint32_t backlog) noexcept;
  [[nodiscard]] UdpCore* acquire_udp() noexcept;
  void release(SocketCore& core) noexcept;
  // Ends the connection and returns the core.
  void close(TcpCore& core, bool abort) noexcept;

  void has_news(SocketCore& core) noexcept;
  void has_data(TcpCore& core) noexcept;
  void count_datagram_refused() noexcept;

  // ---- any thread ----
  // Pushes on the calling thread's ring and wakes the shard when it sleeps; waits while the ring is
  // full, at most `limit_ns`. False: nothing was taken (why_not() says why).
  [[nodiscard]] bool submit(Submission& submission, uint64_t limit_ns = Event::kForever) noexcept;
  // After submit() or control() said no: the stack is down, or there are too many threads, or time
  // is up.
  [[nodiscard]] std::errc why_not() const noexcept {
    return is_down() ? std::errc::network_down : std::errc::operation_would_block;
  }
  // Runs `call` on the shard and waits for it. False when the stack is down.
  [[nodiscard]] bool control(ControlCall& call) noexcept;
  // Waits until `event` is signalled after `seen`; drives rounds itself when inline. False: time-out.
  bool wait(Event& event, uint32_t seen, uint64_t timeout_ns) noexcept;
  // The stack is down and `core`'s handle goes.
  void release_when_down(SocketCore& core) noexcept;
  void ring_doorbell() noexcept;
  void stop() noexcept;
  // In a child by fork(2) it is: nothing of it is touched there (is_forked()).
  [[nodiscard]] bool is_down() const noexcept {
    return down_.load(std::memory_order_acquire) || is_forked();
  }
  [[nodiscard]] bool is_forked() const noexcept { return home_.is_child(); }
  // Why; valid once is_down().
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
  // An address of this stack's own.
  [[nodiscard]] bool is_ours(const IpAddress& address) const noexcept {
    return std::ranges::find(own_addresses_, address) != own_addresses_.end();
  }
  // Where the bytes of a send to `to` land. What stays inside is no device's business (NC-46, N-9).
  [[nodiscard]] FragSource& frag_source(const IpAddress& to) noexcept {
    return is_ours(to) ? local_frag_source_ : frag_source_;
  }

 private:
  struct Counters;

  size_t receive() noexcept;
  void look_at_link() noexcept;
  size_t run_calls() noexcept;
  void take_calls() noexcept;
  size_t drain_submissions() noexcept;
  size_t drain(SubmissionQueue& queue) noexcept;
  [[nodiscard]] bool apply(Submission& submission) noexcept;
  [[nodiscard]] static bool may_go(SocketCore& socket) noexcept;
  [[nodiscard]] bool apply_send(Submission& submission) noexcept;
  void apply_in_order(Submission& submission) noexcept;
  void settle_when_down() noexcept;
  void settle(Submission& submission) noexcept;
  void release_core_when_down(SocketCore& core) noexcept;
  void finish(ControlCall& call, bool refused) noexcept;
  void push_connections() noexcept;
  size_t wake_sockets() noexcept;
  void account() noexcept;
  [[nodiscard]] uint64_t sleep_limit() noexcept;
  [[nodiscard]] bool has_work() noexcept;
  [[nodiscard]] bool is_seen_through() noexcept;

  const ShardOptions options_;
  // Order matters: what comes later is destroyed first and may use what comes earlier.
  const std::unique_ptr<Counters> counters_;
  TimerQueue timers_;
  PacketPool packets_;
  ShardContext context_;
  std::unique_ptr<NetDevice> device_;
  std::unique_ptr<ip::Layer> ip_;
  std::unique_ptr<tcp::Layer> tcp_;
  std::unique_ptr<udp::Layer> udp_;
  EchoBoard echo_board_;
  FragSource frag_source_;
  FragSource local_frag_source_;          // private pages
  std::vector<IpAddress> own_addresses_;  // these three do not change once there are sockets
  ObjectPool<TcpCore> tcp_cores_;
  ObjectPool<ListenerCore> listener_cores_;
  ObjectPool<UdpCore> udp_cores_;
  List<SocketCore, LiveHook> live_;
  List<SocketCore, NewsHook> news_;
  List<TcpCore, PushHook> to_push_;
  PacketBurst burst_;
  bool link_up_ = true;  // as the layers were told
  uint64_t link_came_up_ns_ = 0;
  const ForkMark home_;
  SpinBudget spin_;
  bool starved_ = false;  // a send waits for packets or frames to come back
  bool leaving_ = false;
  Counter linger_over_;  // the time was up before all was acknowledged

  SubmissionQueues submissions_;
  std::atomic<ControlCall*> calls_{nullptr};  // the last one first
  ControlCall* waiting_calls_ = nullptr;      // shard's: taken, in order
  UniqueFd doorbell_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> down_{false};
  std::mutex down_lock_;  // everything of the shard, once it is down
  std::string failure_;   // written once, before down_ is released
};

}  // namespace nobounce
