#include "base/error.hpp"

#include <cstring>

namespace nobounce {

std::string Error::to_string() const {
  std::string line = operation + ": " + cause;
  if (!hint.empty()) line += " (" + hint + ")";
  return line;
}

std::unexpected<Error> fail_errno(std::string operation, std::string hint) {
  const int saved = errno;
  return fail(static_cast<std::errc>(saved), std::move(operation), strerrordesc_np(saved),
              std::move(hint));
}

}  // namespace nobounce
