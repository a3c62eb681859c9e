#include "base/copies.hpp"

#include <fmt/format.h>

namespace nobounce {
namespace {

thread_local ThreadKind thread_kind = ThreadKind::application;

constexpr const char* kThreadNames[kThreadKinds] = {"application", "io"};
constexpr const char* kCopyNames[kCopyKinds] = {"send", "receive", "bounce", "header", "local"};

}  // namespace

ThreadKind this_thread_kind() noexcept { return thread_kind; }
void set_this_thread_kind(ThreadKind kind) noexcept { thread_kind = kind; }

CopyLedger::CopyLedger(CounterRegistry& registry) {
  for (size_t thread = 0; thread < kThreadKinds; ++thread) {
    for (size_t kind = 0; kind < kCopyKinds; ++kind) {
      cells_[thread][kind] =
          registry.counter(fmt::format("copy.{}.{}_bytes", kThreadNames[thread], kCopyNames[kind]));
    }
  }
}

}  // namespace nobounce
