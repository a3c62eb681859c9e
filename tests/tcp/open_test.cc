// Opening: T-3, T-7..T-16, T-49, T-50, T-52, C052, C057.
#include <fstream>
#include <optional>
#include <set>

#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

TcpOptions all_options(uint32_t timestamp = 1000) {
  TcpOptions options;
  options.mss = 1460;
  options.window_scale = 7;
  options.sack_permitted = true;
  options.timestamps = {timestamp, 0};
  return options;
}

TEST(TcpOpen, T7_syn_offers_everything) {
  Script script;
  script.start_connect();
  const TcpHeader& syn = script.first_syn.header;
  EXPECT_EQ(syn.options.mss, 1460);
  EXPECT_TRUE(syn.options.sack_permitted);
  EXPECT_TRUE(syn.options.timestamps.has_value());
  EXPECT_EQ(syn.options.window_scale, 7);  // 4 MiB need 7
  EXPECT_EQ(syn.window, 65535);            // never scaled in a SYN (T-4)
  EXPECT_EQ(script.first_syn.size, 0U);
}

TEST(TcpOpen, T10_active_open_completes) {
  Script script;
  script.connect();
  EXPECT_EQ(script.recorder().connected, 1);
  script.write(10);
  const Out data = script.out();
  EXPECT_EQ(script.seq(data), 1U);
  EXPECT_EQ(script.ack(data), 1U);
  EXPECT_EQ(data.size, 10U);
}

TEST(TcpOpen, T49_T50_passive_open_answers_only_what_was_offered) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, 5, 0, {.options = {}});
  Out syn_ack = script.out();
  EXPECT_TRUE(syn_ack.header.options.mss.has_value());
  EXPECT_FALSE(syn_ack.header.options.window_scale.has_value());
  EXPECT_FALSE(syn_ack.header.options.sack_permitted);
  EXPECT_FALSE(syn_ack.header.options.timestamps.has_value());
  script.peer_port = 4001;
  script.send_raw(kTcpSyn, 5, 0, {.options = all_options(77)});
  syn_ack = script.out();
  EXPECT_TRUE(syn_ack.header.options.window_scale.has_value());
  EXPECT_TRUE(syn_ack.header.options.sack_permitted);
  ASSERT_TRUE(syn_ack.header.options.timestamps.has_value());
  EXPECT_EQ(syn_ack.header.options.timestamps->echo, 77U);
}

TEST(TcpOpen, T8_initial_numbers_grow_with_time_and_differ_by_tuple) {
  Script script;
  script.listen();
  std::set<uint32_t> numbers;
  for (uint16_t port = 1000; port < 1010; ++port) {
    script.peer_port = port;
    script.send_raw(kTcpSyn, 5, 0);
    numbers.insert(script.out().header.sequence >> 16);
  }
  EXPECT_GT(numbers.size(), 8U);
  // The same tuple later: 4 us a step.
  script.send_raw(kTcpRst | kA, 6, 0);
  script.peer_port = 2000;
  script.send_raw(kTcpSyn, 5, 0);
  const uint32_t first = script.out().header.sequence;
  script.send_raw(kTcpRst | kA, 6, 0);
  script.advance(40 * kMilli);
  script.drop_output();
  script.send_raw(kTcpSyn, 5, 0);
  EXPECT_EQ(script.out().header.sequence - first, 10'000U);
  // Another start of the machine: another secret.
  Script other({.seed = 2});
  other.peer_port = 2000;
  other.listen();
  other.send_raw(kTcpSyn, 5, 0);
  EXPECT_NE(other.out().header.sequence, first);
}

TEST(TcpOpen, T9_ephemeral_ports_are_random_and_never_doubled) {
  Script script;
  std::set<uint16_t> ports;
  std::vector<tcp::Connection*> made;
  Recorder recorder;
  for (int i = 0; i < 200; ++i) {
    auto connection = script.tcp->connect({}, {kPeerAddress, 80}, recorder, {});
    ASSERT_TRUE(connection.has_value());
    made.push_back(*connection);
    ports.insert(script.tcp->info(**connection).local.port);
  }
  EXPECT_EQ(ports.size(), 200U);
  EXPECT_GT(*ports.rbegin() - *ports.begin(), 10'000);
  for (tcp::Connection* connection : made) script.tcp->abort(*connection);
  EXPECT_EQ(script.tcp->connections(), 0U);
  script.pump();
}

TEST(TcpOpen, T10_simultaneous_open) {
  Script script;
  script.start_connect();
  script.in(kTcpSyn, 0, 0, {.options = script.options.peer_syn});
  EXPECT_EQ(script.state(), "SYN-RECEIVED");
  const Out answer = script.out();
  EXPECT_EQ(answer.header.flags, kTcpSyn | kA);
  EXPECT_EQ(script.seq(answer), 0U);
  EXPECT_EQ(script.ack(answer), 1U);
  script.in(kTcpSyn | kA, 0, 1);
  EXPECT_EQ(script.state(), "ESTABLISHED");
  EXPECT_EQ(script.recorder().connected, 1);
  EXPECT_EQ(script.ack(script.out()), 1U);
}

TEST(TcpOpen, T10_reset_in_syn_received_by_origin) {
  Script active;
  active.start_connect();
  active.in(kTcpSyn, 0, 0, {.options = active.options.peer_syn});
  active.in(kTcpRst, 1, 0);
  EXPECT_EQ(active.recorder().reason, std::errc::connection_refused);

  Script passive;
  passive.listen();
  passive.send_raw(kTcpSyn, passive.options.peer_isn, 0);
  passive.our_isn = passive.out().header.sequence;
  EXPECT_EQ(passive.tcp->connections(), 1U);
  passive.in(kTcpRst, 1, 0);
  EXPECT_EQ(passive.tcp->connections(), 0U);
  EXPECT_EQ(passive.acceptor.asked, 0);
  passive.accept();  // the listener still works
}

TEST(TcpOpen, T11_bad_targets_are_refused) {
  Script script;
  Recorder recorder;
  for (const IpAddress& address : {IpAddress::v4(224, 0, 0, 1), IpAddress::v4(255, 255, 255, 255),
                                   IpAddress::v4(192, 0, 2, 255), IpAddress()}) {
    EXPECT_FALSE(script.tcp->connect({}, {address, 80}, recorder, {}).has_value());
  }
  EXPECT_FALSE(script.tcp->connect({}, {kPeerAddress, 0}, recorder, {}).has_value());
  EXPECT_EQ(
      script.tcp->connect({IpAddress::v4(9, 9, 9, 9), 0}, {kPeerAddress, 80}, recorder, {}).error(),
      std::errc::address_not_available);
  EXPECT_EQ(script.tcp->connections(), 0U);
}

TEST(TcpOpen, T11_listeners_by_address_and_port) {
  Script script;
  RecordingAcceptor any;
  auto wide = script.tcp->listen({{}, 80}, 4, any, {});
  ASSERT_TRUE(wide.has_value());
  script.listen();  // the exact address, same port
  EXPECT_EQ(script.tcp->listen({kOurAddress, 80}, 4, any, {}).error(), std::errc::address_in_use);
  script.accept();
  EXPECT_EQ(any.asked, 0);
  auto chosen = script.tcp->listen({{}, 0}, 4, any, {});
  ASSERT_TRUE(chosen.has_value());
  EXPECT_NE(script.tcp->local(**chosen).port, 0);
  script.tcp->close(*wide);
  script.tcp->close(*chosen);
}

TEST(TcpOpen, T12_syn_is_sent_again_with_doubling_gaps_for_three_minutes) {
  Script script;
  script.start_connect();
  const uint64_t start = script.first_syn.at_ns;
  script.advance(179 * kNsPerSecond);
  for (const uint64_t at : {1, 3, 7, 15, 31, 63}) {
    const Out again = script.out();
    EXPECT_EQ(again.header.flags, kTcpSyn);
    EXPECT_EQ(script.seq(again), 0U);
    EXPECT_EQ(again.at_ns - start, at * kNsPerSecond);
  }
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.recorder().closed, 0);
  script.advance(200 * kNsPerSecond);
  EXPECT_EQ(script.recorder().reason, std::errc::timed_out);
  EXPECT_EQ(script.recorder().closed, 1);
}

TEST(TcpOpen, T12_after_syn_loss_one_segment_and_three_seconds) {
  Script script;
  script.start_connect();
  script.advance(kNsPerSecond);
  (void)script.out();
  script.in(kTcpSyn | kA, 0, 1, {.options = script.options.peer_syn});
  (void)script.out();
  EXPECT_EQ(script.info().congestion_window, 1460U);
  EXPECT_EQ(script.info().rto_ns, 3 * kNsPerSecond);
}

TEST(TcpOpen, T13_data_on_syn_is_not_delivered_data_on_third_ack_is) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0, {.payload = 50});
  const Out syn_ack = script.out();
  script.our_isn = syn_ack.header.sequence;
  EXPECT_EQ(script.ack(syn_ack), 1U);
  script.in(kA, 1, 1, {.payload = 20});
  script.connection = script.acceptor.connection;
  ASSERT_NE(script.connection, nullptr);
  EXPECT_EQ(script.read(), 20U);
}

TEST(TcpOpen, T14_wrong_ack_in_syn_sent_is_reset_and_rst_needs_our_ack) {
  for (const uint32_t wrong : {0u, 2u, 0x80000000u, 0xffffffffu}) {
    Script script;
    script.start_connect();
    script.in(kTcpSyn | kA, 0, wrong);
    const Out reset = script.out();
    EXPECT_EQ(reset.header.flags, kTcpRst);
    EXPECT_EQ(script.seq(reset), wrong);
    EXPECT_EQ(script.state(), "SYN-SENT");
    script.drop_output();
    script.in(kTcpRst | kA, 0, wrong);
    EXPECT_EQ(script.state(), "SYN-SENT");
    script.in(kTcpRst, 0, 0);
    EXPECT_EQ(script.state(), "SYN-SENT");
    EXPECT_TRUE(script.quiet());
    script.in(kTcpRst | kA, 0, 1);
    EXPECT_EQ(script.recorder().reason, std::errc::connection_refused);
  }
}

TEST(TcpOpen, C057_challenge_ack_in_syn_sent_leads_to_rst_and_immediate_syn) {
  Script script;
  script.start_connect();
  script.in(kA, 500, 777);
  const Out reset = script.out();
  EXPECT_EQ(reset.header.flags, kTcpRst);
  EXPECT_EQ(script.seq(reset), 777U);
  EXPECT_EQ(script.out().header.flags, kTcpSyn);
  script.in(kA, 500, 777);  // once, not for ever
  EXPECT_EQ(script.out().header.flags, kTcpRst);
  EXPECT_TRUE(script.quiet());
}

TEST(TcpOpen, T16_syn_ack_retries_and_duplicate_syn) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  const Out first = script.out();
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);
  script.send_raw(kTcpSyn, script.options.peer_isn, 0);  // rate limited
  EXPECT_EQ(script.pending(), 1U);
  const Out again = script.out();
  EXPECT_EQ(again.header.sequence, first.header.sequence);
  EXPECT_EQ(script.tcp->connections(), 1U);
  script.advance(300 * kNsPerSecond);
  EXPECT_EQ(script.pending(), 5U);
  EXPECT_EQ(script.tcp->connections(), 0U);
}

TEST(TcpOpen, T52_mss_extremes) {
  for (const auto& [offered, used] :
       std::vector<std::pair<std::optional<uint16_t>, uint32_t>>{{0, 88},
                                                                 {1, 88},
                                                                 {47, 88},
                                                                 {88, 88},
                                                                 {536, 536},
                                                                 {1460, 1460},
                                                                 {65535, 1460},
                                                                 {std::nullopt, 536}}) {
    ScriptOptions options;
    options.peer_syn.mss = offered;
    Script script(options);
    script.accept();
    script.write(3000);
    EXPECT_EQ(script.out().size, used);
  }
}

TEST(TcpOpen, C052_window_scale_extremes) {
  struct Case {
    ByteVector option;
    std::optional<unsigned> shift;
  };
  const auto bytes = [](std::initializer_list<int> values) {
    ByteVector v;
    for (const int value : values) v.push_back(static_cast<std::byte>(value));
    return v;
  };
  for (const Case& c :
       {Case{bytes({3, 3, 0, 1}), 0}, Case{bytes({3, 3, 14, 1}), 14},
        Case{bytes({3, 3, 15, 1}), 14}, Case{bytes({3, 3, 255, 1}), 14},
        Case{bytes({1, 1, 1, 1}), std::nullopt}, Case{bytes({3, 2, 1, 1}), std::nullopt},
        Case{bytes({3, 4, 7, 7}), std::nullopt}, Case{bytes({3, 3, 9, 1, 3, 3, 2, 1}), 2}}) {
    SCOPED_TRACE(c.option.size());
    Script script;
    script.listen();
    ByteVector syn(20 + c.option.size());
    TcpHeader header;
    header.source_port = script.peer_port;
    header.destination_port = script.our_port;
    header.sequence = script.options.peer_isn;
    header.flags = kTcpSyn;
    header.window = 1000;
    header.emit(syn);
    store_be<uint8_t>(syn, 12, static_cast<uint8_t>((syn.size() / 4) << 4));
    std::ranges::copy(c.option, syn.begin() + 20);
    script.queue_tcp(syn);
    script.pump();
    const Out answer = script.out();
    script.our_isn = answer.header.sequence;
    EXPECT_EQ(answer.header.options.window_scale.has_value(), c.shift.has_value());
    script.in(kA, 1, 1, {.window = 1000});
    script.connection = script.acceptor.connection;
    ASSERT_NE(script.connection, nullptr);
    EXPECT_EQ(script.info().send_window, 1000U << c.shift.value_or(0));
    if (!c.shift) {
      EXPECT_LE(script.info().receive_window, 65535U);
    }
  }
}

// What the process has resident; nothing under a sanitizer, whose own memory grows.
std::optional<size_t> resident_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::nullopt;
#else
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * kPageSize;
#endif
}

// 10^6 SYNs, 100,000 a second of virtual time, from random sources.
class TcpFlood : public testing::Test {
 protected:
  static constexpr size_t kSyns = 1'000'000;
  static constexpr uint32_t kBacklog = 128;
  static constexpr uint64_t kGapNs = 10'000;
  static constexpr size_t kAtOnce = 32;  // in one burst

  TcpFlood() : script(options()) { script.listen(kBacklog); }
  static ScriptOptions options() {
    ScriptOptions options;
    options.layer.connections_max = 512;
    options.connection.receive_buffer = 1 << 16;
    return options;
  }

  void syn_burst() {
    for (size_t i = 0; i < kAtOnce; ++i) {
      In segment;
      segment.source = IpAddress::v4(0x0b000000 | (random.next_u32() & 0xffffff));
      segment.port = static_cast<uint16_t>(1024 + random.below(60'000));
      script.queue_raw(kTcpSyn, random.next_u32(), 0, segment);
    }
    script.clock.advance(kAtOnce * kGapNs);
    script.pump();
    syns += kAtOnce;
    while (!script.quiet()) note(script.out());
  }
  // Everything that is not for the honest client answers a SYN and acknowledges nothing but that.
  void note(const Out& answer) {
    if (answer.destination == kPeerAddress) {
      honest_answer = answer;
    } else if (answer.has(kTcpRst)) {
      ++resets;
    } else {
      EXPECT_EQ(answer.header.flags, kTcpSyn | kA);
      EXPECT_EQ(answer.size, 0U);
    }
  }
  // A connection of the honest client, three bursts of the flood away; it says something and goes.
  void honest_connect() {
    const uint64_t start = script.clock.now_ns();
    script.peer_port = next_port_++;
    script.acceptor.connection = nullptr;
    honest_answer.reset();
    script.queue_raw(kTcpSyn, script.options.peer_isn, 0, {});
    for (int i = 0; i < 3; ++i) syn_burst();
    ASSERT_TRUE(honest_answer.has_value()) << "after " << syns;
    ASSERT_EQ(honest_answer->header.flags, kTcpSyn | kA);
    ASSERT_EQ(honest_answer->header.acknowledgement, script.options.peer_isn + 1);
    script.our_isn = honest_answer->header.sequence;
    script.queue(kA, 1, 1, {.payload = 10});
    syn_burst();
    script.connection = script.acceptor.connection;
    ASSERT_NE(script.connection, nullptr) << "after " << syns;
    EXPECT_LT(script.clock.now_ns() - start, kNsPerSecond);
    EXPECT_EQ(script.read(), 10U);
    script.tcp->abort(*std::exchange(script.connection, nullptr));
    syn_burst();
    ++honest;
  }

  Script script;
  SeededRandom random{99};
  size_t syns = 0, honest = 0, resets = 0;
  std::optional<Out> honest_answer;

 private:
  uint16_t next_port_ = 5000;
};

TEST_F(TcpFlood, C057_T15_memory_is_flat_and_an_honest_client_gets_through) {
  std::optional<size_t> resident;
  const uint64_t pages = script.end.arena->pages_free();
  while (syns < kSyns) {
    for (size_t until = syns + 20'000; syns < until;) {
      syn_burst();
      ASSERT_LE(script.tcp->connections(), kBacklog);
    }
    ASSERT_NO_FATAL_FAILURE(honest_connect());
    // At rest nothing is held but the half-open connections themselves.
    EXPECT_EQ(script.end.packets.in_use(), 0U);
    EXPECT_EQ(script.end.arena->pages_free(), pages);
    if (!resident) resident = resident_bytes();
  }
  EXPECT_EQ(honest, 50U);
  EXPECT_EQ(resets, 0U);
  EXPECT_GE(script.count("tcp.limit.half_open"), kSyns - 2 * kBacklog);
  EXPECT_EQ(script.count("tcp.established"), honest);
  // No half-open connection was let go, so every client, honest or not, was answered by a cookie.
  EXPECT_EQ(script.count("tcp.cookie.accepted"), honest);
  EXPECT_EQ(script.count("tcp.cookie.sent"), script.count("tcp.limit.half_open"));
  EXPECT_EQ(script.tcp->connections(), kBacklog);
  if (resident) {
    EXPECT_LT(resident_bytes().value(), *resident + (1 << 20));
  }
}

TEST(TcpOpen, T11_T22_group_destination_is_never_answered) {
  Script script;
  script.listen();
  script.send_raw(kTcpSyn, 1, 0, {.destination = IpAddress::v4(192, 0, 2, 255)});
  script.send_raw(kA, 1, 1, {.destination = IpAddress::v4(255, 255, 255, 255)});
  script.send_raw(kTcpSyn, 1, 0, {.source = IpAddress::v4(224, 0, 0, 5)});
  EXPECT_TRUE(script.quiet());
  EXPECT_EQ(script.tcp->connections(), 0U);
}

TEST(TcpOpen, limits_are_errors_and_counted) {
  ScriptOptions options;
  options.layer.connections_max = 4;
  options.layer.listeners_max = 2;
  Script script(options);
  Recorder recorder;
  std::vector<tcp::Connection*> made;
  for (int i = 0; i < 4; ++i) {
    made.push_back(script.tcp->connect({}, {kPeerAddress, 80}, recorder, {}).value());
  }
  EXPECT_EQ(script.tcp->connect({}, {kPeerAddress, 80}, recorder, {}).error(),
            std::errc::no_buffer_space);
  EXPECT_EQ(script.count("tcp.limit.connections"), 1U);
  RecordingAcceptor acceptor;
  auto a = script.tcp->listen({{}, 1}, 1, acceptor, {});
  auto b = script.tcp->listen({{}, 2}, 1, acceptor, {});
  EXPECT_FALSE(script.tcp->listen({{}, 3}, 1, acceptor, {}).has_value());
  script.tcp->close(*a);
  script.tcp->close(*b);
  for (tcp::Connection* c : made) script.tcp->abort(*c);
}

}  // namespace
}  // namespace nobounce::test
