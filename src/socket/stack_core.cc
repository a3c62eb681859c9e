#include "socket/stack_core.hpp"

namespace nobounce {

StackCore::~StackCore() { stop(); }

void StackCore::stop() noexcept {
  if (shard == nullptr) return;
  shard->stop();
  if (io_thread.joinable()) io_thread.join();
  shard->shut_down("the stack was closed");
}

void close_core(SocketCore& core, bool abort) noexcept {
  Shard& shard = core.shard;
  Submission submission;
  submission.op = abort ? Submission::Op::abort : Submission::Op::close;
  submission.socket = &core;
  {
    const std::lock_guard guard(core.send_lock);
    core.frags.release();
    submission.sequence = core.submitted_sequence++;
    // From here on the core is the shard's, before the lock is let go: nobody else may be inside.
  }
  if (!shard.submit(submission)) shard.release_when_down(core);
}

}  // namespace nobounce
