#include "virtio/vhost_user/connect.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <optional>

namespace nobounce::virtio::vhost_user {
namespace {

constexpr uint64_t kRetryNs = 20 * kNsPerMs;

std::string operation(const std::string& path, Role role) {
  return fmt::format("vhost-user {} on {}", name(role), path);
}

std::unexpected<Error> from_errno(const std::string& path, Role role, int error,
                                  std::string hint = {}) {
  return fail(static_cast<std::errc>(error), operation(path, role), std::strerror(error),
              std::move(hint));
}

Result<sockaddr_un> address_of(const std::string& path, Role role) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(std::errc::filename_too_long, operation(path, role),
                fmt::format("a socket path has 1 to {} characters", sizeof address.sun_path - 1),
                "use a shorter path, for example under /run");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd new_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int try_connect(int fd, const sockaddr_un& address) noexcept {
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0
                                                                                         : errno;
}

// What lies at the path; nothing when there is no such file.
std::optional<mode_t> file_type(const std::string& path) noexcept {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status.st_mode & S_IFMT;
}

std::unexpected<Error> no_socket(const std::string& path, Role role) {
  return fail(std::errc::not_a_socket, operation(path, role),
              "there is a file at this path that is not a socket",
              "give the path of the back-end's socket");
}

// ---- client -----------------------------------------------------------------------------------

std::unexpected<Error> nobody_there(const std::string& path, int last_error) {
  if (last_error == ENOENT) {
    return fail(std::errc::no_such_file_or_directory, operation(path, Role::client),
                "no socket at this path: no back-end is listening there",
                "start the back-end as server of this path (nobounce backend --socket PATH), or, "
                "if the back-end is a client too, make this end the server");
  }
  if (last_error == ECONNREFUSED) {
    return fail(std::errc::connection_refused, operation(path, Role::client),
                "the socket file is there but nobody listens on it: it is stale, or its server "
                "has ended",
                "start the back-end as server of this path again");
  }
  return from_errno(path, Role::client, last_error, "the server's queue of connections is full");
}

Result<UniqueFd> connect_client(const std::string& path, const sockaddr_un& address,
                                WaitBudget& budget) {
  for (;;) {
    if (const auto type = file_type(path); type && *type != S_IFSOCK) {
      return no_socket(path, Role::client);
    }
    UniqueFd fd = new_socket();
    if (!fd.is_open()) return from_errno(path, Role::client, errno);
    const int error = try_connect(fd.get(), address);
    if (error == 0) return fd;
    if (error == EACCES || error == EPERM) {
      return from_errno(path, Role::client, error,
                        "write permission on the socket and search permission on its folders are "
                        "needed: see who owns them");
    }
    const bool may_come = error == ENOENT || error == ECONNREFUSED || error == EAGAIN;
    if (!may_come) return from_errno(path, Role::client, error, "is it a stream socket?");
    if (!budget.pause(kRetryNs)) return nobody_there(path, error);
  }
}

// ---- server -----------------------------------------------------------------------------------

// Makes room for our socket: removes a stale one, refuses everything else.
Result<void> clear_path(const std::string& path, const sockaddr_un& address) {
  const auto type = file_type(path);
  if (!type) return {};
  if (*type != S_IFSOCK) return no_socket(path, Role::server);
  const UniqueFd probe = new_socket();
  if (!probe.is_open()) return from_errno(path, Role::server, errno);
  const int error = try_connect(probe.get(), address);
  if (error == 0 || error == EAGAIN) {
    return fail(std::errc::address_in_use, operation(path, Role::server),
                "another process already is the server of this path",
                "if it is the back-end, make this end the client: one end listens, the other "
                "connects");
  }
  if (error != ECONNREFUSED) {
    return from_errno(path, Role::server, error, "remove the file or use another path");
  }
  if (::unlink(path.c_str()) != 0) {
    return from_errno(path, Role::server, errno, "a stale socket file is in the way: remove it");
  }
  return {};
}

Result<UniqueFd> accept_client(const std::string& path, const sockaddr_un& address,
                               WaitBudget& budget) {
  if (auto clear = clear_path(path, address); !clear) return std::unexpected(clear.error());
  const UniqueFd listener = new_socket();
  if (!listener.is_open()) return from_errno(path, Role::server, errno);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return from_errno(path, Role::server, errno, "the folder must exist and be writable");
  }
  const auto close_path = [&] { ::unlink(path.c_str()); };
  if (::listen(listener.get(), 1) != 0) {
    const int error = errno;
    close_path();
    return from_errno(path, Role::server, error);
  }
  const bool ready = budget.wait(listener.get(), POLLIN);
  UniqueFd fd(ready ? ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)
                    : -1);
  const int error = errno;
  close_path();
  if (fd.is_open()) return fd;
  if (ready) return from_errno(path, Role::server, error);
  return fail(std::errc::timed_out, operation(path, Role::server),
              "no back-end has connected to this path",
              "start the back-end as client of this path, or, if the back-end is a server too, "
              "make this end the client");
}

}  // namespace

Result<UniqueFd> connect_socket(const std::string& path, Role role, WaitBudget& budget) {
  const auto address = address_of(path, role);
  if (!address) return std::unexpected(address.error());
  return role == Role::client ? connect_client(path, *address, budget)
                              : accept_client(path, *address, budget);
}

}  // namespace nobounce::virtio::vhost_user
