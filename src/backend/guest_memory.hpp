// The guest's memory as the device reaches it: up to eight mapped regions and the two address spaces
// that name bytes in them.
//
//   guest addresses (descriptors)   user addresses (SET_VRING_ADDR)      our mapping
//   | region 0 |   | region 1 |     | region 1 |  | region 0 |     ->    SharedBytes of the region
//
// create() checks the whole table before it maps anything (TM-76): counts, sizes, alignment, no
// wrap, no overlap in either space; SharedRegion::map_peer() checks each file. There is no half-made
// map.
// Translation gives ranges that lie wholly in mapped memory or nothing. A buffer that runs over the
// border of two adjacent regions is given in pieces (C065).
// The bytes belong to an untrusted guest: they are reached through SharedBytes alone.
//
// Threads: one. Cost: O(regions) a translation; allocates in create() only.
// Spec: TM-64, TM-76, TM-79; virtio.md 11.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "memory/shared.hpp"
#include "memory/shared_region.hpp"
#include "wire/vhost_user.hpp"

namespace nobounce::backend {

// Pieces of one or several buffers, bounded: what does not fit is refused.
class PieceList {
 public:
  explicit PieceList(size_t capacity) { pieces_.reserve(capacity); }
  [[nodiscard]] bool try_push(const SharedBytes& piece) noexcept {
    if (pieces_.size() == pieces_.capacity()) return false;
    pieces_.push_back(piece);
    return true;
  }
  [[nodiscard]] size_t size() const noexcept { return pieces_.size(); }
  [[nodiscard]] size_t capacity() const noexcept { return pieces_.capacity(); }
  [[nodiscard]] std::span<const SharedBytes> range(size_t first, size_t count) const noexcept {
    return std::span(pieces_).subspan(first, count);
  }
  void shrink_to(size_t size) noexcept {
    NB_ASSERT(size <= pieces_.size());
    pieces_.resize(size);
  }

 private:
  std::vector<SharedBytes> pieces_;
};

enum class Translation : uint8_t { done, unmapped, no_room };

class GuestMemory {
 public:
  static constexpr size_t kRegionsMax = wire::kMemRegionsMax;

  // `fds[i]` backs region i; they stay the caller's and may be closed afterwards.
  static Result<std::unique_ptr<GuestMemory>> create(const wire::MemTable& table,
                                                     std::span<const UniqueFd> fds);
  // The check alone, without files: what is wrong with the table, null when nothing is.
  [[nodiscard]] static const char* fault_of(const wire::MemTable& table) noexcept;

  // Appends [address, address + size) of the guest's address space in order. On failure `pieces` may
  // have grown.
  [[nodiscard]] Translation translate(uint64_t address, uint32_t size,
                                      PieceList& pieces) const noexcept;
  // A ring part by user address: wholly inside one region and aligned, or nothing.
  [[nodiscard]] std::optional<SharedBytes> translate_user(uint64_t address, uint64_t size,
                                                          uint64_t alignment) const noexcept;

  // The guest punched a hole or cut its file, and we ran into it. Sticky (TM-64).
  [[nodiscard]] bool is_broken() const noexcept;
  [[nodiscard]] size_t region_count() const noexcept { return regions_.size(); }

 private:
  struct Region {
    uint64_t guest_address = 0;
    uint64_t user_address = 0;
    SharedBytes bytes;
    std::unique_ptr<SharedRegion> mapping;
  };
  GuestMemory() = default;
  static Result<Region> map_region(const wire::MemRegion& region, int fd);

  std::vector<Region> regions_;
};

}  // namespace nobounce::backend
