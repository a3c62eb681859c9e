#include "socket/stack_core.hpp"

#include <vector>

namespace nobounce {

std::shared_ptr<StackCore> StackCore::make() {
  return {new StackCore, [](StackCore* core) {
            static auto& kept = *new std::vector<StackCore*>;  // never destroyed
            core->home.is_child() ? kept.push_back(core) : delete core;
          }};
}

StackCore::~StackCore() { stop(); }

void StackCore::stop() noexcept {
  if (shard == nullptr || home.is_child()) return;
  shard->stop();
  if (io_thread.joinable()) {
    io_thread.join();
  } else {
    shard->leave();
  }
  shard->shut_down("the stack was closed");
}

void close_core(SocketCore& core, bool abort) noexcept {
  Shard& shard = core.shard;
  if (shard.is_forked()) return;
  Submission submission;
  submission.op = abort ? Submission::Op::abort : Submission::Op::close;
  submission.socket = &core;
  {
    const std::lock_guard guard(core.send_lock);
    core.frags.release();
    submission.sequence = core.submitted_sequence++;
    // From here on the core is the shard's, before the lock is let go: nobody else may be inside.
  }
  // A thread that gets no ring of its own (too many threads) tries again: rings are left by threads
  // that end. Only a stack that is down lets the caller settle things itself.
  while (!shard.submit(submission)) {
    if (shard.is_down()) {
      shard.release_when_down(core);
      break;
    }
    std::this_thread::yield();
  }
}

}  // namespace nobounce
