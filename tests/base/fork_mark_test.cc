#include "base/fork_mark.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nobounce {
namespace {

TEST(ForkMark, TM87_tells_children_and_theirs) {
  const ForkMark mark;
  EXPECT_FALSE(mark.is_child());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ForkMark own;
    const pid_t grandchild = mark.is_child() && !own.is_child() ? ::fork() : -1;
    if (grandchild == 0) ::_exit(mark.is_child() && own.is_child() ? 7 : 1);
    int status = 0;
    ::waitpid(grandchild, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_FALSE(mark.is_child());
}

}  // namespace
}  // namespace nobounce
