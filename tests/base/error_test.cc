#include "base/error.hpp"

#include <gtest/gtest.h>

namespace nobounce {
namespace {

TEST(Error, one_line_with_and_without_a_hint) {
  const Error bare{std::errc::io_error, "open x", "it is broken", ""};
  EXPECT_EQ(bare.to_string(), "open x: it is broken");
  const Error full{std::errc::io_error, "open x", "it is broken", "mend it"};
  EXPECT_EQ(full.to_string(), "open x: it is broken (mend it)");
}

TEST(Error, from_errno) {
  errno = ENOENT;
  const Result<int> result = fail_errno("open x", "make it first");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, std::errc::no_such_file_or_directory);
  EXPECT_EQ(result.error().to_string(), "open x: No such file or directory (make it first)");
}

TEST(Error, an_errno_without_a_name_does_not_crash) {
  errno = 99999;
  const Result<int> result = fail_errno("open x");
  ASSERT_FALSE(result.has_value());
  EXPECT_FALSE(result.error().to_string().empty());
}

}  // namespace
}  // namespace nobounce
