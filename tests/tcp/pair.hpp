// Two stacks joined by an impaired wire, driven by one thread and one clock: left connects to right.
// Stream checks what it receives byte by byte against the generator that its peer sends from.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/wire_link.hpp"
#include "tcp/tcp_layer.hpp"

namespace nobounce::test {

inline const IpAddress kLeftAddress = IpAddress::v4(192, 0, 2, 1);
inline const IpAddress kRightAddress = IpAddress::v4(192, 0, 2, 2);

// Byte `i` of the stream with that seed.
[[nodiscard]] inline std::byte stream_byte(uint64_t seed, uint64_t i) {
  uint64_t z = (seed * 0x9e3779b97f4a7c15) ^ ((i >> 3) * 0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 29)) * 0x94d049bb133111eb;
  return static_cast<std::byte>(z >> (8 * (i & 7)));
}

// One end of a connection as an application: sends `to_send` bytes, keeps at most `send_buffer` of
// them unacknowledged, reads all it gets, shuts down when done, lets go when both sides are done.
class Stream final : public tcp::Owner {
 public:
  Stream(StackEnd& end, tcp::Layer& layer, uint64_t send_seed, uint64_t receive_seed,
         uint64_t bytes)
      : to_send(bytes),
        end_(end),
        layer_(layer),
        send_seed_(send_seed),
        receive_seed_(receive_seed) {}
  ~Stream() {
    if (connection != nullptr) layer_.abort(*connection);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void on_connected() noexcept override {
    ++connected;
    write();
  }
  void on_readable() noexcept override {
    ++readable;
    if (reading) read();
  }
  void on_acked(size_t bytes) noexcept override {
    acked += bytes;
    write();
  }
  void on_closed(std::errc why) noexcept override {
    ++closed;
    reason = why;
    if (reading) read();
    if (auto_release) let_go();
  }

  void write() {
    if (connection == nullptr || closed > 0 || shut) return;
    bool any = false;
    while (sent < to_send && sent - acked < send_buffer) {
      const uint64_t size = std::min<uint64_t>({to_send - sent, piece, send_buffer});
      std::vector<std::byte> bytes(size);
      for (uint64_t i = 0; i < size; ++i) bytes[i] = stream_byte(send_seed_, sent + i);
      const Frag frag = end_.make_frag(bytes, static_cast<uint32_t>(sent % 64));
      if (!layer_.send(*connection, frag, false)) {
        page_return(*frag.page);
        break;
      }
      sent += size;
      any = true;
    }
    if (any) layer_.push(*connection);
    if (sent == to_send && auto_shutdown) shutdown();
  }
  void shutdown() {
    if (connection == nullptr || shut || closed > 0) return;
    shut = true;
    layer_.shutdown_send(*connection);
  }
  void read(uint64_t at_most = ~uint64_t{0}) {
    Frag frag;
    uint64_t got = 0;
    while (connection != nullptr && got < at_most && layer_.pop_received(*connection, frag)) {
      std::vector<std::byte> bytes(frag.size);
      page_read(*frag.page, frag.offset, bytes);
      for (const std::byte byte : bytes) {
        if (byte != stream_byte(receive_seed_, received)) ++wrong;
        ++received;
      }
      page_return(*frag.page);
      got += frag.size;
      layer_.consumed(*connection, frag.size);
    }
    if (connection != nullptr && layer_.at_end(*connection)) ended = true;
  }
  void let_go() {
    if (connection == nullptr) return;
    layer_.release(*std::exchange(connection, nullptr));
  }
  [[nodiscard]] bool done() const { return closed > 0; }

  uint64_t to_send;
  uint64_t send_buffer = 256 << 10;
  uint64_t piece = 16000;
  bool reading = true;
  bool auto_shutdown = true;
  bool auto_release = true;

  tcp::Connection* connection = nullptr;
  uint64_t sent = 0, acked = 0, received = 0, wrong = 0;
  int connected = 0, readable = 0, closed = 0;
  bool shut = false;
  bool ended = false;
  std::errc reason{};

 private:
  StackEnd& end_;
  tcp::Layer& layer_;
  uint64_t send_seed_;
  uint64_t receive_seed_;
};

class Acceptor final : public tcp::ListenerOwner {
 public:
  std::function<tcp::Owner*(tcp::Connection&)> accept;
  std::function<bool()> room;
  bool has_room() noexcept override { return room ? room() : true; }
  tcp::Owner* on_accept(tcp::Connection& connection) noexcept override {
    return accept ? accept(connection) : nullptr;
  }
};

struct Side {
  Side(Clock& clock, const StackEndOptions& options, const tcp::LayerOptions& layer_options)
      : end(clock, options), tcp_options(layer_options) {}
  void attach(NetDevice& nic, const IpAddress& address) {
    device = &nic;
    ip::Options options;
    options.address = {address, 24};
    ip = std::make_unique<ip::Layer>(end.context, nic, options);
    tcp = std::make_unique<tcp::Layer>(end.context, *ip, tcp_options);
  }
  void round() {
    end.begin_round();
    device->reclaim(0);
    PacketBurst burst;
    (void)device->receive(0, burst);
    ip->receive(burst);
    tcp->end_of_burst();
    ip->flush();
  }
  StackEnd end;
  tcp::LayerOptions tcp_options;
  NetDevice* device = nullptr;
  std::unique_ptr<ip::Layer> ip;
  std::unique_ptr<tcp::Layer> tcp;
};

struct PairOptions {
  uint64_t seed = 1;
  WireOptions wire;
  tcp::LayerOptions left, right;
  size_t packets = 2048;
  uint64_t arena_bytes = 16 << 20;
};

struct Pair {
  explicit Pair(const PairOptions& options = {})
      : left(clock,
             {.seed = options.seed * 2 + 1,
              .packets = options.packets,
              .arena_bytes = options.arena_bytes,
              .timers = tcp::kTimersPerConnection * 4096 + 64},
             options.left),
        right(clock,
              {.seed = options.seed * 2 + 2,
               .packets = options.packets,
               .arena_bytes = options.arena_bytes,
               .timers = tcp::kTimersPerConnection * 4096 + 64},
              options.right),
        link(clock, options.seed, left.end.context, right.end.context, options.wire) {
    left.attach(link.left(), kLeftAddress);
    right.attach(link.right(), kRightAddress);
  }

  // One step: both ends do what is due now; then time goes on to the next event.
  // False when nothing will happen any more before `until_ns`.
  bool step(uint64_t until_ns) {
    left.round();
    right.round();
    if (left.ip->output_pending() || right.ip->output_pending()) {
      clock.advance(1000);
      return clock.now_ns() <= until_ns;
    }
    uint64_t next =
        std::min(left.end.timers.next_deadline_ns(), right.end.timers.next_deadline_ns());
    if (const auto arrival = link.next_arrival_ns()) next = std::min(next, *arrival);
    if (next > until_ns) {
      clock.set(std::max(clock.now_ns(), until_ns));
      return false;
    }
    clock.set(std::max(clock.now_ns(), next));
    return true;
  }
  void run(uint64_t ns) {
    const uint64_t until = clock.now_ns() + ns;
    while (step(until)) {
    }
    left.round();
    right.round();
  }
  template <class Condition>
  [[nodiscard]] bool run_until(Condition condition, uint64_t ns) {
    const uint64_t until = clock.now_ns() + ns;
    while (!condition()) {
      if (!step(until)) return condition();
    }
    return true;
  }

  ManualClock clock{10 * kNsPerSecond};
  Side left, right;
  WireLink link;
};

// left connects to a listener on the right; both streams run to their ends.
struct Transfer {
  Transfer(Pair& two, uint64_t left_bytes, uint64_t right_bytes,
           tcp::ConnectionOptions left_options = {}, tcp::ConnectionOptions right_options = {})
      : pair(two),
        client(two.left.end, *two.left.tcp, 11, 22, left_bytes),
        server(two.right.end, *two.right.tcp, 22, 11, right_bytes) {
    acceptor.accept = [this](tcp::Connection& connection) -> tcp::Owner* {
      server.connection = &connection;
      ++accepted;
      return &server;
    };
    listener = pair.right.tcp->listen({kRightAddress, 80}, 16, acceptor, right_options).value();
    pair.left.end.begin_round();
    pair.right.end.begin_round();
    client.connection =
        pair.left.tcp->connect({}, {kRightAddress, 80}, client, left_options).value();
  }
  ~Transfer() { pair.right.tcp->close(listener); }
  // The server learns of its acceptance in on_accept(); its writing starts here.
  [[nodiscard]] bool run(uint64_t ns) {
    return pair.run_until(
        [this] {
          if (server.sent == 0 && server.connection != nullptr) server.write();
          return client.done() && server.done();
        },
        ns);
  }
  void expect_complete() {
    EXPECT_EQ(client.reason, std::errc{});
    EXPECT_EQ(server.reason, std::errc{});
    EXPECT_EQ(server.received, client.to_send);
    EXPECT_EQ(client.received, server.to_send);
    EXPECT_EQ(client.wrong, 0U);
    EXPECT_EQ(server.wrong, 0U);
    EXPECT_EQ(client.acked, client.to_send);
    EXPECT_EQ(server.acked, server.to_send);
    EXPECT_TRUE(client.ended);
    EXPECT_TRUE(server.ended);
  }

  Pair& pair;
  Acceptor acceptor;
  tcp::Listener* listener = nullptr;
  Stream client, server;
  int accepted = 0;
};

}  // namespace nobounce::test
