#include "backend/session.hpp"

#include <algorithm>
#include <set>

#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

using Request = wire::VhostUserRequest;

DeviceOffer offer(uint16_t pairs = 1) {
  return {.features = DeviceOffer::all_features(pairs, ~uint64_t{0}),
          .protocol_features = DeviceOffer::all_protocol_features(pairs),
          .queue_pairs = pairs,
          .queue_size_limit = 256,
          .guest_mac = {{2, 0, 0, 0, 0, 9}},
          .mtu = 1500};
}

struct Fixture {
  explicit Fixture(uint16_t pairs = 1)
      : counters(registry),
        session(offer(pairs), counters, nullptr),
        driver(session),
        receive(ram, 0, 64),
        transmit(ram, 65536, 64),
        kick(make_event()),
        call(make_event()) {}

  void start() {
    driver.set_features(session.offer().features);
    driver.set_memory(ram);
    driver.start_ring(0, receive, kick.get(), call.get());
    driver.start_ring(1, transmit, kick.get(), call.get());
  }
  ByteVector state(uint32_t index, uint32_t value) {
    return encode(wire::VringState{index, value});
  }

  CounterRegistry registry;
  BackendCounters counters;
  GuestRam ram;
  Session session;
  SessionDriver driver;
  DriverRing receive;
  DriverRing transmit;
  UniqueFd kick;
  UniqueFd call;
};

// ---- offer and acknowledgement ------------------------------------------------------------------

TEST(Session, offers_what_the_device_can_do) {
  Fixture f;
  f.driver.expect_accepted(f.driver.send(Request::get_features));
  const uint64_t features = f.driver.reply_u64();
  for (const uint64_t bit :
       {wire::kVersion1, wire::kRingEventIdx, wire::kNetMrgRxbuf, wire::kNetCsum,
        wire::kNetGuestCsum, wire::kNetHostTso4, wire::kNetGuestTso6, wire::kNetMac, wire::kNetMtu,
        wire::kNetStatus, wire::kVhostUserProtocolFeatures}) {
    EXPECT_EQ(features & bit, bit) << std::hex << bit;
  }
  for (const uint64_t bit :
       {wire::kRingIndirectDesc, wire::kRingPacked, wire::kAccessPlatform, wire::kVhostLogAll,
        wire::kNetCtrlVq, wire::kNetMq, wire::kNetGuestEcn, wire::kNetHostUfo}) {
    EXPECT_EQ(features & bit, 0u) << std::hex << bit;
  }
  // The reply's header as strict front-ends check it: version 1 and reply, the same id and size.
  uint32_t words[3];
  std::memcpy(words, f.driver.reply.bytes.data(), sizeof words);
  EXPECT_EQ(words[0], 1u);
  EXPECT_EQ(words[1], 5u);
  EXPECT_EQ(words[2], 8u);
}

TEST(Session, a_masked_offer_stays_closed_under_dependencies) {
  const uint64_t no_csum = DeviceOffer::all_features(1, ~(wire::kNetCsum | wire::kNetGuestCsum));
  EXPECT_EQ(no_csum & (wire::kNetHostTso4 | wire::kNetHostTso6), 0u);
  EXPECT_EQ(no_csum & (wire::kNetGuestTso4 | wire::kNetGuestTso6), 0u);
  EXPECT_EQ(DeviceOffer::all_features(1, 0), wire::kVersion1 | wire::kVhostUserProtocolFeatures);
  EXPECT_NE(DeviceOffer::all_features(2, ~uint64_t{0}) & wire::kNetMq, 0u);
}

TEST(Session, features_are_a_subset_with_version_1) {
  Fixture f;
  const uint64_t all = f.session.offer().features;
  EXPECT_EQ(f.driver.verdict(Request::set_features, encode_u64(all | wire::kRingIndirectDesc)),
            Verdict::refused);
  EXPECT_EQ(f.driver.verdict(Request::set_features, encode_u64(~uint64_t{0})), Verdict::refused);
  EXPECT_EQ(f.driver.verdict(Request::set_features, encode_u64(all & ~wire::kVersion1)),
            Verdict::refused);
  EXPECT_EQ(f.driver.verdict(Request::set_features, encode_u64(0)), Verdict::refused);
  EXPECT_EQ(f.session.features(), 0u);
  EXPECT_EQ(f.driver.verdict(Request::set_features, encode_u64(wire::kVersion1)),
            Verdict::accepted);
  EXPECT_EQ(f.driver.verdict(Request::set_protocol_features, encode_u64(wire::kProtocolStatus)),
            Verdict::refused);
}

TEST(Session, need_reply_is_answered_once_it_was_negotiated) {
  Fixture f;
  f.driver.expect_accepted(f.driver.send(Request::set_owner, {}, {}, /*need_reply=*/true));
  EXPECT_EQ(f.driver.reply.size, 0u);
  f.driver.expect_accepted(
      f.driver.send(Request::set_protocol_features, encode_u64(wire::kProtocolReplyAck)));
  f.driver.expect_accepted(f.driver.send(Request::set_owner, {}, {}, true));
  ASSERT_EQ(f.driver.reply.size, 20u);
  EXPECT_EQ(f.driver.reply_u64(), 0u);
  EXPECT_EQ(f.driver.send(Request::set_vring_num, f.state(0, 3), {}, true).verdict,
            Verdict::refused);
  ASSERT_EQ(f.driver.reply.size, 20u);
  EXPECT_EQ(f.driver.reply_u64(), 1u);
  // Requests with a reply of their own get that one alone.
  f.driver.expect_accepted(f.driver.send(Request::get_features, {}, {}, true));
  EXPECT_EQ(f.driver.reply_u64(), f.session.offer().features);
  // Without being asked: silence, and the connection closes on a refusal.
  EXPECT_EQ(f.driver.verdict(Request::set_vring_num, f.state(0, 3)), Verdict::refused);
  EXPECT_EQ(f.driver.reply.size, 0u);
}

TEST(Session, configuration_shows_mac_status_pairs_and_mtu) {
  Fixture f;
  wire::ConfigSpace ask{.offset = 0, .size = 12};
  f.driver.expect_accepted(f.driver.send(Request::get_config, encode(ask)));
  EXPECT_EQ(f.driver.reply.size, 24u);  // not negotiated: the error form, no content
  EXPECT_EQ(f.driver.reply_u32(4), 0u);
  f.driver.expect_accepted(
      f.driver.send(Request::set_protocol_features, encode_u64(wire::kProtocolConfig)));
  f.driver.expect_accepted(f.driver.send(Request::get_config, encode(ask)));
  ASSERT_EQ(f.driver.reply.size, 36u);
  const Bytes content = Bytes(f.driver.reply.bytes).subspan(24, 12);
  EXPECT_EQ(content[0], std::byte{2});
  EXPECT_EQ(content[5], std::byte{9});
  EXPECT_EQ(load_le<uint16_t>(content, 6), wire::kNetLinkUp);
  EXPECT_EQ(load_le<uint16_t>(content, 8), 1u);
  EXPECT_EQ(load_le<uint16_t>(content, 10), 1500u);
  // Longer than we know: zeros; beyond the space, wrapped, or nothing: an error reply.
  ask = {.offset = 10, .size = 200};
  f.driver.expect_accepted(f.driver.send(Request::get_config, encode(ask)));
  EXPECT_EQ(f.driver.reply.size, 224u);
  EXPECT_EQ(f.driver.reply.bytes[24 + 2], std::byte{0});
  for (const auto& [offset, size] : {std::pair{256u, 1u}, {255u, 2u}, {UINT32_MAX, 2u}, {0u, 0u}}) {
    SCOPED_TRACE(offset);
    ask = {.offset = offset, .size = size};
    f.driver.expect_accepted(f.driver.send(Request::get_config, encode(ask)));
    EXPECT_EQ(f.driver.reply.size, 24u);
    EXPECT_EQ(f.driver.reply_u32(4), 0u);
  }
  ask = {.offset = 0, .size = 4};
  EXPECT_EQ(f.driver.verdict(Request::set_config, encode(ask)), Verdict::refused);
}

TEST(Session, mtu_of_the_guest_is_taken_within_range) {
  Fixture f;
  EXPECT_EQ(f.driver.verdict(Request::net_set_mtu, encode_u64(1400)), Verdict::refused);
  f.driver.expect_accepted(
      f.driver.send(Request::set_protocol_features, encode_u64(wire::kProtocolMtu)));
  for (const uint64_t mtu : {uint64_t{0}, uint64_t{67}, uint64_t{65536}, ~uint64_t{0}}) {
    EXPECT_EQ(f.driver.verdict(Request::net_set_mtu, encode_u64(mtu)), Verdict::refused);
  }
  EXPECT_EQ(f.driver.verdict(Request::net_set_mtu, encode_u64(1400)), Verdict::accepted);
  EXPECT_EQ(f.session.mtu(), 1400);
  EXPECT_EQ(f.driver.verdict(Request::net_set_mtu, encode_u64(9000)), Verdict::accepted);
  EXPECT_EQ(f.session.mtu(), 1500);  // never more than we can take
}

// ---- order ------------------------------------------------------------------------------------

TEST(Session, starts_and_stops_rings_in_the_order_of_front_ends) {
  Fixture f(2);
  f.driver.expect_accepted(f.driver.send(Request::set_owner));
  f.driver.expect_accepted(f.driver.send(Request::get_queue_num));
  EXPECT_EQ(f.driver.reply_u64(), 2u);  // pairs, not rings
  // Calls and enables before everything else, as some do.
  for (uint32_t i = 0; i < 4; ++i) {
    f.driver.expect_accepted(f.driver.set_event(Request::set_vring_call, i, f.call.get()));
  }
  EXPECT_FALSE(f.session.is_ready());
  f.start();
  EXPECT_TRUE(f.session.is_ready());
  EXPECT_TRUE(Session::is_live(f.session.receive_ring(0)));
  EXPECT_FALSE(Session::is_live(f.session.receive_ring(1)));
  for (uint32_t i = 0; i < 4; ++i) {
    f.driver.expect_accepted(f.driver.send(Request::set_vring_enable, f.state(i, 0)));
    f.driver.expect_accepted(f.driver.send(Request::get_vring_base, f.state(i, 0)));
    EXPECT_EQ(f.driver.reply_u32(0), i);
    EXPECT_EQ(f.driver.reply_u32(4), 0u);
  }
  EXPECT_FALSE(f.session.is_ready());
  f.start();  // and again
  EXPECT_TRUE(f.session.is_ready());
}

TEST(Session, TM78_what_is_out_of_order_is_refused_and_touches_no_ring) {
  Fixture f;
  const uint64_t features = f.session.offer().features;
  const ByteVector before = f.ram.read(0, f.transmit.end());
  const auto addr = encode(f.receive.address(0));
  const auto num = f.state(0, 64);
  EXPECT_EQ(f.driver.verdict(Request::set_vring_addr, addr), Verdict::refused);  // no memory
  f.driver.set_memory(f.ram);
  EXPECT_EQ(f.driver.verdict(Request::set_vring_addr, addr), Verdict::refused);  // no size
  f.driver.expect_accepted(f.driver.send(Request::set_vring_num, num));
  EXPECT_EQ(f.driver.set_event(Request::set_vring_kick, 0, f.kick.get()).verdict,
            Verdict::refused);  // no features, no addresses
  f.driver.expect_accepted(f.driver.send(Request::set_vring_addr, addr));
  EXPECT_EQ(f.driver.set_event(Request::set_vring_kick, 0, f.kick.get()).verdict,
            Verdict::refused);  // no features
  EXPECT_EQ(f.driver.verdict(Request::set_vring_enable, f.state(0, 1)), Verdict::refused);
  f.driver.set_features(features);
  // A new size forgets the addresses: they were checked for the old one.
  f.driver.expect_accepted(f.driver.send(Request::set_vring_num, num));
  EXPECT_EQ(f.driver.set_event(Request::set_vring_kick, 0, f.kick.get()).verdict, Verdict::refused);
  EXPECT_EQ(f.ram.read(0, f.transmit.end()), before);

  f.start();
  // While it runs nothing of it changes.
  for (const auto& [request, payload] :
       {std::pair{Request::set_vring_num, num},
        {Request::set_vring_base, num},
        {Request::set_vring_addr, addr},
        {Request::set_features, encode_u64(features & ~wire::kNetMrgRxbuf)}}) {
    EXPECT_EQ(f.driver.verdict(request, payload), Verdict::refused) << to_string(request);
  }
  f.driver.set_features(features);  // the same again is fine
  EXPECT_TRUE(Session::is_live(f.session.receive_ring(0)));
}

TEST(Session, rings_are_enabled_by_start_when_bit_30_is_not_acknowledged) {
  Fixture f;
  f.driver.set_features(f.session.offer().features & ~wire::kVhostUserProtocolFeatures);
  f.driver.set_memory(f.ram);
  f.driver.start_ring(0, f.receive, f.kick.get(), f.call.get());
  EXPECT_TRUE(Session::is_live(f.session.receive_ring(0)));
  EXPECT_EQ(f.driver.verdict(Request::set_vring_enable, f.state(0, 0)), Verdict::refused);
}

TEST(Session, TM75_values_are_judged_as_the_32_bits_they_came_in) {
  Fixture f;
  f.driver.set_features(f.session.offer().features);
  f.driver.set_memory(f.ram);
  for (const uint32_t index : {2u, 255u, 256u, 65536u, 65537u, UINT32_MAX}) {
    SCOPED_TRACE(index);
    for (const Request request :
         {Request::set_vring_num, Request::set_vring_base, Request::set_vring_enable}) {
      EXPECT_EQ(f.driver.verdict(request, f.state(index, 1)), Verdict::refused);
    }
    EXPECT_EQ(f.driver.verdict(Request::get_vring_base, f.state(index, 0)), Verdict::fault);
    EXPECT_EQ(f.driver.verdict(Request::set_vring_addr, encode(f.receive.address(index))),
              Verdict::refused);
  }
  // C063: ring sizes.
  for (const uint32_t size :
       {0u, 3u, 5u, 63u, 65u, 257u, 512u, 32768u, 65535u, 65536u, 65600u, UINT32_MAX}) {
    EXPECT_EQ(f.driver.verdict(Request::set_vring_num, f.state(0, size)), Verdict::refused) << size;
  }
  for (const uint32_t size : {1u, 2u, 64u, 256u}) {
    EXPECT_EQ(f.driver.verdict(Request::set_vring_num, f.state(0, size)), Verdict::accepted)
        << size;
  }
  EXPECT_EQ(f.driver.verdict(Request::set_vring_base, f.state(0, 65535)), Verdict::accepted);
  EXPECT_EQ(f.driver.verdict(Request::set_vring_base, f.state(0, 65536)), Verdict::refused);
  for (const uint32_t value : {2u, 256u, UINT32_MAX}) {
    EXPECT_EQ(f.driver.verdict(Request::set_vring_enable, f.state(0, value)), Verdict::refused);
  }
}

TEST(Session, TM76_ring_addresses_lie_aligned_in_one_region) {
  Fixture f;
  f.driver.set_features(f.session.offer().features);
  f.driver.set_memory(f.ram);
  f.driver.expect_accepted(f.driver.send(Request::set_vring_num, f.state(0, 64)));
  const wire::VringAddr good = f.receive.address(0);
  const uint64_t end = kUserBase + f.ram.size();
  const auto verdict = [&](auto&& change) {
    wire::VringAddr addr = good;
    change(addr);
    return f.driver.verdict(Request::set_vring_addr, encode(addr));
  };
  EXPECT_EQ(verdict([](auto&) {}), Verdict::accepted);
  EXPECT_EQ(verdict([](auto& a) { a.descriptors += 8; }), Verdict::refused);
  EXPECT_EQ(verdict([](auto& a) { a.avail += 1; }), Verdict::refused);
  EXPECT_EQ(verdict([](auto& a) { a.used += 2; }), Verdict::refused);
  EXPECT_EQ(verdict([](auto& a) { a.descriptors = 0; }), Verdict::refused);
  EXPECT_EQ(verdict([](auto& a) { a.used = UINT64_MAX - 3; }), Verdict::refused);
  EXPECT_EQ(verdict([&](auto& a) { a.descriptors = end - 64 * 16; }), Verdict::accepted);
  EXPECT_EQ(verdict([&](auto& a) { a.descriptors = end - 63 * 16; }), Verdict::refused);
  EXPECT_EQ(verdict([&](auto& a) { a.avail = end - (6 + 2 * 64); }), Verdict::accepted);
  EXPECT_EQ(verdict([&](auto& a) { a.avail = end - (4 + 2 * 64); }), Verdict::refused);
  EXPECT_EQ(verdict([](auto& a) { a.flags = 1; }), Verdict::refused);  // logging
}

TEST(Session, TM78_a_new_memory_table_moves_running_rings) {
  Fixture f;
  f.start();
  // Used once in the old table.
  f.transmit.set_chain(0, {{kGuestBase + (1 << 20), 64}}, false);
  f.transmit.offer(0);
  DeviceQueue& queue = f.session.transmit_ring(0).queue;
  Chain chain;
  ASSERT_TRUE(queue.walk(chain));
  queue.complete(chain, 0);
  queue.publish();
  EXPECT_EQ(f.transmit.take_used().id, 0u);
  // A table without the rings is refused and the old one stays.
  wire::MemTable other = f.ram.table();
  other.regions[0].user_address += uint64_t{1} << 40;
  const auto with_ram = [&] {
    std::vector<UniqueFd> fds;
    fds.push_back(duplicate(f.ram.fd()));
    return fds;
  };
  EXPECT_EQ(f.driver.verdict(Request::set_mem_table, encode(other), with_ram()), Verdict::refused);
  // The same memory at other guest addresses: rings go on where they were.
  other = f.ram.table();
  other.regions[0].guest_address = kGuestBase * 16;
  EXPECT_EQ(f.driver.verdict(Request::set_mem_table, encode(other), with_ram()), Verdict::accepted);
  f.transmit.set_chain(1, {{kGuestBase * 16 + (1 << 20), 64}}, false);
  f.transmit.offer(1);
  ASSERT_TRUE(queue.walk(chain));
  EXPECT_EQ(chain.head, 1);
  queue.complete(chain, 0);
  queue.publish();
  EXPECT_EQ(f.transmit.take_used().id, 1u);
  EXPECT_EQ(queue.broken(), RingBreak::none);
}

TEST(Session, a_call_fd_that_is_replaced_is_told_once) {
  Fixture f;
  f.start();
  const UniqueFd fresh = make_event();
  f.driver.expect_accepted(f.driver.set_event(Request::set_vring_call, 0, fresh.get()));
  EXPECT_EQ(event_count(fresh.get()), 1u);
  f.driver.expect_accepted(f.driver.set_event(Request::set_vring_call, 0, -1));
}

TEST(Session, only_events_are_taken_as_events) {
  Fixture f;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  for (const Request request :
       {Request::set_vring_kick, Request::set_vring_call, Request::set_vring_err}) {
    EXPECT_EQ(f.driver.set_event(request, 0, writer.get()).verdict, Verdict::refused);
    EXPECT_EQ(f.driver.set_event(request, 0, f.ram.fd()).verdict, Verdict::refused);
    // Flag and fd contradict.
    EXPECT_EQ(f.driver.verdict(request, encode(wire::VringFd{.index = 0, .no_fd = false})),
              Verdict::fault);
    std::vector<UniqueFd> fds;
    fds.push_back(duplicate(f.call.get()));
    EXPECT_EQ(
        f.driver.verdict(request, encode(wire::VringFd{.index = 0, .no_fd = true}), std::move(fds)),
        Verdict::fault);
  }
}

// ---- form -------------------------------------------------------------------------------------

TEST(Session, what_was_never_offered_is_a_fault) {
  Fixture f;
  const auto with_fd = [&] {
    std::vector<UniqueFd> fds;
    fds.push_back(duplicate(f.ram.fd()));
    return fds;
  };
  EXPECT_EQ(f.driver.verdict(Request::set_log_base, ByteVector(16), with_fd()), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::set_inflight_fd, ByteVector(24), with_fd()), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::add_mem_reg, ByteVector(40), with_fd()), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::set_backend_req_fd, {}, with_fd()), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::iotlb_msg, ByteVector(32)), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::send_rarp, ByteVector(8)), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(Request::set_status, ByteVector(8)), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(static_cast<Request>(0)), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(static_cast<Request>(26)), Verdict::fault);
  EXPECT_EQ(f.driver.verdict(static_cast<Request>(UINT32_MAX)), Verdict::fault);
  Message reply = make_message(Request::get_features);
  reply.header.reply = true;
  EXPECT_EQ(f.session.handle(reply, f.driver.reply).verdict, Verdict::fault);
}

TEST(Session, TM75_repetition_replaces_and_leaks_nothing) {
  Fixture f;
  f.start();
  const size_t before = open_fds();
  for (int i = 0; i < 2000; ++i) {
    f.driver.set_memory(f.ram);
    for (const Request request :
         {Request::set_vring_kick, Request::set_vring_call, Request::set_vring_err}) {
      f.driver.expect_accepted(f.driver.set_event(request, i % 2, f.call.get()));
    }
    f.driver.expect_accepted(f.driver.send(Request::set_owner));
    f.driver.expect_accepted(f.driver.send(Request::get_vring_base, f.state(1, 0)));
    f.driver.start_ring(1, f.transmit, f.kick.get(), f.call.get());
  }
  EXPECT_LE(open_fds(), before + 2);  // the two error events
}

// Bytes, sizes and fds at random: an answer each time, and every fd is closed again.
TEST(Session, TM73_TM74_message_fuzz) {
  const size_t before = open_fds();
  size_t accepted = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f(static_cast<uint16_t>(1 + random.below(2)));
    if (random.below(2) == 0) f.start();
    for (int i = 0; i < 500; ++i) {
      // Half of them have the right form, so that the states behind it are reached too.
      const auto request = static_cast<Request>(random.below(42));
      const auto rule = wire::vhost_user_rule(request);
      const bool formed = rule && random.below(2) == 0;
      ByteVector payload(formed ? rule->size_min : random.below(wire::kVhostUserPayloadMax + 1));
      const auto limit = random.below(2) == 0 ? 3u : 256u;
      for (std::byte& byte : payload) byte = static_cast<std::byte>(random.below(limit));
      std::vector<UniqueFd> fds;
      const uint32_t count =
          formed ? rule->fds_min + random.below(2) * (rule->fds_max > 0) : random.below(9);
      for (uint32_t n = 0; n < count; ++n) {
        fds.push_back(duplicate(random.below(2) == 0 ? f.call.get() : f.ram.fd()));
      }
      const auto outcome = f.driver.send(request, payload, std::move(fds), random.below(2) == 0);
      if (outcome.verdict == Verdict::accepted) ++accepted;
      Chain chain;
      DeviceQueue& queue = f.session.vring(random.below(2)).queue;
      if (queue.walk(chain)) queue.complete(chain, 0);
      queue.publish();
      queue.rewind();
    }
  }
  EXPECT_EQ(open_fds(), before);
  EXPECT_GT(accepted, 1000u);
}

// Legal and illegal sequences against a model of the table in session.hpp.
TEST(Session, TM78_random_sequences_against_a_model) {
  struct Model {
    bool features = false, memory = false;
    struct Ring {
      bool size = false, address = false, started = false;
    } rings[2];
  };
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f;
    Model m;
    for (int i = 0; i < 300; ++i) {
      const uint32_t index = random.below(2);
      Model::Ring& ring = m.rings[index];
      const DriverRing& place = index == 0 ? f.receive : f.transmit;
      bool legal = true;
      Verdict verdict = Verdict::fault;
      const uint32_t step = random.below(8);
      switch (step) {
        case 0:
          verdict = f.driver.verdict(Request::set_features, encode_u64(f.session.offer().features));
          m.features = true;
          break;
        case 1: {
          std::vector<UniqueFd> fds;
          fds.push_back(duplicate(f.ram.fd()));
          verdict = f.driver.verdict(Request::set_mem_table, encode(f.ram.table()), std::move(fds));
          m.memory = true;
          break;
        }
        case 2:
          legal = !ring.started;
          verdict = f.driver.verdict(Request::set_vring_num, f.state(index, 64));
          if (legal) ring = {.size = true};
          break;
        case 3:
          legal = !ring.started;
          verdict = f.driver.verdict(Request::set_vring_base, f.state(index, 0));
          break;
        case 4:
          legal = !ring.started && m.memory && ring.size;
          verdict = f.driver.verdict(Request::set_vring_addr, encode(place.address(index)));
          if (legal) ring.address = true;
          break;
        case 5:
          legal = ring.started || (m.features && m.memory && ring.address);
          verdict = f.driver.set_event(Request::set_vring_kick, index, f.kick.get()).verdict;
          if (legal) ring.started = true;
          break;
        case 6:
          verdict = f.driver.verdict(Request::get_vring_base, f.state(index, 0));
          if (ring.started) ring = {.size = true};
          break;
        default:
          legal = m.features;
          verdict = f.driver.verdict(Request::set_vring_enable, f.state(index, random.below(2)));
          break;
      }
      ASSERT_EQ(verdict, legal ? Verdict::accepted : Verdict::refused) << "step " << step;
      ASSERT_EQ(f.session.vring(index).queue.is_started(), ring.started);
    }
  }
}

}  // namespace
}  // namespace nobounce::backend::test
