// TCP of one shard (RFC 9293): connections and listeners on top of ip::Layer.
//
//   socket --send(frag)--> send queue --clone--> ip            ip --> receive() --> receive queue
//          <--on_acked()--  (kept until acknowledged)                  on_readable() / pop_received()
//
// Payload is never touched here: it travels as page references in both directions. The send queue
// keeps packets until they are acknowledged; what is sent is a clone with headers of its own.
//
// Life of a connection: connect() or a listener makes it; the owner is told of everything until it
// calls release() (close, the owner is forgotten) or abort(): one of the two, exactly once, also
// after on_closed(). Until then the pointer stays valid and received data can be popped, whatever
// happened; from that call on it is dead for the owner. The connection itself lives on until TCP is
// done with it (FIN exchanged, TIME-WAIT, or reset), then returns to its pool.
//
// Threads: the shard's thread alone; owners are called on it, never re-entrantly from inside their
// own call into this class except where a call says so. Inside a callback any call is allowed.
// Cost: O(1) a segment in the number of connections (keyed hash); O(log n) timers.
// Bounds: connections, listeners, half-open and out-of-order data are bounded; the bound that was
// hit is counted ("tcp.limit.<name>"). Nothing allocates after construction.
// Spec: tcp.md T-*; C0xx cases in tests.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <system_error>

#include "ip/ip_layer.hpp"

namespace nobounce::tcp {

// Share of the shard's TimerQueue: a layer arms at most this many timers for each of its
// LayerOptions::connections_max.
inline constexpr size_t kTimersPerConnection = 4;  // send, loss, ACK, life

class Connection;
class Listener;

// The socket's side of a connection.
class Owner {
 public:
  virtual void on_connected() noexcept = 0;  // active open completed
  virtual void on_readable() noexcept = 0;   // pop_received() has something, or end of stream
  // `bytes` of what send() took are acknowledged: their buffer space is free again.
  virtual void on_acked(size_t bytes) noexcept = 0;
  // The connection is over; the last call (release() is still the owner's to call). `reason` is {} after an orderly close of both sides,
  // else connection_refused, connection_reset, timed_out, host_unreachable, network_down, ...
  virtual void on_closed(std::errc reason) noexcept = 0;

 protected:
  ~Owner() = default;
};

class ListenerOwner {
 public:
  // Is there room in the accept queue? While not, SYNs and cookies' ACKs are dropped; peers try
  // again. Asked once a SYN: cheap, no calls into the layer.
  virtual bool has_room() noexcept { return true; }
  // A handshake completed. Returns the new connection's owner, or null when the accept queue is
  // full: the final ACK is then dropped and the connection stays half-open (T-15).
  virtual Owner* on_accept(Connection& connection) noexcept = 0;

 protected:
  ~ListenerOwner() = default;
};

struct ConnectionOptions {
  uint32_t receive_buffer = 4 << 20;  // bytes; also decides the window scale
  bool nodelay = false;
  bool keepalive = false;
  uint64_t keepalive_idle_ns = 7200ULL * 1'000'000'000;
  uint64_t keepalive_interval_ns = 75ULL * 1'000'000'000;
  uint32_t keepalive_probes = 9;
  uint64_t user_timeout_ns = 0;  // 0: R2 (about 15 retries)
};

struct LayerOptions {
  size_t connections_max = 4096;  // TIME-WAIT included
  size_t listeners_max = 64;
  size_t out_of_order_max = 1024;  // packets, per connection
  uint64_t rto_min_ns = 200'000'000;
  uint64_t rto_max_ns = 120'000'000'000;
  uint64_t delayed_ack_ns = 40'000'000;
  uint64_t msl_ns = 30'000'000'000;
  // Tests only: every initial sequence number is this (T-6: the suite runs with numbers that wrap).
  std::optional<uint32_t> fixed_isn;
};

// Facts of one connection, for tools and tests (tcp_info).
struct ConnectionInfo {
  const char* state = "CLOSED";
  Endpoint local, remote;
  uint32_t mss = 0;
  uint32_t congestion_window = 0;  // bytes
  uint32_t slow_start_threshold = 0;
  uint32_t send_window = 0;
  uint32_t receive_window = 0;
  uint64_t smoothed_rtt_ns = 0;
  uint64_t rto_ns = 0;
  uint64_t bytes_unacked = 0;
  uint64_t retransmissions = 0;
};

class Layer final : public ip::Transport {
 public:
  Layer(ShardContext& context, ip::Layer& ip, const LayerOptions& options = {});
  ~Layer();  // aborts what is left, silently

  // ---- opening ----
  // `local` port 0: a random free one (RFC 6056); local address any: chosen by route.
  [[nodiscard]] std::expected<Connection*, std::errc> connect(
      const Endpoint& local, const Endpoint& remote, Owner& owner,
      const ConnectionOptions& options) noexcept;
  // `backlog`: half-open connections at most; past that, SYNs are answered with cookies (T-15).
  [[nodiscard]] std::expected<Listener*, std::errc> listen(
      const Endpoint& local, uint32_t backlog, ListenerOwner& owner,
      const ConnectionOptions& options) noexcept;
  // Half-open connections of the listener are reset. The pointer is dead afterwards.
  void close(Listener* listener) noexcept;
  [[nodiscard]] Endpoint local(const Listener& listener) const noexcept;

  // ---- data ----
  // Appends to the send queue and takes over one page reference; `more` delays a partial last
  // segment (MSG_MORE). False when the packet pool is empty: nothing was taken, try again after
  // on_acked() or the next round. Sending happens in push().
  [[nodiscard]] bool send(Connection& connection, const Frag& frag, bool more,
                          Notifier* notifier = nullptr) noexcept;
  // Sends what window and congestion control allow. Call once after a batch of send().
  void push(Connection& connection) noexcept;
  // Next piece of the stream; the caller takes over the page reference. False when there is none.
  [[nodiscard]] bool pop_received(Connection& connection, Frag& frag) noexcept;
  // All data up to the peer's FIN was popped.
  [[nodiscard]] bool at_end(const Connection& connection) const noexcept;
  // The application has read (and let go of) that many bytes: the window may open.
  void consumed(Connection& connection, size_t bytes) noexcept;

  // ---- closing ----
  void shutdown_send(Connection& connection) noexcept;  // FIN after what is queued
  // The owner goes: no more calls to it. Unread data, or data that arrives later, resets (T-57).
  void release(Connection& connection) noexcept;
  // RST to the peer, the owner is forgotten.
  void abort(Connection& connection) noexcept;
  // A connection that was released has bytes, or its FIN, still to be acknowledged.
  [[nodiscard]] bool is_draining() noexcept;
  // The last acknowledgement of every connection that has just gone into TIME-WAIT once more: when it is
  // lost nobody is left to answer the peer's FIN. False: there is no such connection.
  bool repeat_last_acks() noexcept;
  // RST to every peer that may still wait for something of ours. Nothing else changes: the layer is
  // about to go.
  void reset_all() noexcept;
  // The device is gone: every connection ends with `reason`.
  void fail_all(std::errc reason) noexcept;

  // The link is down: what is sent is lost. Connections stay, and nothing but time counts against them,
  // until link_up(); then all of them speak at once instead of at their next time-out. O(connections).
  void link_down() noexcept;
  void link_up() noexcept;

  void set_options(Connection& connection, const ConnectionOptions& options) noexcept;
  [[nodiscard]] ConnectionInfo info(const Connection& connection) const noexcept;
  [[nodiscard]] size_t connections() const noexcept;  // all states but CLOSED

  // ---- from below ----
  void receive(PacketPtr packet, const ip::Ingress& ingress) noexcept override;
  void icmp_error(const ip::IcmpError& error) noexcept override;
  void transmit_ready() noexcept override;
  // End of a receive burst: what windows and acknowledgements of the burst allow is sent, then the
  // acknowledgements that were held, one a connection (T-29). A stretched acknowledgement covers at
  // most a burst; duplicates and retransmissions never wait for it. Call after every burst.
  void end_of_burst() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nobounce::tcp
