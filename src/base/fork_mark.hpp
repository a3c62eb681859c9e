// Tells a process from its children by fork(2): they have a copy of every object, but none of the
// threads, and share every file and every page that is shared with a device. What belongs to such a
// thing keeps a mark of where it was made and leaves all alone in a child.
// Threads: any. Cost: two loads. Spec: TM-87.
#pragma once

#include <atomic>
#include <cstdint>

namespace nobounce {

class ForkMark {
 public:
  ForkMark();
  // This process was forked from the one that made the mark, or from one of its children.
  [[nodiscard]] bool is_child() const noexcept {
    return forks_ != forks().load(std::memory_order_relaxed);
  }

 private:
  static std::atomic<uint32_t>& forks() noexcept;
  uint32_t forks_;  // between the first process and the one that made the mark
};

}  // namespace nobounce
