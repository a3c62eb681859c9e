#include "backend/isolation.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#ifdef NOBOUNCE_HAVE_SECCOMP
#include <linux/if_tun.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#endif

namespace nobounce::backend {

Result<void> forbid_dumps() {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return fail_errno("give up privileges");
  }
  return {};
}

// The files it made stay its own: user id 0 without capabilities is an owner like any other.
Result<void> drop_capabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
  if (::syscall(SYS_capset, &header, none.data()) != 0) return fail_errno("give up capabilities");
  return {};
}

#ifdef NOBOUNCE_HAVE_SECCOMP

namespace {

// By what needs them. Nothing here opens a file, starts a program or reaches a network.
constexpr int kAllowed[] = {
    // control socket, events
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(preadv2),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(accept4),
    SCMP_SYS(connect),
    SCMP_SYS(close),
    SCMP_SYS(fcntl),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(eventfd2),
    // frames of a TAP; the time at which a delayed one is due
    SCMP_SYS(readv),
    SCMP_SYS(timerfd_create),
    SCMP_SYS(timerfd_settime),
    // the guest's files, the socket file at the end
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(lstat),
    SCMP_SYS(fstatfs),
    SCMP_SYS(unlink),
    SCMP_SYS(unlinkat),
    SCMP_SYS(lseek),
    // memory
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    // time, randomness, threads
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(getrandom),
    SCMP_SYS(futex),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(gettid),
    SCMP_SYS(getpid),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(membarrier),
    // signals (SIGBUS of a guest's memory, SIGINT), abort, end
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigtimedwait),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(tgkill),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
#ifdef __SANITIZE_ADDRESS__
    // ubsan asks through a pipe whether memory can be read before it looks at an object's type
    SCMP_SYS(pipe),
    SCMP_SYS(pipe2),
#endif
};

struct FilterDeleter {
  void operator()(void* filter) const noexcept { seccomp_release(filter); }
};

std::unexpected<Error> fail_filter(int result) {
  errno = -result;
  return fail_errno("set the system-call filter", "run with the filter off");
}

}  // namespace

Result<Filter> filter_system_calls() {
  const std::unique_ptr<void, FilterDeleter> filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (filter == nullptr) return fail_filter(-ENOMEM);
  if (const int r = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1); r != 0) {
    return fail_filter(r);
  }
  for (const int call : kAllowed) {
    if (const int r = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0); r != 0) {
      return fail_filter(r);
    }
  }
  // Unix sockets alone: the client's role makes a new one each time it connects.
  if (const int r = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                                     SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
      r != 0) {
    return fail_filter(r);
  }
  // A TAP's offloads follow what the guest negotiates; nothing else of it can be changed.
  if (const int r = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                                     SCMP_A1(SCMP_CMP_EQ, TUNSETOFFLOAD));
      r != 0) {
    return fail_filter(r);
  }
  if (const int r = seccomp_load(filter.get()); r != 0) return fail_filter(r);
  return Filter::on;
}

#else

Result<Filter> filter_system_calls() { return Filter::unavailable; }

#endif

}  // namespace nobounce::backend
