// Assertions for our own bugs, on in release. What a host, a peer or a program can cause is never
// asserted: it is checked, counted and survived.
#pragma once

namespace nobounce {

[[noreturn]] void assert_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace nobounce

#define NB_ASSERT(condition)                         \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::nobounce::assert_failed(#condition, __FILE__, __LINE__))

// For checks that are not O(1): debug and sanitizer builds only.
#ifdef NDEBUG
#define NB_DEBUG_ASSERT(condition) static_cast<void>(0)
#else
#define NB_DEBUG_ASSERT(condition) NB_ASSERT(condition)
#endif
