#include "base/error.hpp"

#include <cstring>
#include <string>

namespace nobounce {

std::string Error::to_string() const {
  std::string line = operation + ": " + cause;
  if (!hint.empty()) line += " (" + hint + ")";
  return line;
}

std::unexpected<Error> fail_errno(std::string operation, std::string hint) {
  const int saved = errno;
  const char* description = strerrordesc_np(saved);  // null for a number that has no name
  return fail(static_cast<std::errc>(saved), std::move(operation),
              description != nullptr ? description : "error " + std::to_string(saved),
              std::move(hint));
}

}  // namespace nobounce
