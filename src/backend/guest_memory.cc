#include "backend/guest_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace nobounce::backend {
namespace {

// True when [address, address + bytes) does not fit into 64 bits. bytes > 0.
constexpr bool wraps(uint64_t address, uint64_t bytes) noexcept {
  return address > UINT64_MAX - (bytes - 1);
}

constexpr bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) noexcept {
  return a < b ? b - a < a_bytes : a - b < b_bytes;
}

constexpr bool is_page_aligned(uint64_t value) noexcept { return value % kPageSize == 0; }

const char* fault_of_region(const wire::MemRegion& region) noexcept {
  if (region.bytes == 0) return "a region of no bytes";
  if (!is_page_aligned(region.bytes) || !is_page_aligned(region.guest_address) ||
      !is_page_aligned(region.user_address) || !is_page_aligned(region.mmap_offset)) {
    return "a region that is not page-aligned";
  }
  if (wraps(region.guest_address, region.bytes)) return "guest addresses wrap";
  if (wraps(region.user_address, region.bytes)) return "user addresses wrap";
  // off_t is signed: the end must be a file offset.
  if (region.mmap_offset > static_cast<uint64_t>(INT64_MAX) ||
      region.bytes > static_cast<uint64_t>(INT64_MAX) - region.mmap_offset) {
    return "file offset and size wrap";
  }
  return nullptr;
}

}  // namespace

const char* GuestMemory::fault_of(const wire::MemTable& table) noexcept {
  if (table.count == 0) return "no regions";
  if (table.count > kRegionsMax) return "too many regions";
  for (size_t i = 0; i < table.count; ++i) {
    const wire::MemRegion& a = table.regions[i];
    if (const char* fault = fault_of_region(a)) return fault;
    for (size_t j = 0; j < i; ++j) {
      const wire::MemRegion& b = table.regions[j];
      if (overlap(a.guest_address, a.bytes, b.guest_address, b.bytes)) {
        return "guest addresses overlap";
      }
      if (overlap(a.user_address, a.bytes, b.user_address, b.bytes)) {
        return "user addresses overlap";
      }
    }
  }
  return nullptr;
}

Result<GuestMemory::Region> GuestMemory::map_region(const wire::MemRegion& region, int fd) {
  auto mapping =
      SharedRegion::map_peer({.fd = fd, .fd_offset = region.mmap_offset, .bytes = region.bytes});
  if (!mapping) return std::unexpected(mapping.error());
  Region mapped;
  mapped.guest_address = region.guest_address;
  mapped.user_address = region.user_address;
  mapped.bytes = (*mapping)->bytes();
  mapped.mapping = std::move(*mapping);
  return mapped;
}

Result<std::unique_ptr<GuestMemory>> GuestMemory::create(const wire::MemTable& table,
                                                         std::span<const UniqueFd> fds) {
  if (const char* fault = fault_of(table)) {
    return fail(std::errc::invalid_argument, "read the memory table", fault);
  }
  if (fds.size() != table.count) {
    return fail(std::errc::invalid_argument, "read the memory table",
                fmt::format("{} regions and {} file descriptors", table.count, fds.size()));
  }
  std::unique_ptr<GuestMemory> memory(new GuestMemory);
  memory->regions_.reserve(table.count);
  for (size_t i = 0; i < table.count; ++i) {
    auto region = map_region(table.regions[i], fds[i].get());
    if (!region) return std::unexpected(region.error());
    memory->regions_.push_back(std::move(*region));
  }
  return memory;
}

Translation GuestMemory::translate(uint64_t address, uint32_t size,
                                   PieceList& pieces) const noexcept {
  uint64_t left = size;
  if (left > 0 && wraps(address, left)) return Translation::unmapped;
  // Each region is entered at most once: they do not overlap.
  for (size_t step = 0; left > 0; ++step) {
    if (step == regions_.size()) return Translation::unmapped;
    const auto region = std::ranges::find_if(regions_, [address](const Region& r) {
      return address - r.guest_address < r.bytes.size();
    });
    if (region == regions_.end()) return Translation::unmapped;
    const uint64_t offset = address - region->guest_address;
    const uint64_t part = std::min(left, region->bytes.size() - offset);
    if (!pieces.try_push(region->bytes.sub(offset, part))) return Translation::no_room;
    address += part;
    left -= part;
  }
  return Translation::done;
}

std::optional<SharedBytes> GuestMemory::translate_user(uint64_t address, uint64_t size,
                                                       uint64_t alignment) const noexcept {
  NB_ASSERT(size > 0);
  NB_ASSERT(is_power_of_two(alignment));
  if (address % alignment != 0) return std::nullopt;
  for (const Region& region : regions_) {
    const uint64_t offset = address - region.user_address;  // huge when below the region
    if (offset >= region.bytes.size()) continue;
    if (region.bytes.size() - offset < size) return std::nullopt;
    return region.bytes.sub(offset, size);
  }
  return std::nullopt;
}

bool GuestMemory::is_broken() const noexcept {
  return std::ranges::any_of(regions_, [](const Region& r) { return r.mapping->is_broken(); });
}

}  // namespace nobounce::backend
