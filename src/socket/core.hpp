// The private state of one socket, shared between its shard and the application's threads.
//
//   application                                   shard
//   send: copy -> Submission::send  ------------> tcp::Layer::send
//         send_space  <---------------------------  on_acked
//   recv: received (SPSC of extents) <------------  on_readable: pop_received
//         consumed_bytes  ----------------------->  tcp::Layer::consumed
//         event  <--------------------------------  once a round, for all that happened
//
// A core belongs to its shard's fixed pool. It is taken by the shard (connect, accept, bind) and
// given back by the shard when the handle has been closed: nothing of the application's refers to
// it afterwards. Fields are grouped by who writes them.
//
// End of stream and errors are flags beside the ring, never entries in it: they cannot be lost to a
// full ring, and a reader sees them only after every byte (C132).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/event.hpp"
#include "base/list.hpp"
#include "base/spsc_ring.hpp"
#include "nobounce/socket.hpp"
#include "socket/frag_cache.hpp"
#include "tcp/tcp_layer.hpp"
#include "udp/udp_layer.hpp"

namespace nobounce {

class Shard;

struct NewsHook : ListHook {};  // sockets with news this round
struct PushHook : ListHook {};  // connections that got data this round
struct LiveHook : ListHook {};  // all sockets of the shard

struct SocketCore : NewsHook, LiveHook {
  enum class Kind : uint8_t { tcp, listener, udp };

  SocketCore(Kind which, Shard& owner) noexcept : kind(which), shard(owner) {}

  // Shard: the application's threads are woken at the end of the round.
  void want_wake() noexcept;
  // Stack is down: whoever waits sees `reason`.
  void fail(std::errc reason) noexcept;

  const Kind kind;
  Shard& shard;
  Endpoint local;  // written before the handle is given out

  // ---- shard's ----
  uint32_t next_sequence = 0;  // of the operations applied

  // ---- both ----
  std::atomic<bool> closed{false};  // over; `error` says why
  std::atomic<std::errc> error{};
  Event event;

  // ---- application's ----
  std::atomic<bool> nonblocking{false};
  std::atomic<uint64_t> send_timeout_ns{Event::kForever};
  std::atomic<uint64_t> receive_timeout_ns{Event::kForever};
  std::mutex send_lock;
  uint32_t submitted_sequence = 0;  // under send_lock
  FragCache frags;                  // under send_lock
  std::mutex receive_lock;
};

// A piece of received payload: one page reference.
struct Extent {
  Page* page = nullptr;
  uint32_t offset = 0;
  uint32_t size = 0;
};

struct TcpCore final : SocketCore, PushHook, tcp::Owner {
  // 256 extents: 1 MiB in 4 KiB pages; what does not fit waits in tcp/'s receive queue.
  static constexpr uint32_t kExtents = 256;

  explicit TcpCore(Shard& owner);
  ~TcpCore();

  // tcp::Owner, on the shard
  void on_connected() noexcept override;
  void on_readable() noexcept override;
  void on_acked(size_t bytes) noexcept override;
  void on_closed(std::errc reason) noexcept override;

  void attach(tcp::Connection& with) noexcept;
  // Moves what tcp/ has into `received` while there is room.
  void fill_received() noexcept;
  // Tells tcp/ what the application has read since the last time.
  void report_consumed() noexcept;
  // Room enough in the send buffer to be worth a wake-up.
  [[nodiscard]] bool has_send_room() const noexcept;

  Endpoint remote;

  // ---- shard's ----
  tcp::Connection* connection = nullptr;  // until close or abort was applied
  uint64_t consumed_seen = 0;
  tcp::ConnectionOptions options;

  // ---- both ----
  std::atomic<bool> connected{false};
  std::atomic<bool> end_of_stream{false};   // every byte up to the FIN is in `received`
  std::atomic<bool> backlog_in_tcp{false};  // `received` was full: say when there is room
  std::atomic<bool> wants_send_room{false};
  std::atomic<int64_t> send_space{0};
  std::atomic<uint64_t> consumed_bytes{0};
  std::atomic<bool> consumed_pending{false};  // a `consumed` submission is under way
  SpscRing<Extent, kExtents> received;

  // ---- application's ----
  std::atomic<bool> send_shut{false};
  bool fin_submitted = false;  // under send_lock
  std::atomic<bool> receive_shut{false};
  uint64_t consumed_reported = 0;  // under receive_lock
};

struct ListenerCore final : SocketCore, tcp::ListenerOwner {
  static constexpr uint32_t kBacklogMax = 1024;

  ListenerCore(Shard& owner, uint32_t backlog_wanted);
  ~ListenerCore();
  bool has_room() noexcept override;
  tcp::Owner* on_accept(tcp::Connection& connection) noexcept override;

  tcp::Listener* listener = nullptr;  // shard's
  const uint32_t backlog;
  SpscRing<TcpCore*, kBacklogMax> ready;  // accepted, not yet taken
};

// One piece of a received datagram; pieces of one datagram are consecutive and complete.
struct DatagramPiece {
  Page* page = nullptr;  // null: an empty datagram
  uint32_t offset = 0;
  uint32_t size = 0;
  uint32_t remaining = 0;  // bytes of the datagram from this piece on
  Endpoint from;
};

struct UdpCore final : SocketCore, udp::Owner {
  static constexpr uint32_t kPieces = 512;
  static constexpr uint32_t kReceiveBytesMax = 1 << 20;  // whole pages (TM-67)
  static constexpr uint32_t kSendBytesMax = 512 << 10;  // charged, between send_to() and the device

  explicit UdpCore(Shard& owner);
  ~UdpCore();
  void on_datagram(PacketPtr packet, const Endpoint& from) noexcept override;
  // What a piece holds back, whatever part of it is payload.
  [[nodiscard]] static uint32_t charge_of(Page& page) noexcept {
    return static_cast<uint32_t>(block_bytes(page_head(page)));
  }
  void on_error(std::errc reason) noexcept override;

  udp::Port* port = nullptr;  // shard's
  FragCache local_frags;      // as `frags`, for what is sent to this stack itself
  // A datagram counts as the part of a block that it may hold.
  [[nodiscard]] static constexpr uint32_t send_charge(size_t datagram_bytes) noexcept {
    return static_cast<uint32_t>(std::bit_ceil(std::max<size_t>(datagram_bytes, 2048)));
  }
  [[nodiscard]] bool has_send_room(uint32_t charge) const noexcept {
    return unsent_bytes.load(std::memory_order_seq_cst) + charge <= kSendBytesMax;
  }
  void count_sent(uint32_t charge) noexcept;  // by the shard

  std::atomic<uint32_t> unsent_bytes{0};
  std::atomic<bool> wants_send_room{false};
  std::atomic<uint32_t> queued_bytes{0};
  SpscRing<DatagramPiece, kPieces> received;
};

}  // namespace nobounce
