// Control calls: what an application thread asks of a shard and waits for (connect, listen, bind,
// options, echo). The call lives on the caller's stack until it is finished; the body is a plain
// function and a context, so nothing is allocated.
//
// They have a lane of their own, not the threads' rings. A call comes after what its thread had
// submitted before (a port that it has closed is free), with one exception: a send or a
// datagram at the head of its ring may wait for room until a peer acknowledges or the device takes
// something, minutes, and a connect with a time-out must not wait behind that.
//
// No deadline: the shard may be inside the body at any moment, so a caller cannot leave. It needs
// none: the next round answers, and no round waits for anything. The device's side is polled, its
// kicks are ended by a watchdog (TM-86), stopping it is bounded, and a device that is broken or gone
// takes the shard down, which refuses what waits. What remains is a shard that nobody drives:
// Drive::inline_drive drives it in the wait itself.
#pragma once

#include <atomic>

#include "base/event.hpp"

namespace nobounce {

class Shard;
class SubmissionQueue;

struct ControlCall {
  using Body = void (*)(Shard& shard, void* context) noexcept;

  Body body = nullptr;
  void* context = nullptr;
  ControlCall* next = nullptr;        // the lane's
  SubmissionQueue* ring = nullptr;    // the calling thread's; null when it has none
  uint32_t after = 0;                 // what it had submitted by then
  std::atomic<bool> finished{false};  // with the body run, or refused because the stack is down
  bool refused = false;
  Event done;
  std::atomic<bool> left{false};  // the shard will not touch the call again
};

}  // namespace nobounce
