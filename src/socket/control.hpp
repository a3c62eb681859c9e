// Control calls: what an application thread asks of a shard and waits for (connect, listen, bind,
// options, echo). The call lives on the caller's stack until it is finished; the body is a plain
// function and a context, so nothing is allocated.
#pragma once

#include <atomic>

#include "base/event.hpp"

namespace nobounce {

class Shard;

struct ControlCall {
  using Body = void (*)(Shard& shard, void* context) noexcept;

  Body body = nullptr;
  void* context = nullptr;
  std::atomic<bool> finished{false};  // with the body run, or refused because the stack is down
  bool refused = false;
  Event done;
  std::atomic<bool> left{false};  // the shard will not touch the call again
};

}  // namespace nobounce
