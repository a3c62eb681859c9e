// The back-end's side: mapping a file that belongs to an untrusted guest.
//
// What the message said is checked once more against what the file is (TM-76): a plain file in
// memory, large enough. A file on a disk or behind a user-space file system could stop the thread
// that touches it. A later truncation is the fault guard's (TM-64).
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "memory/fault_guard.hpp"
#include "memory/shared_region.hpp"

namespace nobounce {
namespace {

// The mapping's page size, or 0 when the file does not live in memory.
uint64_t page_bytes_of(const struct statfs& fs) noexcept {
  const auto magic = static_cast<uint64_t>(fs.f_type);
  if (magic == HUGETLBFS_MAGIC) return static_cast<uint64_t>(fs.f_bsize);
  if (magic == TMPFS_MAGIC || magic == RAMFS_MAGIC) return kPageSize;
  return 0;
}

}  // namespace

Result<std::unique_ptr<SharedRegion>> SharedRegion::map_peer(const PeerRegion& region) {
  const std::string operation = fmt::format(
      "map the guest's memory ({} bytes at file offset {:#x})", region.bytes, region.fd_offset);
  struct stat status{};
  struct statfs fs{};
  if (fstat(region.fd, &status) != 0) return fail_errno(operation);
  if (fstatfs(region.fd, &fs) != 0) return fail_errno(operation);
  const uint64_t page_bytes = page_bytes_of(fs);
  if (!S_ISREG(status.st_mode) || page_bytes == 0 || !is_power_of_two(page_bytes)) {
    return fail(std::errc::invalid_argument, operation, "it is not a file in memory",
                "the guest must use memfd, hugetlbfs or tmpfs with share=on");
  }
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  if (region.bytes == 0 || region.fd_offset > file_bytes ||
      region.bytes > file_bytes - region.fd_offset) {
    return fail(std::errc::invalid_argument, operation,
                fmt::format("the file has {} bytes, less than announced", file_bytes));
  }
  if (region.fd_offset % kPageSize != 0 || region.bytes % kPageSize != 0) {
    return fail(std::errc::invalid_argument, operation, "it is not made of whole pages");
  }

  // Whole pages of the file's own kind, of which `region` may be a part.
  const uint64_t start = region.fd_offset & ~(page_bytes - 1);
  const uint64_t mapped_bytes = round_up(region.fd_offset + region.bytes, page_bytes) - start;
  void* base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd,
                    static_cast<off_t>(start));
  if (base == MAP_FAILED) return fail_errno(operation, "the guest must share it for writing");
  madvise(base, mapped_bytes, MADV_DONTDUMP);

  auto* first = static_cast<std::byte*>(base);
  std::unique_ptr<SharedRegion> mapped(new SharedRegion(
      UniqueFd(), SharedMemoryAccess::make(first + (region.fd_offset - start), region.bytes),
      /*iova_base=*/0, /*huge=*/page_bytes > kPageSize, /*in_page_space=*/false));
  mapped->peer_page_bytes_ = page_bytes;
  if (!FaultGuard::watch(first, mapped_bytes, page_bytes, mapped->broken_)) {
    return fail(std::errc::too_many_files_open, operation,
                fmt::format("{} regions are mapped already", FaultGuard::kRangesMax));
  }
  return mapped;
}

void SharedRegion::unmap_peer() noexcept {
  const uintptr_t mask = peer_page_bytes_ - 1;
  const uintptr_t first = bytes_.address() & ~mask;
  const uintptr_t last = (bytes_.address() + bytes_.size() + mask) & ~mask;
  std::byte* base = SharedMemoryAccess::raw(bytes_) - (bytes_.address() - first);
  FaultGuard::unwatch(base);
  munmap(base, last - first);
}

}  // namespace nobounce
