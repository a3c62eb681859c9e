#include "base/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace nobounce {

void assert_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "nobounce: assertion failed: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace nobounce
