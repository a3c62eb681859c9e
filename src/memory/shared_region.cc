// The guest's side: a sealed memory file, mapped in the page space and populated before anyone uses
// it. The peer's side is in peer_region.cc.
#include "memory/shared_region.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <utility>

#include "base/log.hpp"
#include "memory/fault_guard.hpp"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace nobounce {
namespace {

constexpr uint64_t kRegionAlignment = uint64_t{2} << 20;  // a huge page

std::string operation_name(const SharedRegionOptions& options) {
  return fmt::format("make shared region {} of {} MiB", options.name, options.bytes >> 20);
}

Result<void> check(const SharedRegionOptions& options) {
  if (options.bytes == 0 || options.bytes > PageSpace::kBytes / 2) {
    return fail(std::errc::invalid_argument, operation_name(options), "the size is out of range",
                "use between 2 MiB and 32 GiB");
  }
  if (options.iova_base % kPageSize != 0 || options.iova_base > ~uint64_t{0} - PageSpace::kBytes) {
    return fail(std::errc::invalid_argument, operation_name(options),
                fmt::format("device address {:#x} is not a page or wraps", options.iova_base),
                "use a multiple of 4096 well below 2^64");
  }
  // Growing a file past this limit is a signal that ends the process, not an error.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < round_up(options.bytes, kRegionAlignment)) {
    return fail(std::errc::file_too_large, operation_name(options),
                fmt::format("the limit on file size is {} bytes, and a memory file is a file",
                            static_cast<uint64_t>(limit.rlim_cur)),
                "raise it with ulimit -f, or choose a smaller pool");
  }
  return {};
}

// A memory file of this size with every page allocated, and sealed against any change of size or
// seals (TM-64).
Result<UniqueFd> make_file(const SharedRegionOptions& options, uint64_t bytes, bool huge) {
  const std::string operation = operation_name(options);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  UniqueFd fd(memfd_create(options.name.c_str(), flags | MFD_NOEXEC_SEAL));
  if (!fd.is_open() && errno == EINVAL) {  // kernels before 6.3 do not know the last flag
    fd.reset(memfd_create(options.name.c_str(), flags));
  }
  if (!fd.is_open()) {
    return fail_errno(operation,
                      errno == EMFILE ? "raise the limit on open files with ulimit -n" : "");
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return fail_errno(operation, "choose a smaller pool");
  }
  // Allocates now, so that a limit is an error here and not a SIGBUS later.
  int allocated = 0;
  do {
    allocated = fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
  } while (allocated != 0 && errno == EINTR);
  if (allocated != 0) {
    return fail_errno(operation, "not enough memory for it: choose a smaller pool or free memory");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail_errno(operation, "this kernel cannot seal memory files of this kind");
  }
  return fd;
}

// Maps the file over a range of the page space and brings in every page.
Result<std::byte*> map_file(const SharedRegionOptions& options, const UniqueFd& fd,
                            uint64_t bytes) {
  const std::string operation = operation_name(options);
  PageSpace& space = PageSpace::instance();
  std::byte* base = space.take(bytes, kRegionAlignment, PageKind::shared_memory);
  if (base == nullptr) {
    return fail(std::errc::not_enough_memory, operation, "no addresses left in the page space",
                "a limit on virtual memory (ulimit -v) must leave room for 65 GiB of addresses");
  }
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
      MAP_FAILED) {
    auto error = fail_errno(operation, "free memory or choose a smaller pool");
    space.give_back(base, bytes);
    return error;
  }
  madvise(base, bytes, MADV_DONTDUMP);
  madvise(base, bytes, MADV_HUGEPAGE);  // refused where the kernel has none: no loss
  if (madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINVAL) {
      auto error = fail_errno(operation, "not enough memory: free some or choose a smaller pool");
      space.give_back(base, bytes);
      return error;
    }
    // Kernels before 5.14: touch each page. The file's pages exist, so no access can fail.
    const SharedBytes all = SharedMemoryAccess::make(base, bytes);
    for (uint64_t offset = 0; offset < bytes; offset += kPageSize) all.store<uint8_t>(offset, 0);
  }
  return base;
}

}  // namespace

Result<std::unique_ptr<SharedRegion>> SharedRegion::create(const SharedRegionOptions& options) {
  if (auto checked = check(options); !checked) return std::unexpected(checked.error());
  const uint64_t bytes = round_up(options.bytes, kRegionAlignment);

  bool huge = options.huge_pages == HugePages::prefer;
  Result<UniqueFd> fd = make_file(options, bytes, huge);
  Result<std::byte*> base =
      fd ? map_file(options, *fd, bytes) : Result<std::byte*>(std::unexpected(fd.error()));
  if (!base && huge) {
    log_info(fmt::format("shared region {}: no huge pages ({}); using pages of 4 KiB", options.name,
                         base.error().cause));
    huge = false;
    fd = make_file(options, bytes, huge);
    if (!fd) return std::unexpected(fd.error());
    base = map_file(options, *fd, bytes);
  }
  if (!base) return std::unexpected(base.error());

  std::unique_ptr<SharedRegion> region(
      new SharedRegion(std::move(*fd), SharedMemoryAccess::make(*base, bytes), options.iova_base,
                       huge, /*in_page_space=*/true));
  if (!FaultGuard::watch(*base, bytes, huge ? kRegionAlignment : kPageSize, region->broken_)) {
    return fail(std::errc::too_many_files_open, operation_name(options),
                fmt::format("{} regions are mapped already", FaultGuard::kRangesMax));
  }
  return region;
}

SharedRegion::SharedRegion(UniqueFd fd, SharedBytes bytes, uint64_t iova_base, bool huge,
                           bool in_page_space)
    : fd_(std::move(fd)),
      bytes_(bytes),
      iova_base_(iova_base),
      huge_(huge),
      in_page_space_(in_page_space) {}

SharedRegion::~SharedRegion() {
  if (in_page_space_) {
    std::byte* base = SharedMemoryAccess::raw(bytes_);
    FaultGuard::unwatch(base);
    PageSpace::instance().give_back(base, bytes_.size());
  } else {
    unmap_peer();
  }
}

SharedBytes SharedRegion::carve(size_t bytes, size_t alignment) {
  NB_ASSERT(is_power_of_two(alignment));
  NB_ASSERT(alignment <= kRegionAlignment);
  const uint64_t start = round_up(carved_, alignment);
  if (bytes == 0 || start > bytes_.size() || bytes > bytes_.size() - start) return {};
  const SharedBytes range = bytes_.sub(start, bytes);
  range.zero(0, bytes);
  carved_ = start + bytes;
  return range;
}

SharedBytes SharedRegion::carve_rest(size_t alignment) {
  NB_ASSERT(is_power_of_two(alignment));
  NB_ASSERT(alignment <= kRegionAlignment);
  const uint64_t start = round_up(carved_, alignment);
  if (start >= bytes_.size()) return {};
  carved_ = bytes_.size();
  return bytes_.sub(start);
}

uint64_t SharedRegion::iova_of(const SharedBytes& range) const noexcept {
  const uint64_t offset = range.address() - bytes_.address();
  NB_ASSERT(offset <= bytes_.size());
  NB_ASSERT(range.size() <= bytes_.size() - offset);
  return iova_base_ + offset;
}

}  // namespace nobounce
