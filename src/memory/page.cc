// The page space and its descriptors.
//
// One reservation of addresses without access, made once and never given back to the kernel; a
// taken range is mapped over by whoever took it and covered by the bare reservation again when
// returned. Between two taken ranges stays at least one page without access, so that running off
// the end of a region or an arena is a fault and not the next owner's bytes (TM-62).
//
//   | range | guard | range | guard |  free ...
//
// Free ranges are kept in a map by address, first fit: there are as many as regions and arenas.
#include "memory/page.hpp"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <type_traits>

#include "base/log.hpp"

namespace nobounce {
namespace {

constexpr size_t kGuardBytes = kPageSize;
constexpr size_t kSpaceAlignment = size_t{2} << 20;  // a huge page
constexpr size_t kDescriptorBytes = (PageSpace::kBytes >> kPageShift) * sizeof(Page);

// Zeroed memory must be a neutral descriptor: that is what the kernel hands out on first touch.
// The atomics are lock-free, so their bytes are their value.
constexpr bool zero_is_neutral() {
  constexpr Page page;
  return static_cast<uint8_t>(PageKind::none) == 0 && page.kind == PageKind::none &&
         page.order == 0 && !page.is_tail && page.owner_tag == 0 && page.head_distance == 0 &&
         page.owner_index == 0 && page.owner == nullptr && Page::kNotTracked == 0 &&
         page.pool_private == 0 && page.reserved == 0;
}
static_assert(zero_is_neutral());
static_assert(std::is_standard_layout_v<Page> && std::is_trivially_destructible_v<Page>);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<PagePool*>::is_always_lock_free);

struct FreeRanges {
  std::mutex lock;
  std::map<uint64_t, uint64_t> by_start;  // start -> size, never adjacent
};

// Never destroyed: regions held by other statics may outlive this file's.
FreeRanges& free_ranges() noexcept {
  static auto* ranges = new FreeRanges;
  return *ranges;
}

std::byte* reserve(size_t bytes, int protection) noexcept {
  void* memory =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(memory);
}

}  // namespace

PageSpace& PageSpace::instance() noexcept {
  static PageSpace space;
  return space;
}

PageSpace::PageSpace() noexcept {
  std::byte* addresses = reserve(kBytes + kSpaceAlignment, PROT_NONE);
  std::byte* descriptors = reserve(kDescriptorBytes, PROT_READ | PROT_WRITE);
  if (addresses == nullptr || descriptors == nullptr) {
    // Nothing can be taken (the callers report it); no address of ours is in an upper half.
    if (addresses != nullptr) munmap(addresses, kBytes + kSpaceAlignment);
    if (descriptors != nullptr) munmap(descriptors, kDescriptorBytes);
    base_ = uint64_t{1} << 63;
    return;
  }
  base_ = round_up(reinterpret_cast<uint64_t>(addresses), kSpaceAlignment);
  pages_ = reinterpret_cast<Page*>(descriptors);
  FreeRanges& ranges = free_ranges();
  const std::lock_guard guard(ranges.lock);
  ranges.by_start.emplace(base_, kBytes);
}

std::byte* PageSpace::take(size_t bytes, size_t alignment, PageKind kind) noexcept {
  NB_ASSERT(is_power_of_two(alignment));
  NB_ASSERT(alignment >= kPageSize);
  NB_ASSERT(bytes > 0);
  NB_ASSERT(bytes % kPageSize == 0);
  NB_ASSERT(kind != PageKind::none);
  if (bytes > kBytes - kGuardBytes) return nullptr;
  const uint64_t wanted = bytes + kGuardBytes;
  uint64_t start = 0;
  {
    FreeRanges& ranges = free_ranges();
    const std::lock_guard guard(ranges.lock);
    auto range = ranges.by_start.begin();
    for (; range != ranges.by_start.end(); ++range) {
      start = round_up(range->first, alignment);
      const uint64_t skipped = start - range->first;
      if (skipped <= range->second && wanted <= range->second - skipped) break;
    }
    if (range == ranges.by_start.end()) return nullptr;
    const uint64_t end = range->first + range->second;
    range->second = start - range->first;
    if (range->second == 0) ranges.by_start.erase(range);
    if (end > start + wanted) ranges.by_start.emplace(start + wanted, end - start - wanted);
  }
  Page* page = page_of(static_cast<CpuAddr>(start));
  for (size_t i = 0; i < bytes >> kPageShift; ++i) (new (&page[i]) Page)->kind = kind;
  return reinterpret_cast<std::byte*>(start);
}

void PageSpace::give_back(std::byte* base, size_t bytes) noexcept {
  const auto start = reinterpret_cast<uint64_t>(base);
  NB_ASSERT(contains(static_cast<CpuAddr>(start)));
  NB_ASSERT(bytes % kPageSize == 0);
  void* covered =
      mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (covered == MAP_FAILED) {
    // Too many mappings. The addresses stay out of use; what they hold goes with the process.
    log_warning("page space: a range could not be unmapped and is not reused");
    return;
  }
  madvise(base, bytes, MADV_DONTDUMP);

  Page* page = page_of(static_cast<CpuAddr>(start));
  for (size_t i = 0; i < bytes >> kPageShift; ++i) {
    NB_ASSERT(page[i].refcount.load(std::memory_order_acquire) == 0);  // a block is still out
    new (&page[i]) Page;
  }
  // Whole pages of descriptors go back to the kernel, and come again as zeros.
  const uint64_t first = round_up(reinterpret_cast<uint64_t>(page), kPageSize);
  const uint64_t last =
      reinterpret_cast<uint64_t>(page + (bytes >> kPageShift)) & ~uint64_t{kPageSize - 1};
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);

  FreeRanges& ranges = free_ranges();
  const std::lock_guard guard(ranges.lock);
  const auto [range, added] = ranges.by_start.emplace(start, bytes + kGuardBytes);
  NB_ASSERT(added);
  const auto following = std::next(range);
  if (following != ranges.by_start.end() && range->first + range->second == following->first) {
    range->second += following->second;
    ranges.by_start.erase(following);
  }
  if (range != ranges.by_start.begin()) {
    const auto previous = std::prev(range);
    if (previous->first + previous->second == range->first) {
      previous->second += range->second;
      ranges.by_start.erase(range);
    }
  }
}

// ---- references -------------------------------------------------------------------------------

void page_put(Page& page, uint32_t count) noexcept {
  Page& head = page_head(page);
  // Acquire: the last holder sees what the others did; release: the others let it be seen.
  const uint32_t before = head.refcount.fetch_sub(count, std::memory_order_acq_rel);
  NB_ASSERT(before >= count);  // returned twice
  if (before > count) return;
  NB_ASSERT(head.owner != nullptr);
  NB_ASSERT(head.pool.load(std::memory_order_relaxed) == nullptr);
  head.owner->release_block(head);
}

// ---- bytes of a block -------------------------------------------------------------------------

namespace {

std::byte* address_in_block(Page& page, size_t offset, size_t size) noexcept {
  const Page& head = page_head(page);
  const size_t room = block_bytes(head) - (size_t{page.head_distance} << kPageShift);
  NB_ASSERT(head.refcount.load(std::memory_order_relaxed) > 0);
  NB_ASSERT(offset <= room);
  NB_ASSERT(size <= room - offset);
  return reinterpret_cast<std::byte*>(static_cast<uint64_t>(page_address(page) + offset));
}

}  // namespace

SharedBytes shared_bytes(Page& page, size_t offset, size_t size) noexcept {
  NB_ASSERT(is_shared(page));
  return SharedMemoryAccess::make(address_in_block(page, offset, size), size);
}

MutableBytes private_bytes(Page& page, size_t offset, size_t size) noexcept {
  NB_ASSERT(page.kind == PageKind::private_memory);
  return {address_in_block(page, offset, size), size};
}

void page_write(Page& page, size_t offset, Bytes from) noexcept {
  if (is_shared(page)) {
    shared_bytes(page, offset, from.size()).copy_in(0, from);
  } else if (const MutableBytes to = private_bytes(page, offset, from.size()); !to.empty()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

void page_read(Page& page, size_t offset, MutableBytes to) noexcept {
  if (is_shared(page)) {
    shared_bytes(page, offset, to.size()).copy_out(0, to);
  } else if (const Bytes from = private_bytes(page, offset, to.size()); !from.empty()) {
    std::memcpy(to.data(), from.data(), to.size());
  }
}

uint64_t page_write_summed(Page& page, size_t offset, Bytes from, uint64_t sum) noexcept {
  if (is_shared(page)) return shared_bytes(page, offset, from.size()).copy_in_summed(0, from, sum);
  return checksum_copy(sum, private_bytes(page, offset, from.size()), from);
}

uint64_t page_sum(Page& page, size_t offset, size_t size, uint64_t sum) noexcept {
  if (is_shared(page)) return shared_bytes(page, offset, size).sum(0, size, sum);
  return checksum_add(sum, private_bytes(page, offset, size));
}

}  // namespace nobounce
