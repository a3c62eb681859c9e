// A program that forks while it has a stack: the child has a copy of everything and may touch nothing.
#include <sys/wait.h>

#include "backend_process.hpp"

namespace nobounce::test {
namespace {

struct ForkTest : SystemTest {};

// Runs `body` in a child, which ends with what it returns; -1 when it does not end.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  for (int i = 0; i < 1000; ++i) {
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    }
    std::this_thread::sleep_for(10ms);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return -1;
}

TEST_F(ForkTest, TM87_a_child_cannot_use_the_stack_and_its_end_disturbs_nobody) {
  auto stack = open(Mode::nocopy);
  ASSERT_NE(stack, nullptr);
  TcpSocket socket = connect(*stack, kEcho);
  auto udp = stack->udp_bind();
  auto listener = stack->tcp_listen({IpAddress::v4(0, 0, 0, 0), 80});
  ASSERT_TRUE(udp && listener);
  std::byte byte{'x'};

  const int failures = in_child([&] {
    int wrong = 0;
    wrong += socket.send({&byte, 1}).has_value();
    wrong += socket.recv({&byte, 1}).has_value();
    wrong += udp->send_to({&byte, 1}, {kPeer, kEcho}).has_value();
    wrong += udp->recv_from({&byte, 1}).has_value();
    wrong += listener->accept(1s).has_value();
    wrong += stack->tcp_connect({kPeer, kEcho}, 1s).has_value();
    wrong += stack->ping(kPeer, 1, 56, 1s).has_value();
    wrong += !stack->failure().has_value();
    // As at the end of main().
    listener->close();
    udp->close();
    socket.close();
    stack.reset();
    return wrong;
  });
  EXPECT_EQ(failures, 0);

  EXPECT_FALSE(stack->failure().has_value()) << *stack->failure();
  EXPECT_TRUE(stack->ping(kPeer, 2, 56, 5s).has_value());
  ASSERT_EQ(socket.send({&byte, 1}), 1u);
  EXPECT_EQ(socket.recv({&byte, 1}), 1u);
}

TEST_F(ForkTest, TM87_a_stack_that_is_driven_inline_is_not_driven_by_a_child) {
  StackOptions options = this->options(Mode::nocopy);
  options.drive = Drive::inline_drive;
  auto stack = Stack::open(options);
  ASSERT_TRUE(stack) << stack.error().to_string();
  EXPECT_EQ(in_child([&] {
              const bool worked = (*stack)->poll(100ms);
              stack->reset();
              return worked ? 1 : 0;
            }),
            0);
  EXPECT_TRUE((*stack)->ping(kPeer, 1, 56, 5s).has_value());
}

// Objects in static storage go when main() has returned, after its thread's own.
TEST_F(ForkTest, sockets_in_static_storage_are_closed_after_the_threads_own_objects) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no threads in a forked child";
#endif
  const int status = in_child([&] {
    static std::unique_ptr<Stack> stack;
    static TcpSocket socket;
    static TcpListener listener;
    stack = open(Mode::nocopy);
    socket = connect(*stack, kEcho);
    listener = *stack->tcp_listen({IpAddress::v4(0, 0, 0, 0), 80});
    std::exit(5);  // destructors of this thread, then of static objects
    return 0;
  });
  EXPECT_EQ(status, 5);
}

}  // namespace
}  // namespace nobounce::test
