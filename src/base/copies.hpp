// Every copy of packet bytes is counted, by what was copied and by the kind of thread that did it.
// The result table ("payload bytes copied per byte delivered") is computed from these alone.
//
// Each thread marks its kind once. Cost of a count: one locked add; one count a copy of a frag or
// header, not a byte.
#pragma once

#include <array>
#include <cstdint>

#include "base/counters.hpp"

namespace nobounce {

enum class ThreadKind : uint8_t { application, io };
enum class CopyKind : uint8_t {
  send,     // application memory -> socket buffer
  receive,  // socket buffer -> application memory
  bounce,   // swiotlb: original <-> bounce slot, payload pages
  header,   // packet headers into or out of shared memory
  local,    // what is sent to an address of our own: sender's pages -> private pages
};
inline constexpr size_t kThreadKinds = 2;
inline constexpr size_t kCopyKinds = 5;

[[nodiscard]] ThreadKind this_thread_kind() noexcept;
void set_this_thread_kind(ThreadKind kind) noexcept;

class CopyLedger {
 public:
  // Names: "copy.<application|io>.<send|receive|bounce|header|local>_bytes".
  explicit CopyLedger(CounterRegistry& registry);
  void count(CopyKind kind, uint64_t bytes) noexcept {
    cells_[static_cast<size_t>(this_thread_kind())][static_cast<size_t>(kind)].add(bytes);
  }
  [[nodiscard]] uint64_t bytes(ThreadKind thread, CopyKind kind) const noexcept {
    return cells_[static_cast<size_t>(thread)][static_cast<size_t>(kind)].value();
  }

 private:
  std::array<std::array<SharedCounter, kCopyKinds>, kThreadKinds> cells_;
};

}  // namespace nobounce
