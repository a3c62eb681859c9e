// The front-end against back-ends by the book, silent ones and wrong ones; roles and paths (C119).
#include "virtio/vhost_user/front_end.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log.hpp"
#include "memory/shared_region.hpp"
#include "virtio/split_queue.hpp"
#include "virtio/vhost_user/scripted_back_end.hpp"

namespace nobounce::test {
namespace {

using virtio::vhost_user::FrontEndOptions;
using virtio::vhost_user::Role;
using Request = wire::VhostUserRequest;

size_t open_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

uint64_t now_ns() { return MonotonicClock().now_ns(); }

class FrontEndTest : public testing::Test {
 protected:
  FrontEndTest() {
    set_log_level(LogLevel::quiet);
    char folder[] = "/tmp/nobounce-front-end-XXXXXX";
    folder_ = ::mkdtemp(folder);
    path_ = folder_ + "/vhost.sock";
    region_ = std::move(*SharedRegion::create({.name = "front-end", .bytes = 2 << 20}));
  }
  ~FrontEndTest() override {
    set_log_level(LogLevel::warning);
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] FrontEndOptions options(Role role = Role::client,
                                        uint64_t deadline_ns = 2 * kNsPerSecond) const {
    return {.path = path_, .role = role, .deadline_ns = deadline_ns};
  }
  // The whole handshake, as the driver does it.
  Result<void> set_up(virtio::Transport& transport, uint64_t mask = ~uint64_t{0}) {
    const auto features = transport.read_features();
    if (!features) return std::unexpected(features.error());
    features_ = *features;
    if (auto done = transport.accept_features(features_ & mask); !done) return done;
    const auto config = transport.read_config();
    if (!config) return std::unexpected(config.error());
    config_ = *config;
    if (auto done = transport.share(*region_); !done) return done;
    for (uint16_t index = 0; index < 2; ++index) {
      layouts_[index] = *virtio::carve_queue(*region_, index, queue_size_);
      if (auto done = transport.set_up_queue(layouts_[index]); !done) return done;
    }
    return transport.start();
  }
  // From nothing to started; the error of whichever step failed.
  Result<std::unique_ptr<virtio::Transport>> run(const FrontEndOptions& asked) {
    auto transport = virtio::vhost_user::connect(asked);
    if (!transport) return transport;
    if (auto done = set_up(**transport); !done) return std::unexpected(done.error());
    return transport;
  }

  uint16_t queue_size_ = 64;
  std::string folder_;
  std::string path_;
  std::unique_ptr<SharedRegion> region_;
  uint64_t features_ = 0;
  virtio::NetConfig config_;
  virtio::QueueLayout layouts_[2];
};

TEST_F(FrontEndTest, the_handshake_of_virtio_12_1) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport) << transport.error().to_string();
  EXPECT_EQ((*transport)->failure(), nullptr);
  EXPECT_EQ(config_.queue_pairs_max, 4);

  std::vector<Request> order;
  for (const ReceivedMessage& message : back_end.messages()) {
    order.push_back(message.header.request);
  }
  using enum wire::VhostUserRequest;
  const std::vector<Request> expected{
      set_owner,      get_features,   get_protocol_features, set_protocol_features, get_queue_num,
      set_features,   set_mem_table,  set_vring_call,        set_vring_num,         set_vring_base,
      set_vring_addr, set_vring_kick, set_vring_call,        set_vring_num,         set_vring_base,
      set_vring_addr, set_vring_kick, set_vring_enable,      set_vring_enable};
  EXPECT_EQ(order, expected);

  // Only what was asked for and offered; nothing emulated or hidden is acknowledged.
  EXPECT_EQ(wire::VhostUserU64::parse(back_end.messages(set_protocol_features)[0].payload)->value,
            wire::kProtocolMq | wire::kProtocolReplyAck);
  EXPECT_EQ(wire::VhostUserU64::parse(back_end.messages(set_features)[0].payload)->value,
            back_end.features & ~wire::kVhostLogAll);
  EXPECT_NE(features_ & wire::kNetMtu, 0U);
  EXPECT_NE(features_ & wire::kNetStatus, 0U);
  EXPECT_EQ(features_ & (wire::kNetMac | wire::kVhostUserProtocolFeatures | wire::kVhostLogAll),
            0U);
  // REPLY_ACK is used as soon as it is agreed.
  EXPECT_TRUE(back_end.messages(set_features)[0].header.need_reply);
  EXPECT_FALSE(back_end.messages(set_owner)[0].header.need_reply);
  // Each ring was kicked once.
  for (const ReceivedMessage& message : back_end.messages(set_vring_kick)) {
    uint64_t count = 0;
    EXPECT_EQ(::read(message.fds.at(0), &count, sizeof count), 8);
    EXPECT_EQ(count, 1U);
  }
}

TEST_F(FrontEndTest, TM63_the_memory_table_names_the_region_by_made_up_addresses) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport);
  const auto message = back_end.messages(Request::set_mem_table).at(0);
  const auto table = wire::MemTable::parse(message.payload);
  ASSERT_TRUE(table);
  ASSERT_EQ(table->count, 1U);
  const wire::MemRegion& region = table->regions[0];
  EXPECT_EQ(region.guest_address, region_->iova_base());
  EXPECT_EQ(region.bytes, region_->size());
  EXPECT_EQ(region.mmap_offset, 0U);
  EXPECT_NE(region.user_address, region.guest_address);
  const uintptr_t ours = region_->bytes().address();
  for (const uint64_t address : {region.guest_address, region.user_address}) {
    EXPECT_TRUE(address + region.bytes <= ours || address >= ours + region.bytes);
  }
  // The back-end finds the rings where it is told, in the fd it was given.
  region_->bytes().store<uint64_t>(layouts_[1].device_area.address() - 4 - ours, 0x1122334455);
  void* mapped = ::mmap(nullptr, region.bytes, PROT_READ, MAP_SHARED, message.fds.at(0), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto address =
      wire::VringAddr::parse(back_end.messages(Request::set_vring_addr).at(1).payload);
  EXPECT_EQ(address->index, 1U);
  uint64_t found = 0;
  std::memcpy(&found, static_cast<std::byte*>(mapped) + (address->used - region.user_address) - 4,
              sizeof found);
  EXPECT_EQ(found, 0x1122334455U);
  ::munmap(mapped, region.bytes);
}

TEST_F(FrontEndTest, config_and_mtu_come_from_a_back_end_that_has_them) {
  ScriptedBackEnd back_end;
  back_end.protocol |= wire::kProtocolConfig | wire::kProtocolMtu | wire::kProtocolStatus;
  back_end.features |= wire::kNetMac | wire::kNetMtu;
  const MacAddress mac{{2, 9, 8, 7, 6, 5}};
  std::memcpy(back_end.config.data(), mac.bytes.data(), 6);
  store_le<uint16_t>(back_end.config, wire::kNetConfigMtu, 9000);
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport) << transport.error().to_string();
  EXPECT_EQ(config_.mac, mac);
  EXPECT_EQ(config_.mtu, 9000);
  const auto told = back_end.messages(Request::net_set_mtu);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(wire::VhostUserU64::parse(told[0].payload)->value, 9000U);
  const auto statuses = back_end.messages(Request::set_status);
  ASSERT_FALSE(statuses.empty());
  EXPECT_EQ(wire::VhostUserU64::parse(statuses.back().payload)->value, 15U);
}

TEST_F(FrontEndTest, mtu_is_emulated_for_a_back_end_without) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto asked = options();
  asked.mtu = 1400;
  auto transport = run(asked);
  ASSERT_TRUE(transport);
  EXPECT_EQ(config_.mtu, 1400);
  EXPECT_FALSE(config_.mac);
  EXPECT_TRUE(back_end.messages(Request::net_set_mtu).empty());
}

TEST_F(FrontEndTest, a_back_end_without_protocol_features_starts_by_kick) {
  ScriptedBackEnd back_end;
  back_end.features &= ~wire::kVhostUserProtocolFeatures;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport) << transport.error().to_string();
  (*transport)->stop();
  EXPECT_TRUE(back_end.messages(Request::set_vring_enable).empty());
  EXPECT_EQ(config_.queue_pairs_max, 1);
  EXPECT_EQ(features_ & wire::kNetMq, 0U);
}

TEST_F(FrontEndTest, as_server_it_waits_for_the_back_end) {
  ScriptedBackEnd back_end;
  back_end.connect(path_);
  auto transport = run(options(Role::server));
  ASSERT_TRUE(transport) << transport.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(path_)) << "the socket file is removed once connected";
}

TEST_F(FrontEndTest, TM25_silence_at_any_message_ends_in_time) {
  size_t answers = 0;
  {
    ScriptedBackEnd back_end;
    back_end.script = [&](const ReceivedMessage&, ScriptedBackEnd::Answer&) { ++answers; };
    back_end.listen(path_);
    ASSERT_TRUE(run(options()));
  }
  std::filesystem::remove(path_);
  answers -= 4;  // those of stop(): enable, base; each twice
  ASSERT_GT(answers, 15U);
  for (size_t silent = 0; silent < answers; ++silent) {
    SCOPED_TRACE(silent);
    const size_t before = open_fds();
    {
      ScriptedBackEnd back_end;
      size_t count = 0;
      back_end.script = [&](const ReceivedMessage&, ScriptedBackEnd::Answer& answer) {
        if (count++ == silent) answer.bytes.clear();
      };
      back_end.listen(path_);
      const uint64_t start_ns = now_ns();
      const auto transport = run(options(Role::client, 60 * kNsPerMs));
      ASSERT_FALSE(transport);
      EXPECT_EQ(transport.error().code, std::errc::timed_out);
      EXPECT_NE(transport.error().operation.find(path_), std::string::npos);
      EXPECT_LT(now_ns() - start_ns, 4 * kNsPerSecond);
    }
    std::filesystem::remove(path_);
    EXPECT_EQ(open_fds(), before);
  }
}

TEST_F(FrontEndTest, TM77_wrong_replies_end_the_connection) {
  using Answer = ScriptedBackEnd::Answer;
  struct Case {
    const char* name;
    std::function<void(Answer&)> change;
  };
  const std::vector<Case> cases{
      {"another request", [](Answer& answer) { answer.bytes[0] ^= std::byte{2}; }},
      {"no reply flag", [](Answer& answer) { answer.bytes[4] = std::byte{1}; }},
      {"need_reply set", [](Answer& answer) { answer.bytes[4] |= std::byte{8}; }},
      {"wrong version", [](Answer& answer) { answer.bytes[4] = std::byte{6}; }},
      {"size too large",
       [](Answer& answer) {
         answer.bytes[8] = std::byte{16};
         answer.bytes.resize(28);
       }},
      {"size enormous", [](Answer& answer) { answer.bytes[11] = std::byte{0x80}; }},
      {"size 0",
       [](Answer& answer) {
         answer.bytes[8] = std::byte{0};
         answer.bytes.resize(12);
       }},
      {"an fd attached", [](Answer& answer) { answer.fd = 0; }},
      {"cut in the header",
       [](Answer& answer) {
         answer.bytes.resize(7);
         answer.hang_up = true;
       }},
      {"cut in the payload",
       [](Answer& answer) {
         answer.bytes.resize(15);
         answer.hang_up = true;
       }},
      {"gone", [](Answer& answer) {
         answer.bytes.clear();
         answer.hang_up = true;
       }}};
  for (const Request request :
       {Request::get_features, Request::set_features, Request::get_queue_num}) {
    for (const Case& wrong : cases) {
      SCOPED_TRACE(testing::Message() << wrong.name << " at " << to_string(request));
      const size_t before = open_fds();
      {
        ScriptedBackEnd back_end;
        back_end.script = [&](const ReceivedMessage& message, Answer& answer) {
          if (message.header.request == request) wrong.change(answer);
        };
        back_end.listen(path_);
        const auto transport = run(options());
        ASSERT_FALSE(transport);
        EXPECT_NE(transport.error().operation.find(to_string(request)), std::string::npos)
            << transport.error().to_string();
      }
      std::filesystem::remove(path_);
      EXPECT_EQ(open_fds(), before);
    }
  }
}

TEST_F(FrontEndTest, a_refused_message_is_named) {
  ScriptedBackEnd back_end;
  back_end.script = [](const ReceivedMessage& message, ScriptedBackEnd::Answer& answer) {
    if (message.header.request == Request::set_mem_table) answer.bytes[12] = std::byte{1};
  };
  back_end.listen(path_);
  const auto transport = run(options());
  ASSERT_FALSE(transport);
  EXPECT_NE(transport.error().to_string().find("SET_MEM_TABLE"), std::string::npos);
  EXPECT_NE(transport.error().to_string().find("refused"), std::string::npos);
}

TEST_F(FrontEndTest, a_refused_queue_size_is_named_with_the_back_ends_limit) {
  for (const uint32_t limit : {64U, 128U, 256U, 0U}) {
    SCOPED_TRACE(limit);
    ScriptedBackEnd back_end;
    back_end.script = [limit](const ReceivedMessage& message, ScriptedBackEnd::Answer& answer) {
      if (message.header.request != Request::set_vring_num) return;
      if (wire::VringState::parse(message.payload)->value > limit) answer.bytes[12] = std::byte{1};
    };
    back_end.listen(path_);
    queue_size_ = 512;
    const auto transport = run(options());
    ASSERT_FALSE(transport);
    const std::string line = transport.error().to_string();
    EXPECT_NE(line.find("refused a queue of 512 descriptors"), std::string::npos) << line;
    const std::string named = "it takes up to " + std::to_string(limit) + ":";
    EXPECT_EQ(line.find(named) != std::string::npos, limit != 0) << line;
    EXPECT_LE(back_end.messages(Request::set_vring_num).size(), 5U);
    back_end.end();
    std::filesystem::remove(path_);
  }
}

TEST_F(FrontEndTest, replies_that_dribble_in_byte_by_byte_are_read) {
  ScriptedBackEnd back_end;
  back_end.script = [&](const ReceivedMessage&, ScriptedBackEnd::Answer& answer) {
    for (const std::byte byte : answer.bytes) back_end.send_raw({&byte, 1});
    answer.bytes.clear();
  };
  back_end.listen(path_);
  EXPECT_TRUE(run(options()));
}

// ---- while it runs ----------------------------------------------------------------------------

TEST_F(FrontEndTest, failure_sees_the_peer_go_and_messages_nobody_asked_for) {
  for (const bool hangs_up : {true, false}) {
    ScriptedBackEnd back_end;
    back_end.listen(path_);
    auto transport = run(options());
    ASSERT_TRUE(transport);
    EXPECT_EQ((*transport)->failure(), nullptr);
    if (hangs_up) {
      back_end.hang_up();
    } else {
      const std::array<std::byte, 20> bytes{};
      back_end.send_raw(bytes);
    }
    pollfd socket{.fd = (*transport)->failure_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&socket, 1, 1000), 1);
    EXPECT_NE((*transport)->failure(), nullptr);
    const uint64_t start_ns = now_ns();
    (*transport)->stop();  // nothing to wait for
    EXPECT_LT(now_ns() - start_ns, kNsPerSecond / 4);
    back_end.end();
    std::filesystem::remove(path_);
  }
}

TEST_F(FrontEndTest, stop_fetches_the_bases_and_is_idempotent) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport);
  (*transport)->stop();
  (*transport)->stop();
  EXPECT_EQ(back_end.messages(Request::get_vring_base).size(), 2U);
  EXPECT_EQ(back_end.messages(Request::set_vring_enable).size(), 4U);
  EXPECT_EQ((*transport)->failure(), nullptr);
}

TEST_F(FrontEndTest, TM25_stop_does_not_wait_long_for_a_silent_back_end) {
  ScriptedBackEnd back_end;
  std::atomic<bool> silent{false};
  back_end.script = [&](const ReceivedMessage&, ScriptedBackEnd::Answer& answer) {
    if (silent) answer.bytes.clear();
  };
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport);
  silent = true;
  const uint64_t start_ns = now_ns();
  (*transport)->stop();
  EXPECT_LT(now_ns() - start_ns, 3 * kNsPerSecond);
}

TEST_F(FrontEndTest, TM86_a_saturated_blocking_kick_does_not_block) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport);
  const int kick = back_end.messages(Request::set_vring_kick).at(0).fds.at(0);
  ASSERT_EQ(::fcntl(kick, F_SETFL, 0), 0);  // shared: blocking for us too
  uint64_t count = 0;
  ASSERT_EQ(::read(kick, &count, sizeof count), 8);
  const uint64_t most = ~uint64_t{0} - 1;
  ASSERT_EQ(::write(kick, &most, sizeof most), 8);
  for (int i = 0; i < 1000; ++i) (*transport)->notify(0);  // would hang here
  ASSERT_EQ(::read(kick, &count, sizeof count), 8);
  EXPECT_EQ(count, most);
  (*transport)->notify(0);
  ASSERT_EQ(::read(kick, &count, sizeof count), 8);
  EXPECT_EQ(count, 1U);
}

// The same in the window between our look and our write: a back-end that never stops.
TEST_F(FrontEndTest, TM86_a_racing_back_end_cannot_stop_the_thread) {
  CounterRegistry registry;
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  FrontEndOptions asked = options();
  asked.kicks_rescued = registry.counter("rescued");
  auto transport = run(asked);
  ASSERT_TRUE(transport);
  const int kick = back_end.messages(Request::set_vring_kick).at(0).fds.at(0);
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    const uint64_t most = ~uint64_t{0} - 1;
    while (!stop.load(std::memory_order_relaxed)) {
      ::fcntl(kick, F_SETFL, O_NONBLOCK);
      static_cast<void>(!::write(kick, &most, sizeof most));
      ::fcntl(kick, F_SETFL, 0);
    }
    ::fcntl(kick, F_SETFL, O_NONBLOCK);
  });
  // Each block costs up to 200 ms; the bound is on work, the test's time-out on blocking.
  for (int i = 0; i < 20000 && registry.value("rescued") < 3; ++i) (*transport)->notify(0);
  stop.store(true);
  attacker.join();
  RecordProperty("rescued", static_cast<int>(registry.value("rescued")));
}

TEST_F(FrontEndTest, a_pair_has_one_call_fd) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  auto transport = run(options());
  ASSERT_TRUE(transport);
  EXPECT_GE((*transport)->call_fd(0), 0);
  EXPECT_EQ((*transport)->call_fd(0), (*transport)->call_fd(1));
  EXPECT_EQ((*transport)->call_fd(2), -1);
  for (const ReceivedMessage& message : back_end.messages(Request::set_vring_call)) {
    const uint64_t one = 1;
    ASSERT_EQ(::write(message.fds.at(0), &one, sizeof one), 8);
    uint64_t count = 0;
    EXPECT_EQ(::read((*transport)->call_fd(0), &count, sizeof count), 8);
  }
}

// ---- C119: roles, paths, permissions ----------------------------------------------------------

void expect_said(const Result<std::unique_ptr<virtio::Transport>>& transport,
                 const std::string& path, const char* role, const char* what) {
  ASSERT_FALSE(transport);
  const std::string text = transport.error().to_string();
  EXPECT_NE(text.find(path), std::string::npos) << text;
  EXPECT_NE(text.find(role), std::string::npos) << text;
  EXPECT_NE(text.find(what), std::string::npos) << text;
  EXPECT_FALSE(transport.error().hint.empty()) << text;
}

TEST_F(FrontEndTest, C119_both_ends_clients) {
  const uint64_t start_ns = now_ns();
  expect_said(virtio::vhost_user::connect(options(Role::client, 100 * kNsPerMs)), path_, "client",
              "no back-end is listening");
  EXPECT_LT(now_ns() - start_ns, 5 * kNsPerSecond);
}

TEST_F(FrontEndTest, C119_both_ends_servers) {
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  expect_said(virtio::vhost_user::connect(options(Role::server)), path_, "server",
              "already is the server");
  EXPECT_TRUE(std::filesystem::exists(path_)) << "the other's socket is left alone";
}

TEST_F(FrontEndTest, C119_a_server_to_which_nobody_comes) {
  expect_said(virtio::vhost_user::connect(options(Role::server, 100 * kNsPerMs)), path_, "server",
              "no back-end has connected");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FrontEndTest, C119_a_stale_socket_file) {
  {
    ScriptedBackEnd dead;
    dead.listen(path_);
    dead.end();
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  expect_said(virtio::vhost_user::connect(options(Role::client, 100 * kNsPerMs)), path_, "client",
              "stale");
  // As server it is simply replaced.
  ScriptedBackEnd back_end;
  back_end.connect(path_);
  EXPECT_TRUE(run(options(Role::server)));
}

TEST_F(FrontEndTest, C119_a_back_end_that_comes_late_is_waited_for) {
  ScriptedBackEnd back_end;
  std::thread late([&] {
    ::poll(nullptr, 0, 150);
    back_end.listen(path_);
  });
  const auto transport = run(options());
  late.join();
  EXPECT_TRUE(transport) << transport.error().to_string();
}

TEST_F(FrontEndTest, C119_not_a_socket) {
  std::ofstream(path_) << "a file";
  expect_said(virtio::vhost_user::connect(options(Role::client)), path_, "client", "not a socket");
  expect_said(virtio::vhost_user::connect(options(Role::server)), path_, "server", "not a socket");
  EXPECT_TRUE(std::filesystem::exists(path_)) << "a user's file is never removed";
}

TEST_F(FrontEndTest, C119_no_permission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may do everything";
  ScriptedBackEnd back_end;
  back_end.listen(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
  expect_said(virtio::vhost_user::connect(options()), path_, "client", "ermission");
}

TEST_F(FrontEndTest, C119_no_folder_and_paths_too_long) {
  path_ = folder_ + "/nowhere/vhost.sock";
  expect_said(virtio::vhost_user::connect(options(Role::server)), path_, "server", "No such file");
  path_ = folder_ + "/" + std::string(120, 'x');
  expect_said(virtio::vhost_user::connect(options()), path_, "client", "characters");
  path_.clear();
  EXPECT_FALSE(virtio::vhost_user::connect(options()));
}

TEST_F(FrontEndTest, C119_a_server_that_never_speaks) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = socket_address(path_);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const auto transport = virtio::vhost_user::connect(options(Role::client, 100 * kNsPerMs));
  ASSERT_FALSE(transport);
  EXPECT_NE(transport.error().to_string().find("GET_FEATURES"), std::string::npos);
  EXPECT_NE(transport.error().to_string().find("did not answer"), std::string::npos);
}

}  // namespace
}  // namespace nobounce::test
