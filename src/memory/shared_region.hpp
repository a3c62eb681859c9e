// A region of memory shared with the device: created by the guest, mapped by the back-end.
//
// The guest's side: create() makes a sealed memfd (or a hugetlb memfd when asked and there),
// maps it in the page space and touches every page, so that a limit shows at start. The device sees
// IOVAs (synthetic: base + offset, never an address of ours, TM-63).
// The back-end's side: map_peer() maps what it was given; that memory belongs to an untrusted
// guest.
//
// The first part of the region is carved at set-up into rings and header slots (carve()); the rest
// becomes the swiotlb pool.
//
//   fd offset 0                                                        size
//   | carved: rings, header slots, control queue |   swiotlb pool        |
//
// A fault in the region (the peer punched a hole or truncated its file) is caught: a private zero
// page is mapped in its place and is_broken() becomes true; the owner latches the device broken
// (TM-64).
//
// Fork and exec: exec inherits nothing (close-on-exec). A child of a fork inherits the mapping and
// shares it with its parent, so it must neither touch nor destroy the region: whoever supports fork
// leaves it behind in the child (TM-87).
// Threads: set-up and tear-down by one thread; is_broken() by any.
// Spec: TM-57, TM-62..TM-64, TM-87.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "memory/page.hpp"
#include "memory/shared.hpp"

namespace nobounce {

enum class HugePages : uint8_t { off, prefer };

struct SharedRegionOptions {
  std::string name = "nobounce";
  uint64_t bytes = 64 << 20;              // rounded up to 2 MiB
  HugePages huge_pages = HugePages::off;  // prefer: falls back to 4 KiB pages with a notice
  uint64_t iova_base = uint64_t{1} << 32;
};

// What a peer told us about a region it owns, already validated (TM-76).
struct PeerRegion {
  int fd = -1;  // borrowed: may be closed as soon as map_peer() is back
  uint64_t fd_offset = 0;
  uint64_t bytes = 0;
};

class SharedRegion {
 public:
  static Result<std::unique_ptr<SharedRegion>> create(const SharedRegionOptions& options);
  static Result<std::unique_ptr<SharedRegion>> map_peer(const PeerRegion& region);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  // To be passed to the device (close-on-exec). -1 for a peer's region.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] uint64_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] SharedBytes bytes() const noexcept { return bytes_; }
  [[nodiscard]] uint64_t iova_base() const noexcept { return iova_base_; }
  [[nodiscard]] bool uses_huge_pages() const noexcept { return huge_; }

  // Guest side: the next `bytes` for a ring or a header slot array, zeroed; alignment a power of
  // two. Null range when the region is too small. Set-up only.
  [[nodiscard]] SharedBytes carve(size_t bytes, size_t alignment);
  // Everything not carved, from the next multiple of `alignment` (for the swiotlb pool).
  [[nodiscard]] SharedBytes carve_rest(size_t alignment);

  // IOVA of a range of this region.
  [[nodiscard]] uint64_t iova_of(const SharedBytes& range) const noexcept;
  // First page descriptor (guest side; the peer's mapping has none).
  [[nodiscard]] CpuAddr cpu_address() const noexcept {
    return static_cast<CpuAddr>(bytes_.address());
  }

  // True after a fault in the region. Sticky.
  [[nodiscard]] bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }

 private:
  SharedRegion(UniqueFd fd, SharedBytes bytes, uint64_t iova_base, bool huge, bool in_page_space);
  void unmap_peer() noexcept;

  UniqueFd fd_;
  SharedBytes bytes_;
  uint64_t iova_base_;
  bool huge_;
  bool in_page_space_;
  uint64_t peer_page_bytes_ = 0;
  size_t carved_ = 0;
  std::atomic<bool> broken_{false};
};

}  // namespace nobounce
