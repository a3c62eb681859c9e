// The trust boundary as a type: bytes that an untrusted party may read and rewrite at any instant.
//
// What it is: SharedBytes is a range (base, size) of shared memory. It cannot be dereferenced or
// turned into a pointer or span: bytes go in and out only by load, store, copy in, copy out, sum
// and zero, each of which touches every byte exactly once.
// What it is not: an owner. The range stays valid as long as the SharedRegion it came from.
//
// Invariants
//  1. One call, one read: no accessor reads a location twice, and the compiler cannot (TM-1).
//  2. Offsets are ours, never the other side's: a range outside the object is an assertion. Check
//     what the other side said before it becomes an offset.
//  3. Nothing here is trusted on return: a loaded value must be validated before use (TM-2).
//
// Threads: any; ordering is what the caller asks for. Cost: a copy. Allocates nothing.
// Spec: TM-1..TM-5, TM-44, TM-47; design "memory rules" 2 and 8.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/assert.hpp"
#include "base/barrier.hpp"
#include "base/bytes.hpp"
#include "base/checksum.hpp"

namespace nobounce {

enum class LoadOrder : uint8_t { relaxed, acquire };
enum class StoreOrder : uint8_t { relaxed, release };

#ifdef NOBOUNCE_SHARED_LOAD_HOOK
// Called before each load of shared memory with the address and size about to be read. The hostile
// device of the tests changes the word here, so that any double fetch gives two values.
using SharedLoadHook = void (*)(void* context, std::byte* address, size_t size);
void set_shared_load_hook(SharedLoadHook hook, void* context) noexcept;
void run_shared_load_hook(std::byte* address, size_t size) noexcept;
#else
inline void run_shared_load_hook(std::byte*, size_t) noexcept {}
#endif

class SharedBytes {
 public:
  constexpr SharedBytes() noexcept = default;

  [[nodiscard]] size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

  [[nodiscard]] SharedBytes sub(size_t offset, size_t size) const noexcept {
    check(offset, size);
    return {base_ + offset, size};
  }
  [[nodiscard]] SharedBytes sub(size_t offset) const noexcept {
    NB_ASSERT(offset <= size_);
    return {base_ + offset, size_ - offset};
  }

  // Single naturally aligned access of 1, 2, 4 or 8 bytes, in memory order.
  template <class T>
  [[nodiscard]] T load(size_t offset, LoadOrder order = LoadOrder::relaxed) const noexcept {
    return order == LoadOrder::acquire ? word<T>(offset, true).load(std::memory_order_acquire)
                                       : word<T>(offset, true).load(std::memory_order_relaxed);
  }
  template <class T>
  void store(size_t offset, std::type_identity_t<T> value,
             StoreOrder order = StoreOrder::relaxed) const noexcept {
    if (order == StoreOrder::release) {
      word<T>(offset, false).store(value, std::memory_order_release);
    } else {
      word<T>(offset, false).store(value, std::memory_order_relaxed);
    }
  }

  // Little-endian forms, the order of every virtio field.
  template <class T>
  [[nodiscard]] T load_le(size_t offset, LoadOrder order = LoadOrder::relaxed) const noexcept {
    return little_endian(load<T>(offset, order));
  }
  template <class T>
  void store_le(size_t offset, std::type_identity_t<T> value,
                StoreOrder order = StoreOrder::relaxed) const noexcept {
    store<T>(offset, little_endian(value), order);
  }

  // Bulk forms. The private side may be of any alignment; sizes are the private side's.
  void copy_in(size_t offset, Bytes from) const noexcept;
  void copy_out(size_t offset, MutableBytes to) const noexcept;
  void zero(size_t offset, size_t size) const noexcept;
  // Shared to shared (a bounce from one shared block to another).
  void copy_from(size_t offset, const SharedBytes& from) const noexcept;

  // Copies in and sums the private source in the same pass (NC-55).
  [[nodiscard]] uint64_t copy_in_summed(size_t offset, Bytes from, uint64_t sum) const noexcept;
  // Copies out and sums what was copied, from the private copy.
  [[nodiscard]] uint64_t copy_out_summed(size_t offset, MutableBytes to,
                                         uint64_t sum) const noexcept;
  // Sums in place, one read a byte: error detection only, never a security decision (TM-47).
  [[nodiscard]] uint64_t sum(size_t offset, size_t size, uint64_t sum) const noexcept;

  // Same memory? For tests and for address bookkeeping; not a way to the bytes.
  [[nodiscard]] uintptr_t address() const noexcept { return reinterpret_cast<uintptr_t>(base_); }

 private:
  friend class SharedMemoryAccess;
  SharedBytes(std::byte* base, size_t size) noexcept : base_(base), size_(size) {}

  void check(size_t offset, size_t size) const noexcept {
    NB_ASSERT(offset <= size_);
    NB_ASSERT(size <= size_ - offset);
  }
  template <class T>
  [[nodiscard]] std::atomic_ref<T> word(size_t offset, bool for_load) const noexcept {
    static_assert(std::is_unsigned_v<T>);
    static_assert(std::atomic_ref<T>::is_always_lock_free);
    check(offset, sizeof(T));
    std::byte* address = base_ + offset;
    NB_ASSERT(reinterpret_cast<uintptr_t>(address) % sizeof(T) == 0);
    if (for_load) run_shared_load_hook(address, sizeof(T));
    return std::atomic_ref<T>(*reinterpret_cast<T*>(address));
  }

  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

// The only maker of SharedBytes and the only way back to an address. For memory/ itself (mapping,
// page descriptors) and for tests that play the other side. Never for drivers or parsers; the tidy
// test checks who names it.
class SharedMemoryAccess {
 public:
  [[nodiscard]] static SharedBytes make(std::byte* base, size_t size) noexcept {
    return {base, size};
  }
  [[nodiscard]] static std::byte* raw(const SharedBytes& bytes) noexcept { return bytes.base_; }
};

}  // namespace nobounce
