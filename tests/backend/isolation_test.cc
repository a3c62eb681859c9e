#include "backend/isolation.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

namespace nobounce::backend::test {
namespace {

// What is given up cannot be taken back, so each check runs in a child. Exit status 0: it held.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Isolation, TM87_the_process_is_not_dumpable_and_gains_no_privileges) {
  EXPECT_EQ(in_child([] {
              if (!forbid_dumps()) return 1;
              if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return 2;
              return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 3;
            }),
            0);
}

TEST(Isolation, TM87_the_filter_allows_what_the_back_end_does_and_refuses_the_rest) {
  EXPECT_EQ(in_child([] {
              if (!forbid_dumps()) return 1;
              const auto filter = filter_system_calls();
              if (!filter) return 2;
              if (*filter == Filter::unavailable) return 0;
              const auto refused = [](long result) { return result == -1 && errno == EPERM; };
              if (!refused(::open("/etc/passwd", O_RDONLY))) return 3;
              if (!refused(::socket(AF_INET, SOCK_STREAM, 0))) return 4;
              char* const none[] = {nullptr};
              if (!refused(::execve("/bin/true", none, none))) return 5;
              if (!refused(::fork())) return 6;
              if (!refused(::kill(::getppid(), 0))) return 7;
              if (!refused(::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))) return 8;
              if (!refused(::unshare(0))) return 9;
              if (::socket(AF_UNIX, SOCK_STREAM, 0) < 0) return 10;
              if (::eventfd(0, 0) < 0) return 11;
              void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return page == MAP_FAILED ? 12 : 0;
            }),
            0);
}

}  // namespace
}  // namespace nobounce::backend::test
