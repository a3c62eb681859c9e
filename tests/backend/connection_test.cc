#include "backend/connection.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <optional>

#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

using Request = wire::VhostUserRequest;

struct Fixture {
  Fixture() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    front = UniqueFd(ends[0]);
    connection.emplace(UniqueFd(ends[1]));
  }
  void send(Bytes bytes, const std::vector<int>& fds = {}) const {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
    iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(part), fds.data(), sizeof(int) * fds.size());
    }
    ASSERT_EQ(::sendmsg(front.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  UniqueFd front;
  std::optional<Connection> connection;
};

ByteVector frame(Request request, Bytes payload = {}, uint32_t flags = 1,
                 std::optional<uint32_t> size = {}) {
  ByteVector bytes(12);
  const uint32_t words[3] = {static_cast<uint32_t>(request), flags,
                             size.value_or(static_cast<uint32_t>(payload.size()))};
  std::memcpy(bytes.data(), words, sizeof words);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

TEST(Connection, TM73_reads_one_message_exactly) {
  Fixture f;
  EXPECT_EQ(f.connection->read(), ReadResult::nothing);
  f.send(frame(Request::set_features, encode_u64(42)));
  ASSERT_EQ(f.connection->read(), ReadResult::message);
  EXPECT_EQ(f.connection->message().header.request, Request::set_features);
  EXPECT_EQ(wire::VhostUserU64::parse(f.connection->message().body())->value, 42u);
  EXPECT_EQ(f.connection->read(), ReadResult::nothing);
}

TEST(Connection, TM73_coalesced_messages_come_one_by_one) {
  Fixture f;
  ByteVector bytes;
  for (uint64_t i = 0; i < 10; ++i) {
    const ByteVector one =
        i % 3 == 0 ? frame(Request::set_owner) : frame(Request::set_features, encode_u64(i));
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  f.send(bytes);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(f.connection->read(), ReadResult::message);
    if (i % 3 == 0) {
      EXPECT_EQ(f.connection->message().header.request, Request::set_owner);
    } else {
      EXPECT_EQ(wire::VhostUserU64::parse(f.connection->message().body())->value, i);
    }
  }
  EXPECT_EQ(f.connection->read(), ReadResult::nothing);
}

TEST(Connection, TM73_byte_by_byte) {
  Fixture f;
  const ByteVector bytes = frame(Request::set_vring_call, encode(wire::VringFd{.index = 1}));
  const UniqueFd event = make_event();
  for (size_t i = 0; i < bytes.size(); ++i) {
    f.send(Bytes(bytes).subspan(i, 1), i == 0 ? std::vector<int>{event.get()} : std::vector<int>{});
    EXPECT_EQ(f.connection->read(),
              i + 1 < bytes.size() ? ReadResult::nothing : ReadResult::message);
  }
  EXPECT_EQ(f.connection->message().fd_count, 1u);
  EXPECT_TRUE(f.connection->message().fds[0].is_open());
}

TEST(Connection, TM73_malformed_headers_are_faults) {
  const std::pair<const char*, ByteVector> cases[] = {
      {"version 0", frame(Request::set_owner, {}, 0)},
      {"version 2", frame(Request::set_owner, {}, 2)},
      {"version 3", frame(Request::set_owner, {}, 3)},
      {"unknown", frame(static_cast<Request>(99))},
      {"zero", frame(static_cast<Request>(0))},
      {"too short", frame(Request::set_features, {}, 1, 7)},
      {"too long", frame(Request::set_features, {}, 1, 9)},
      {"none", frame(Request::set_features, {}, 1, 0)},
      {"some where none", frame(Request::set_owner, {}, 1, 8)},
      {"huge", frame(Request::set_mem_table, {}, 1, UINT32_MAX)},
      {"one too many", frame(Request::get_config, {}, 1, 12 + 257)},
  };
  for (const auto& [name, bytes] : cases) {
    SCOPED_TRACE(name);
    Fixture f;
    f.send(bytes);
    EXPECT_EQ(f.connection->read(), ReadResult::fault);
    EXPECT_FALSE(f.connection->fault().empty());
  }
}

TEST(Connection, a_front_end_that_left_is_told_from_one_that_waits) {
  Fixture f;
  f.send(Bytes(frame(Request::set_features, encode_u64(1))).first(15));
  EXPECT_EQ(f.connection->read(), ReadResult::nothing);
  f.front.reset();
  EXPECT_EQ(f.connection->read(), ReadResult::closed);
}

TEST(Connection, TM74_zero_to_sixteen_fds_on_every_request) {
  const size_t before = open_fds();
  {
    const UniqueFd event = make_event();
    for (uint32_t id = 0; id <= 42; ++id) {
      for (size_t count = 0; count <= 16; ++count) {
        SCOPED_TRACE(testing::Message() << id << " with " << count);
        Fixture f;
        const auto request = static_cast<Request>(id);
        const auto rule = wire::vhost_user_rule(request);
        const ByteVector payload(rule ? rule->size_min : 0);
        f.send(frame(request, payload), std::vector<int>(count, event.get()));
        const bool sound = rule && count >= rule->fds_min && count <= rule->fds_max;
        ASSERT_EQ(f.connection->read(), sound ? ReadResult::message : ReadResult::fault);
        if (sound) {
          EXPECT_EQ(f.connection->message().fd_count, count);
        }
      }
    }
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(Connection, TM74_fds_that_come_late_are_a_fault) {
  const size_t before = open_fds();
  {
    const UniqueFd event = make_event();
    const ByteVector bytes = frame(Request::set_vring_call, encode(wire::VringFd{.index = 1}));
    for (const size_t at : {size_t{1}, size_t{11}, size_t{12}, size_t{19}}) {
      SCOPED_TRACE(at);
      Fixture f;
      f.send(Bytes(bytes).first(at), at < 12 ? std::vector<int>{} : std::vector<int>{event.get()});
      EXPECT_EQ(f.connection->read(), ReadResult::nothing);
      f.send(Bytes(bytes).subspan(at), {event.get()});
      EXPECT_EQ(f.connection->read(), ReadResult::fault);
    }
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(Connection, TM74_fds_are_closed_on_exec_and_with_their_message) {
  Fixture f;
  const UniqueFd event = make_event();
  const size_t before = open_fds();
  for (int i = 0; i < 1000; ++i) {
    f.send(frame(Request::set_vring_call, encode(wire::VringFd{.index = 1})), {event.get()});
    ASSERT_EQ(f.connection->read(), ReadResult::message);
    ASSERT_EQ(open_fds(), before + 1);
    ASSERT_NE(::fcntl(f.connection->message().fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(f.connection->read(), ReadResult::nothing);
  EXPECT_EQ(open_fds(), before);
}

TEST(Connection, TM73_TM74_stream_fuzz_leaks_no_fd) {
  const size_t before = open_fds();
  {
    const UniqueFd event = make_event();
    for (uint64_t seed = 1; seed <= 3000; ++seed) {
      SCOPED_TRACE(seed);
      SeededRandom random(seed);
      Fixture f;
      for (int i = 0; i < 6; ++i) {
        ByteVector bytes = frame(static_cast<Request>(random.below(44)),
                                 ByteVector(8 * random.below(6)), random.below(16));
        if (random.below(3) == 0)
          bytes[random.below(12)] = static_cast<std::byte>(random.below(256));
        if (random.below(3) == 0)
          bytes.resize(1 + random.below(static_cast<uint32_t>(bytes.size())));
        f.send(bytes, std::vector<int>(random.below(4) == 0 ? random.below(17) : 0, event.get()));
        ReadResult result = ReadResult::message;
        while (result == ReadResult::message) result = f.connection->read();
        if (result == ReadResult::fault) break;
      }
    }
  }
  EXPECT_EQ(open_fds(), before);
}

TEST(Connection, replies_are_sent_whole_or_the_front_end_is_given_up) {
  Fixture f;
  Reply reply;
  reply.size = 20;
  EXPECT_TRUE(f.connection->send(reply));
  ByteVector got(64);
  EXPECT_EQ(::recv(f.front.get(), got.data(), got.size(), 0), 20);
  // A front-end that never reads: the buffer fills, nothing blocks.
  bool sent = true;
  for (int i = 0; i < 100'000 && sent; ++i) sent = f.connection->send(reply);
  EXPECT_FALSE(sent);
  f.front.reset();
  EXPECT_FALSE(f.connection->send(reply));  // and no SIGPIPE
}

}  // namespace
}  // namespace nobounce::backend::test
