// A guest with running rings, played by hand, and the port under test on the other side of them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/guest_port.hpp"
#include "guest_driver.hpp"
#include "support/wire_link.hpp"

namespace nobounce::backend::test {

using nobounce::test::StackEnd;
using Request = wire::VhostUserRequest;

inline constexpr MacAddress kMac{{2, 0, 0, 0, 0, 1}};
inline constexpr size_t kData = 1 << 20;  // buffers of the guest begin there
inline constexpr uint64_t kAll = ~uint64_t{0};
inline constexpr uint64_t kMrg = wire::kNetMrgRxbuf;

struct PortOptions {
  uint64_t features = kAll;  // acknowledged, of what is offered
  uint16_t pairs = 1;
  uint16_t ring_size = 64;
  uint16_t mtu = 1500;
  uint64_t arena_bytes = 16 << 20;
  size_t packets = 512;
};

struct PortFixture {
  explicit PortFixture(const PortOptions& options = {})
      : end(clock, {.packets = options.packets, .arena_bytes = options.arena_bytes}),
        counters(registry),
        session({.features = DeviceOffer::all_features(options.pairs, kAll),
                 .protocol_features = DeviceOffer::all_protocol_features(options.pairs),
                 .queue_pairs = options.pairs,
                 .queue_size_limit = 256,
                 .guest_mac = {{2, 0, 0, 0, 0, 2}},
                 .mtu = options.mtu},
                counters, nullptr),
        driver(session) {
    driver.set_features(session.offer().features & options.features);
    driver.set_memory(ram);
    for (uint32_t i = 0; i < 2u * options.pairs; ++i) {
      rings.push_back(std::make_unique<DriverRing>(ram, i * 65536, options.ring_size));
      kicks.push_back(make_event());
      calls.push_back(make_event());
      driver.start_ring(i, *rings[i], kicks[i].get(), calls[i].get());
    }
    auto opened = GuestPort::open(session, end.context, counters, {.mac = kMac});
    EXPECT_TRUE(opened);
    port = std::move(*opened);
  }
  ~PortFixture() { burst.clear(); }

  DriverRing& rx(size_t pair = 0) { return *rings[2 * pair]; }
  DriverRing& tx(size_t pair = 0) { return *rings[2 * pair + 1]; }
  [[nodiscard]] uint64_t drops(Drop reason) const {
    return registry.value(std::string("backend.drop.") + to_string(reason));
  }
  [[nodiscard]] uint64_t all_drops() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kDrops; ++i) sum += drops(static_cast<Drop>(i));
    return sum;
  }

  // The guest sends `frame` behind `header`, cut into buffers of the given sizes (the last repeats).
  void guest_sends(const wire::VirtioNetHeader& header, Bytes frame,
                   const std::vector<uint32_t>& cuts = {UINT32_MAX}, size_t pair = 0) {
    ByteVector bytes(wire::kNetHeaderBytes);
    header.emit(bytes);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    guest_sends_raw(bytes, cuts, pair);
  }
  void guest_sends_raw(Bytes bytes, const std::vector<uint32_t>& cuts = {UINT32_MAX},
                       size_t pair = 0) {
    std::vector<Buffer> buffers;
    ram.write(kData, bytes);
    for (size_t at = 0; at < bytes.size();) {
      const uint32_t cut = cuts[std::min(buffers.size(), cuts.size() - 1)];
      const auto part = static_cast<uint32_t>(std::min<size_t>(cut, bytes.size() - at));
      buffers.push_back({kGuestBase + kData + at, part});
      at += part;
    }
    ASSERT_LE(buffers.size(), tx(pair).size());
    tx(pair).set_chain(0, buffers, false);
    tx(pair).offer(0);
  }
  size_t receive() { return port->receive(0, burst); }

  // `count` receive buffers of `bytes`, one descriptor each unless cut.
  void post(size_t count, uint32_t bytes, size_t pair = 0, uint16_t descriptors_each = 1) {
    for (size_t i = 0; i < count; ++i) {
      const auto head = static_cast<uint16_t>((posted_[pair] * descriptors_each) % rx(pair).size());
      std::vector<Buffer> buffers;
      const uint64_t at = kData + (posted_[pair] % 64) * (64 << 10) % (2 << 20);
      for (uint16_t n = 0; n < descriptors_each; ++n) {
        const uint32_t part = bytes / descriptors_each;
        buffers.push_back(
            {kGuestBase + at + n * part, n + 1 == descriptors_each ? bytes - n * part : part});
      }
      heads_[{pair, head}] = {at, bytes};
      rx(pair).set_chain(head, buffers, true);
      rx(pair).offer(head);
      ++posted_[pair];
    }
  }
  // Takes one frame out of the guest's used receive buffers; checks what drivers check.
  std::pair<wire::VirtioNetHeader, ByteVector> guest_takes(size_t pair = 0) {
    ByteVector bytes;
    wire::VirtioNetHeader header;
    size_t count = 1;
    for (size_t i = 0; i < count; ++i) {
      const UsedEntry used = rx(pair).take_used();
      const auto [at, size] = heads_.at({pair, static_cast<uint16_t>(used.id)});
      EXPECT_LE(used.length, size);
      const ByteVector part = ram.read(at, used.length);
      bytes.insert(bytes.end(), part.begin(), part.end());
      if (i == 0) {
        header = *wire::VirtioNetHeader::parse(bytes);
        count = header.num_buffers;
        EXPECT_GE(count, 1u);
      }
      if (i + 1 < count) {
        EXPECT_EQ(used.length, size);  // all but the last are full
      }
    }
    bytes.erase(bytes.begin(), bytes.begin() + wire::kNetHeaderBytes);
    return {header, bytes};
  }

  // A frame of ours: the first bytes in the head, the rest in private pages.
  PacketPtr make_packet(size_t bytes, uint64_t seed) {
    PacketPtr packet = end.packets.make(64);
    const size_t head = std::min<size_t>(bytes, 54);
    const MutableBytes space = packet->append(head);
    for (size_t i = 0; i < head; ++i) space[i] = pattern(seed, i);
    for (size_t at = head; at < bytes;) {
      Page* page = end.arena->alloc(0);
      const size_t part = std::min<size_t>(bytes - at, kPageSize);
      const MutableBytes to = private_bytes(*page, 0, part);
      for (size_t i = 0; i < part; ++i) to[i] = pattern(seed, at + i);
      EXPECT_TRUE(packet->add_frag(*page, 0, static_cast<uint32_t>(part)));
      at += part;
    }
    return packet;
  }
  size_t send(PacketPtr packet) {
    PacketBurst out;
    out.push(std::move(packet));
    return port->transmit(0, out);
  }

  ManualClock clock;
  StackEnd end;
  CounterRegistry registry;
  BackendCounters counters;
  GuestRam ram;
  Session session;
  SessionDriver driver;
  std::vector<std::unique_ptr<DriverRing>> rings;
  std::vector<UniqueFd> kicks;
  std::vector<UniqueFd> calls;
  std::unique_ptr<GuestPort> port;
  PacketBurst burst;

 private:
  std::map<size_t, size_t> posted_;
  std::map<std::pair<size_t, uint16_t>, std::pair<size_t, size_t>> heads_;
};

inline ByteVector make_frame(size_t bytes, uint64_t seed) {
  ByteVector frame(bytes);
  for (size_t i = 0; i < bytes; ++i) frame[i] = pattern(seed, i);
  return frame;
}

inline ByteVector bytes_of(const Packet& packet) {
  ByteVector bytes(packet.size());
  packet.read(0, bytes);
  return bytes;
}

}  // namespace nobounce::backend::test
