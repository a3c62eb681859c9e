#include "backend/listener.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace nobounce::backend {
namespace {

constexpr int kBacklog = 8;

std::optional<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd stream_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int connect_to(int socket, const std::string& path) {
  const auto address = address_of(path);
  NB_ASSERT(address.has_value());
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
}

// Removes a socket file that nobody listens on. What is not a socket, or is in use, stays.
Result<void> remove_stale(const std::string& path, const std::string& operation) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return fail_errno(operation);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return fail(std::errc::file_exists, operation, "the path is there and is not a socket",
                "give another --socket path");
  }
  const UniqueFd probe = stream_socket();
  if (!probe.is_open()) return fail_errno(operation);
  if (connect_to(probe.get(), path) == 0 || errno == EAGAIN) {
    return fail(std::errc::address_in_use, operation, "another process listens there",
                "stop it, or give another --socket path, or let this end connect (role client)");
  }
  if (errno != ECONNREFUSED) return fail_errno(operation);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno(operation);
  log_info(fmt::format("removed the stale socket file {}", path));
  return {};
}

}  // namespace

Result<Listener> Listener::open(std::string path, Role role, uint64_t now_ns) {
  if (!address_of(path)) {
    return fail(std::errc::filename_too_long, fmt::format("open the vhost-user socket {}", path),
                "a socket path has 1 to 107 bytes", "give a shorter --socket path");
  }
  Listener listener(std::move(path), role);
  if (role == Role::server) {
    if (auto listening = listener.listen(); !listening) {
      return std::unexpected(listening.error());
    }
  } else {
    listener.next_try_ns_ = now_ns;
    listener.give_up_ns_ = now_ns + kFirstConnectNs;
  }
  return listener;
}

Listener::~Listener() {
  if (!socket_.is_open()) return;
  struct stat status{};
  if (::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

Result<void> Listener::listen() {
  const std::string operation = fmt::format("listen on {} as vhost-user server", path_);
  if (auto removed = remove_stale(path_, operation); !removed) return removed;
  UniqueFd socket = stream_socket();
  if (!socket.is_open()) return fail_errno(operation);
  const auto address = address_of(path_);
  // The mode of the file is the socket's at bind: no moment in which others may connect.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return fail_errno(operation, "does the directory exist, and may this user write there?");
  }
  struct stat status{};
  if (::lstat(path_.c_str(), &status) != 0) return fail_errno(operation);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (::listen(socket.get(), kBacklog) != 0) return fail_errno(operation);
  socket_ = std::move(socket);
  return {};
}

Result<UniqueFd> Listener::next(uint64_t now_ns) {
  return role_ == Role::server ? accept() : connect(now_ns);
}

Result<UniqueFd> Listener::accept() {
  UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (peer.is_open()) return peer;
  switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return UniqueFd();  // later, perhaps
    default:
      return fail_errno(fmt::format("accept a front-end on {}", path_));
  }
}

Result<UniqueFd> Listener::connect(uint64_t now_ns) {
  if (now_ns < next_try_ns_) return UniqueFd();
  next_try_ns_ = now_ns + kRetryNs;
  const std::string operation = fmt::format("connect to {} as vhost-user client", path_);
  UniqueFd socket = stream_socket();
  if (!socket.is_open()) return fail_errno(operation);
  if (connect_to(socket.get(), path_) == 0) {
    give_up_ns_ = 0;
    told_ = false;
    return socket;
  }
  const int cause = errno;
  if (give_up_ns_ != 0 && now_ns >= give_up_ns_) {
    errno = cause;
    return fail_errno(operation, "the front-end must listen on that path (role server)");
  }
  if (!told_) {
    log_info(fmt::format("{}: {}; trying once a second", operation, std::strerror(cause)));
    told_ = true;
  }
  return UniqueFd();
}

}  // namespace nobounce::backend
