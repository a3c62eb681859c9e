#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace nobounce {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }
int open_one() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(UniqueFd, closes_exactly_once) {
  int raw = -1;
  {
    const UniqueFd fd(open_one());
    raw = fd.get();
    EXPECT_TRUE(fd.is_open());
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
  const UniqueFd none;
  EXPECT_FALSE(none.is_open());
}

TEST(UniqueFd, moves_leave_nothing_behind) {
  UniqueFd a(open_one());
  const int raw = a.get();
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a.is_open());  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(b.get(), raw);
  UniqueFd c(open_one());
  const int replaced = c.get();
  c = std::move(b);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_EQ(c.get(), raw);
  UniqueFd& self = c;
  c = std::move(self);
  EXPECT_EQ(c.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFd, release_gives_the_descriptor_away) {
  UniqueFd a(open_one());
  const int raw = a.release();
  EXPECT_FALSE(a.is_open());
  EXPECT_TRUE(is_open(raw));
  a.reset(raw);
  a.reset();
  EXPECT_FALSE(is_open(raw));
}

}  // namespace
}  // namespace nobounce
