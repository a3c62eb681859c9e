// Errors of the public face.
//
// Two grades. Set-up calls (open, create, parse a configuration) return Result<T>: an Error that
// names the operation, the cause and what the user can do. Socket calls return SocketResult<T>: a
// std::errc with the meaning POSIX gives it, so that a program can treat it as errno.
#pragma once

#include <expected>
#include <string>
#include <system_error>

namespace nobounce {

struct Error {
  std::errc code{};       // nearest errno, for programs
  std::string operation;  // what was tried: "connect to /run/nb.sock"
  std::string cause;      // why it failed: "no such file"
  std::string hint;       // what to do about it; may be empty

  // One line: "operation: cause (hint)".
  [[nodiscard]] std::string to_string() const;
};

template <class T>
using Result = std::expected<T, Error>;

template <class T>
using SocketResult = std::expected<T, std::errc>;

}  // namespace nobounce
