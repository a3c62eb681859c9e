#include "backend/listener.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "guest_driver.hpp"

namespace nobounce::backend::test {
namespace {

class ListenerTest : public testing::Test {
 protected:
  ListenerTest() {
    set_log_level(LogLevel::warning);
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
    path_ = directory_ + "/vhost.sock";
  }
  ~ListenerTest() override { std::filesystem::remove_all(directory_); }

  static sockaddr_un address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    return address;
  }
  UniqueFd connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un to = address(path_);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fd.reset();
    return fd;
  }
  UniqueFd bind_without_listening() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un to = address(path_);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    return fd;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(ListenerTest, accepts_one_after_the_other_and_cleans_up) {
  const size_t before = open_fds();
  {
    auto listener = Listener::open(path_, Role::server, 0);
    ASSERT_TRUE(listener) << listener.error().to_string();
    struct stat status{};
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_FALSE((*listener->next(0)).is_open());
    const UniqueFd first = connect();
    const UniqueFd second = connect();  // waits in the backlog
    ASSERT_TRUE(second.is_open());
    const auto a = listener->next(0);
    ASSERT_TRUE(a->is_open());
    EXPECT_NE(::fcntl(a->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE((*listener->next(0)).is_open());
    EXPECT_FALSE((*listener->next(0)).is_open());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(open_fds(), before);
}

TEST_F(ListenerTest, C119_a_stale_socket_file_is_replaced) {
  bind_without_listening().reset();
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(Listener::open(path_, Role::server, 0));
}

TEST_F(ListenerTest, C119_two_servers_the_second_is_told) {
  auto first = Listener::open(path_, Role::server, 0);
  ASSERT_TRUE(first);
  const auto second = Listener::open(path_, Role::server, 0);
  ASSERT_FALSE(second);
  const std::string text = second.error().to_string();
  EXPECT_NE(text.find(path_), std::string::npos) << text;
  EXPECT_NE(text.find("server"), std::string::npos) << text;
  EXPECT_EQ(second.error().code, std::errc::address_in_use);
  EXPECT_TRUE(connect().is_open());  // and the first still serves
}

TEST_F(ListenerTest, a_file_that_is_no_socket_stays) {
  UniqueFd(::open(path_.c_str(), O_CREAT | O_RDWR, 0600)).reset();
  const auto listener = Listener::open(path_, Role::server, 0);
  ASSERT_FALSE(listener);
  EXPECT_NE(listener.error().to_string().find(path_), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(ListenerTest, the_file_of_a_successor_is_not_removed) {
  {
    auto first = Listener::open(path_, Role::server, 0);
    ASSERT_TRUE(first);
    std::filesystem::remove(path_);
    bind_without_listening().reset();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(ListenerTest, C119_paths_that_cannot_be_are_told) {
  for (const std::string& path :
       {std::string(), std::string(108, 'a'), directory_ + "/missing/vhost.sock"}) {
    const auto listener = Listener::open(path, Role::server, 0);
    ASSERT_FALSE(listener);
    EXPECT_FALSE(listener.error().hint.empty());
  }
}

TEST_F(ListenerTest, C119_a_client_without_a_server_gives_up_in_five_seconds) {
  auto listener = Listener::open(path_, Role::client, 0);
  ASSERT_TRUE(listener);
  EXPECT_EQ(listener->fd(), -1);
  uint64_t now = 0;
  for (; now < 10 * kNsPerSecond; now = listener->next_try_ns()) {
    const auto socket = listener->next(now);
    if (socket) {
      EXPECT_FALSE(socket->is_open());
      continue;
    }
    const std::string text = socket.error().to_string();
    EXPECT_NE(text.find(path_), std::string::npos) << text;
    EXPECT_NE(text.find("client"), std::string::npos) << text;
    break;
  }
  EXPECT_LE(now, 5 * kNsPerSecond);
}

TEST_F(ListenerTest, C113_a_client_that_was_connected_tries_for_ever) {
  auto listener = Listener::open(path_, Role::client, 0);
  ASSERT_TRUE(listener);
  {
    const UniqueFd server = bind_without_listening();
    ASSERT_EQ(::listen(server.get(), 1), 0);
    const auto socket = listener->next(0);
    ASSERT_TRUE(socket);
    EXPECT_TRUE(socket->is_open());
  }
  uint64_t now = 0;
  for (int i = 0; i < 600; ++i) {  // ten minutes
    now = listener->next_try_ns();
    const auto socket = listener->next(now);
    ASSERT_TRUE(socket);
    EXPECT_FALSE(socket->is_open());
    EXPECT_EQ(listener->next_try_ns(), now + Listener::kRetryNs);
  }
  std::filesystem::remove(path_);
  const UniqueFd server = bind_without_listening();
  ASSERT_EQ(::listen(server.get(), 1), 0);
  const auto socket = listener->next(listener->next_try_ns());
  ASSERT_TRUE(socket);
  EXPECT_TRUE(socket->is_open());
}

}  // namespace
}  // namespace nobounce::backend::test
