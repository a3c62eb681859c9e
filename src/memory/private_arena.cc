// The buddy allocator of private pages.
//
// The arena is an array of blocks of the largest order. A free block of order n stands in list n;
// its buddy is the block whose page number differs in bit n alone. Links and orders are kept in
// arrays beside the pages, not in the pages and not in the descriptors: a free descriptor is
// neutral.
#include "memory/private_arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace nobounce {
namespace {

constexpr uint64_t kLargestBlock = kPageSize << kBlockOrderMax;
constexpr uint64_t kBytesMax = uint64_t{16} << 30;  // page numbers fit their links with room
constexpr uint32_t kNone = ~uint32_t{0};
constexpr uint8_t kNotFree = 0xff;

}  // namespace

struct PrivateArena::FreeList {
  struct Entry {
    uint32_t previous = kNone;
    uint32_t next = kNone;
  };
  std::vector<Entry> entries;   // by page number
  std::vector<uint8_t> orders;  // of the free block that starts here, else kNotFree
  std::array<uint32_t, kBlockOrderMax + 1> first;
  uint64_t pages_free = 0;

  explicit FreeList(size_t pages) : entries(pages), orders(pages, kNotFree) { first.fill(kNone); }

  void push(uint32_t page, unsigned order) noexcept {
    NB_ASSERT(orders[page] == kNotFree);
    orders[page] = static_cast<uint8_t>(order);
    entries[page] = {kNone, first[order]};
    if (first[order] != kNone) entries[first[order]].previous = page;
    first[order] = page;
  }
  void remove(uint32_t page) noexcept {
    const unsigned order = orders[page];
    NB_ASSERT(order <= kBlockOrderMax);
    const Entry entry = entries[page];
    if (entry.previous == kNone) {
      first[order] = entry.next;
    } else {
      entries[entry.previous].next = entry.next;
    }
    if (entry.next != kNone) entries[entry.next].previous = entry.previous;
    orders[page] = kNotFree;
  }

  // The smallest block that fits, its upper halves given back; kNone when there is none.
  uint32_t take(unsigned order) noexcept {
    unsigned found = order;
    while (found <= kBlockOrderMax && first[found] == kNone) ++found;
    if (found > kBlockOrderMax) return kNone;
    const uint32_t page = first[found];
    remove(page);
    while (found > order) {
      --found;
      push(page + (uint32_t{1} << found), found);
    }
    pages_free -= uint64_t{1} << order;
    return page;
  }
  void give(uint32_t page, unsigned order) noexcept {
    pages_free += uint64_t{1} << order;
    for (; order < kBlockOrderMax; ++order) {
      const uint32_t buddy = page ^ (uint32_t{1} << order);
      if (orders[buddy] != order) break;
      remove(buddy);
      page &= ~(uint32_t{1} << order);
    }
    push(page, order);
  }
};

Result<std::unique_ptr<PrivateArena>> PrivateArena::create(uint64_t bytes,
                                                           CounterRegistry& counters) {
  const std::string operation = fmt::format("make a private arena of {} bytes", bytes);
  if (bytes == 0 || bytes > kBytesMax) {
    return fail(std::errc::invalid_argument, operation, "the size is out of range",
                "use between 256 KiB and 16 GiB");
  }
  bytes = round_up(bytes, kLargestBlock);
  constexpr size_t kAlignment = size_t{2} << 20;  // so that huge pages can lie in it
  std::byte* base = PageSpace::instance().take(bytes, kAlignment, PageKind::private_memory);
  if (base == nullptr) {
    return fail(std::errc::not_enough_memory, operation, "no addresses left in the page space",
                "a limit on virtual memory (ulimit -v) must leave room for 65 GiB of addresses");
  }
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    auto error = fail_errno(operation, "free memory or choose a smaller arena");
    PageSpace::instance().give_back(base, bytes);
    return error;
  }
  madvise(base, bytes, MADV_DONTDUMP);  // payload does not belong in a core file (TM-87)
  madvise(base, bytes, MADV_HUGEPAGE);  // refused where the kernel has none: no loss
  return std::unique_ptr<PrivateArena>(new PrivateArena(base, bytes, counters));
}

PrivateArena::PrivateArena(std::byte* base, uint64_t bytes, CounterRegistry& counters)
    : base_(base),
      bytes_(bytes),
      free_(std::make_unique<FreeList>(bytes >> kPageShift)),
      exhausted_(counters.counter("arena.exhausted")) {
  const auto pages = static_cast<uint32_t>(bytes >> kPageShift);
  constexpr uint32_t kStep = uint32_t{1} << kBlockOrderMax;
  // Highest first, so that the lowest block is taken first.
  for (uint32_t page = pages; page > 0; page -= kStep) free_->give(page - kStep, kBlockOrderMax);
}

PrivateArena::~PrivateArena() {
  NB_ASSERT(pages_free() == bytes_ >> kPageShift);
  PageSpace::instance().give_back(base_, bytes_);
}

uint64_t PrivateArena::pages_free() const noexcept {
  const std::lock_guard guard(lock_);
  return free_->pages_free;
}

Page* PrivateArena::hand_out(uint32_t number, unsigned order) noexcept {
  Page* head = page_of(static_cast<CpuAddr>(reinterpret_cast<uint64_t>(base_))) + number;
  NB_ASSERT(head->owner == nullptr);
  NB_ASSERT(head->refcount.load(std::memory_order_relaxed) == 0);
  head->order = static_cast<uint8_t>(order);
  head->owner = this;
  for (uint32_t i = 1; i < uint32_t{1} << order; ++i) {
    head[i].is_tail = true;
    head[i].head_distance = i;
  }
  head->refcount.store(1, std::memory_order_relaxed);
  return head;
}

Page* PrivateArena::alloc(unsigned order) noexcept {
  NB_ASSERT(order <= kBlockOrderMax);
  uint32_t number = kNone;
  {
    const std::lock_guard guard(lock_);
    number = free_->take(order);
  }
  if (number == kNone) {
    exhausted_.add();
    return nullptr;
  }
  return hand_out(number, order);
}

size_t PrivateArena::alloc_bulk(Page** pages, size_t count) noexcept {
  constexpr size_t kBatch = 64;  // bounds the time the lock is held
  size_t done = 0;
  while (done < count) {
    std::array<uint32_t, kBatch> numbers;
    const size_t wanted = std::min(count - done, kBatch);
    size_t got = 0;
    {
      const std::lock_guard guard(lock_);
      while (got < wanted && (numbers[got] = free_->take(0)) != kNone) ++got;
    }
    for (size_t i = 0; i < got; ++i) pages[done++] = hand_out(numbers[i], 0);
    if (got < wanted) {
      exhausted_.add();
      break;
    }
  }
  return done;
}

void PrivateArena::release_block(Page& head) noexcept {
  NB_ASSERT(head.owner == this);
  NB_ASSERT(!head.is_tail);
  NB_ASSERT(head.refcount.load(std::memory_order_relaxed) == 0);
  const unsigned order = head.order;
  NB_ASSERT(order <= kBlockOrderMax);
  Page* pages = &head;
  for (uint32_t i = 1; i < uint32_t{1} << order; ++i) {
    pages[i].is_tail = false;
    pages[i].head_distance = 0;
  }
  head.order = 0;
  head.owner = nullptr;
  const uint64_t offset =
      page_address(head) - static_cast<CpuAddr>(reinterpret_cast<uint64_t>(base_));
  NB_ASSERT(offset < bytes_);
  const std::lock_guard guard(lock_);
  free_->give(static_cast<uint32_t>(offset >> kPageShift), order);
}

}  // namespace nobounce
