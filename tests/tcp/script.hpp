// A stack against a scripted peer: the test writes the peer's segments and reads ours, with the
// time at which each left. No offloads by default: what is seen is what a wire would carry.
//
//   Script script;
//   script.accept();                                  // or connect(): ESTABLISHED
//   script.in(kAck, 1, 1, {.payload = 100});          // peer's relative numbers
//   script.advance(40 * kNsPerMs);
//   const auto ack = script.out();                    // oldest segment sent, fails when there is none
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "base/checksum.hpp"
#include "support/wire_link.hpp"
#include "tcp/tcp_layer.hpp"
#include "wire/arp.hpp"
#include "wire/ethernet.hpp"
#include "wire/icmp.hpp"
#include "wire/ipv4.hpp"
#include "wire/tcp.hpp"

namespace nobounce::test {

using namespace wire;  // NOLINT: test vocabulary (flags, options)

inline const IpAddress kOurAddress = IpAddress::v4(192, 0, 2, 1);
inline const IpAddress kPeerAddress = IpAddress::v4(192, 0, 2, 2);
inline constexpr MacAddress kPeerMac{{0x02, 0, 0, 0, 0, 0x99}};
inline constexpr uint8_t kA = kTcpAck;
inline constexpr uint64_t kMilli = kNsPerMs;

struct Out {
  uint64_t at_ns = 0;
  TcpHeader header;
  size_t size = 0;  // payload
  ByteVector payload;
  IpAddress destination;
  [[nodiscard]] bool has(uint8_t flag) const { return (header.flags & flag) != 0; }
};

struct In {
  size_t payload = 0;
  uint16_t window = 0xffff;
  TcpOptions options{};
  ByteVector bytes{};  // instead of `payload` zeros
  IpAddress source = kPeerAddress;
  IpAddress destination = kOurAddress;
  uint16_t port = 0;          // 0: the peer's port
  bool bad_checksum = false;  // also: any field below keeps its default
};

// Records everything; answers nothing.
class Recorder final : public tcp::Owner {
 public:
  void on_connected() noexcept override { ++connected; }
  void on_readable() noexcept override { ++readable; }
  void on_acked(size_t bytes) noexcept override { acked += bytes; }
  void on_closed(std::errc why) noexcept override {
    ++closed;
    reason = why;
  }
  int connected = 0, readable = 0, closed = 0;
  size_t acked = 0;
  std::errc reason{};
};

class RecordingAcceptor final : public tcp::ListenerOwner {
 public:
  bool has_room() noexcept override { return !full; }
  tcp::Owner* on_accept(tcp::Connection& accepted) noexcept override {
    ++asked;
    if (full) return nullptr;
    connection = &accepted;
    return &recorder;
  }
  bool full = false;
  int asked = 0;
  tcp::Connection* connection = nullptr;
  Recorder recorder;
};

[[nodiscard]] inline TcpOptions only_mss(uint16_t mss) {
  TcpOptions options;
  options.mss = mss;
  return options;
}

struct ScriptOptions {
  uint64_t seed = 1;
  DeviceFeatures features{};
  uint16_t mtu = 1500;
  tcp::LayerOptions layer{};
  tcp::ConnectionOptions connection{};
  TcpOptions peer_syn = only_mss(1460);  // what the peer's SYN or SYN-ACK offers
  uint16_t peer_window = 0xffff;
  uint32_t peer_isn = 0x10000000;
  uint64_t start_ns = 10 * kNsPerSecond;
  size_t packets = 4096;
};

class Script {
 public:
  explicit Script(const ScriptOptions& chosen = {})
      : options(chosen),
        clock(chosen.start_ns),
        end(clock, {.seed = chosen.seed,
                    .packets = chosen.packets,
                    .arena_bytes = 32 << 20,
                    .timers = tcp::kTimersPerConnection * 4096 + 64}),
        device(end.context, {.mtu = chosen.mtu, .features = chosen.features, .room = 4096}) {
    ip::Options ip_options;
    ip_options.address = {kOurAddress, 24};
    ip_options.gateway = IpAddress::v4(192, 0, 2, 254);
    ip_layer = std::make_unique<ip::Layer>(end.context, device, ip_options);
    tcp = std::make_unique<tcp::Layer>(end.context, *ip_layer, chosen.layer);
  }
  ~Script() {
    if (connection != nullptr) tcp->abort(*connection);
    if (listener != nullptr) tcp->close(listener);
  }

  // ---- opening ----
  void listen(uint32_t backlog = 16) {
    listener = tcp->listen({kOurAddress, our_port}, backlog, acceptor, options.connection).value();
  }
  // Passive open; afterwards both sides have sent and acknowledged their SYN.
  void accept() {
    if (listener == nullptr) listen();
    send_raw(kTcpSyn, options.peer_isn, 0,
             {.window = options.peer_window, .options = options.peer_syn});
    const Out syn_ack = out();
    EXPECT_EQ(syn_ack.header.flags, kTcpSyn | kTcpAck);
    our_isn = syn_ack.header.sequence;
    in(kA, 1, 1, {.window = options.peer_window});
    connection = acceptor.connection;
    ASSERT_NE(connection, nullptr);
    EXPECT_EQ(state(), "ESTABLISHED");
  }
  void start_connect() {
    end.begin_round();
    connection =
        tcp->connect({}, {kPeerAddress, peer_port}, recorder(), options.connection).value();
    pump();
    const Out syn = out();
    EXPECT_EQ(syn.header.flags, kTcpSyn);
    our_isn = syn.header.sequence;
    our_port = syn.header.source_port;
    first_syn = syn;
  }
  void connect() {
    start_connect();
    in(kTcpSyn | kA, 0, 1, {.window = options.peer_window, .options = options.peer_syn});
    EXPECT_EQ(out().header.flags, kA);
    EXPECT_EQ(state(), "ESTABLISHED");
  }
  Recorder& recorder() { return acceptor.recorder; }
  [[nodiscard]] std::string state() const {
    return connection != nullptr ? tcp->info(*connection).state : "none";
  }
  [[nodiscard]] tcp::ConnectionInfo info() const { return tcp->info(*connection); }

  // ---- the peer ----
  // Relative numbers: 0 is the SYN's.
  void in(uint8_t flags, uint32_t seq, uint32_t ack, const In& segment = {}) {
    send_raw(flags, options.peer_isn + seq, (flags & kA) != 0 ? our_isn + ack : 0, segment);
  }
  void send_raw(uint8_t flags, uint32_t seq, uint32_t ack, const In& segment = {}) {
    queue_raw(flags, seq, ack, segment);
    pump();
  }
  // Several of these are one burst.
  void queue(uint8_t flags, uint32_t seq, uint32_t ack, const In& segment = {}) {
    queue_raw(flags, options.peer_isn + seq, (flags & kA) != 0 ? our_isn + ack : 0, segment);
  }
  void queue_raw(uint8_t flags, uint32_t seq, uint32_t ack, const In& segment) {
    TcpHeader header;
    header.source_port = segment.port != 0 ? segment.port : peer_port;
    header.destination_port = our_port;
    header.sequence = seq;
    header.acknowledgement = ack;
    header.flags = flags;
    header.window = segment.window;
    header.options = segment.options;
    ByteVector payload = segment.bytes;
    if (payload.empty()) payload.resize(segment.payload);
    ByteVector bytes(header.size() + payload.size());
    header.emit(bytes);
    std::ranges::copy(payload, bytes.begin() + static_cast<ptrdiff_t>(header.size()));
    queue_tcp(std::move(bytes), segment);
  }
  // TCP bytes as they are, checksum filled.
  void queue_tcp(ByteVector tcp_bytes, const In& segment = {}) {
    store_be<uint16_t>(tcp_bytes, 16, 0);
    const uint64_t sum = pseudo_header_sum(segment.source, segment.destination, ip::kProtocolTcp,
                                           static_cast<uint32_t>(tcp_bytes.size()));
    uint16_t field = checksum_finish(checksum_add(sum, tcp_bytes));
    if (segment.bad_checksum) field = static_cast<uint16_t>(field ^ 0x1);
    store_be<uint16_t>(tcp_bytes, 16, field);
    queue_ip(ip::kProtocolTcp, tcp_bytes, segment.source, segment.destination);
  }
  void queue_ip(uint8_t protocol, const ByteVector& body, const IpAddress& source,
                const IpAddress& destination) {
    ByteVector frame(kEthernetHeaderSize + kIpv4HeaderSize + body.size());
    EthernetHeader ethernet;
    ethernet.destination = device.mac();
    ethernet.source = kPeerMac;
    ethernet.ether_type = kEtherTypeIpv4;
    ethernet.emit(frame);
    Ipv4Header ipv4;
    ipv4.total_length = static_cast<uint16_t>(kIpv4HeaderSize + body.size());
    ipv4.dont_fragment = true;
    ipv4.protocol = protocol;
    ipv4.source = source;
    ipv4.destination = destination;
    ipv4.emit(MutableBytes(frame).subspan(kEthernetHeaderSize));
    std::ranges::copy(body, frame.begin() + kEthernetHeaderSize + kIpv4HeaderSize);
    device.inject(std::move(frame));
  }

  // ---- us ----
  void write(size_t bytes, bool more = false, uint8_t fill = 0x5a) {
    for (size_t done = 0; done < bytes;) {
      const size_t piece = std::min<size_t>(bytes - done, 32768);
      const ByteVector data(piece, std::byte{fill});
      const Frag frag = end.make_frag(data);
      ASSERT_TRUE(tcp->send(*connection, frag, more || done + piece < bytes));
      done += piece;
    }
    tcp->push(*connection);
    pump();
  }
  size_t read(size_t at_most = ~size_t{0}) {
    size_t got = 0;
    Frag frag;
    while (got < at_most && tcp->pop_received(*connection, frag)) {
      ByteVector bytes(frag.size);
      page_read(*frag.page, frag.offset, bytes);
      received.insert(received.end(), bytes.begin(), bytes.end());
      page_return(*frag.page);
      got += frag.size;
      tcp->consumed(*connection, frag.size);
    }
    pump();
    return got;
  }

  // ---- time ----
  void pump() {
    for (int i = 0; i < 100; ++i) {
      end.begin_round();
      PacketBurst burst;
      size_t got = device.receive(0, burst);
      ip_layer->receive(burst);
      got += ip_layer->receive_local();
      tcp->end_of_burst();
      ip_layer->flush();
      const bool any = collect();
      if (got == 0 && !any) return;
    }
    ADD_FAILURE() << "never quiet";
  }
  // To now + ns, stopping at every timer.
  void advance(uint64_t ns) {
    const uint64_t until = clock.now_ns() + ns;
    for (;;) {
      const uint64_t next = end.timers.next_deadline_ns();
      if (next > until) break;
      clock.set(std::max(clock.now_ns(), next));
      pump();
    }
    clock.set(until);
    pump();
  }

  // ---- what we sent ----
  [[nodiscard]] bool quiet() const { return sent_.empty(); }
  [[nodiscard]] size_t pending() const { return sent_.size(); }
  Out out() {
    if (sent_.empty()) {
      ADD_FAILURE() << "nothing was sent";
      return {};
    }
    Out first = std::move(sent_.front());
    sent_.pop_front();
    return first;
  }
  void drop_output() { sent_.clear(); }
  [[nodiscard]] uint32_t seq(const Out& o) const { return o.header.sequence - our_isn; }
  [[nodiscard]] uint32_t ack(const Out& o) const {
    return o.header.acknowledgement - options.peer_isn;
  }
  [[nodiscard]] uint64_t count(const std::string& name) const { return end.count(name); }

  ScriptOptions options;
  ManualClock clock;
  StackEnd end;
  ScriptDevice device;
  std::unique_ptr<ip::Layer> ip_layer;
  std::unique_ptr<tcp::Layer> tcp;
  RecordingAcceptor acceptor;
  tcp::Connection* connection = nullptr;
  tcp::Listener* listener = nullptr;
  uint16_t our_port = 80;
  uint16_t peer_port = 4000;
  uint32_t our_isn = 0;
  uint32_t peer_timestamp = 1000;
  Out first_syn;
  ByteVector received;

 private:
  // Takes what the device was given; answers ARP. True when there was any frame.
  bool collect() {
    bool any = false;
    while (auto frame = device.pop()) {
      any = true;
      const auto ethernet = EthernetView::parse(frame->bytes);
      EXPECT_TRUE(ethernet.has_value());
      if (!ethernet) continue;
      const Bytes rest = Bytes(frame->bytes).subspan(kEthernetHeaderSize);
      if (ethernet->ether_type() == kEtherTypeArp) {
        answer_arp(rest);
      } else if (ethernet->ether_type() == kEtherTypeIpv4) {
        decode(*frame, rest);
      }
    }
    return any;
  }
  void answer_arp(Bytes body) {
    const auto request = ArpView::parse(body);
    EXPECT_TRUE(request.has_value());
    if (!request || request->operation() != ArpOperation::request) return;
    ByteVector frame(kEthernetHeaderSize + kArpSize);
    EthernetHeader ethernet;
    ethernet.destination = device.mac();
    ethernet.source = kPeerMac;
    ethernet.ether_type = kEtherTypeArp;
    ethernet.emit(frame);
    ArpPacket reply;
    reply.operation = ArpOperation::reply;
    reply.sender_mac = kPeerMac;
    reply.sender_ip = request->target_ip();
    reply.target_mac = device.mac();
    reply.target_ip = kOurAddress;
    reply.emit(MutableBytes(frame).subspan(kEthernetHeaderSize));
    device.inject(std::move(frame));
  }
  void decode(const WireFrame& frame, Bytes packet) {
    const auto ipv4 = Ipv4View::parse(packet, packet.size());
    EXPECT_TRUE(ipv4.has_value());
    if (!ipv4 || ipv4->protocol() != ip::kProtocolTcp) return;
    const Bytes body = packet.subspan(ipv4->header_size());
    if (frame.checksum == Checksum::none) {
      const uint64_t sum = pseudo_header_sum(ipv4->source(), ipv4->destination(), ip::kProtocolTcp,
                                             static_cast<uint32_t>(body.size()));
      EXPECT_EQ(checksum_finish(checksum_add(sum, body)), 0) << "T-1: our checksum is wrong";
    }
    const auto view = TcpView::parse(body);
    EXPECT_TRUE(view.has_value());
    if (!view) return;
    Out o;
    o.at_ns = clock.now_ns();
    o.header = view->header();
    o.size = body.size() - view->header_size();
    o.payload.assign(body.begin() + static_cast<ptrdiff_t>(view->header_size()), body.end());
    o.destination = ipv4->destination();
    sent_.push_back(std::move(o));
  }

  std::deque<Out> sent_;
};

}  // namespace nobounce::test
