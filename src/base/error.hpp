// The error types of all floors, and the short forms to make them.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "nobounce/error.hpp"

namespace nobounce {

[[nodiscard]] inline std::unexpected<Error> fail(std::errc code, std::string operation,
                                                 std::string cause, std::string hint = {}) {
  return std::unexpected(Error{code, std::move(operation), std::move(cause), std::move(hint)});
}

// From errno as the last system call left it.
[[nodiscard]] std::unexpected<Error> fail_errno(std::string operation, std::string hint = {});

}  // namespace nobounce
