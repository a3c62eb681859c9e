#include "base/counters.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/assert.hpp"

namespace nobounce {
namespace {

constexpr uint64_t kMagic = 0x6e6f626e63653031;  // "nobnce01"
constexpr long kTmpfsMagic = 0x01021994;
constexpr long kRamfsMagic = 0x858458f6;

std::atomic<uint64_t> sink{0};
std::mutex registration_lock;

bool lock(int fd, int how) noexcept {
  int result = 0;
  while ((result = flock(fd, how)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

bool is_same_file(const struct stat& a, const struct stat& b) noexcept {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

struct CounterRegistry::Table {
  struct Entry {
    char name[kNameMax + 1];
    std::atomic<uint64_t> value;
  };
  uint64_t magic;
  std::atomic<uint64_t> count;  // entries whose names are complete
  char unused[48];
  Entry entries[kCountersMax];
};

static_assert(sizeof(std::atomic<uint64_t>) == 8);

Counter::Counter() noexcept : cell_(&sink) {}

CounterRegistry::CounterRegistry(Table* table, std::string path, UniqueFd file)
    : table_(table), path_(std::move(path)), file_(std::move(file)) {
  table_->magic = kMagic;
}

CounterRegistry::CounterRegistry()
    : CounterRegistry(
          [] {
            void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NB_ASSERT(memory != MAP_FAILED);
            return static_cast<Table*>(memory);
          }(),
          {}, {}) {}

// Removes what killed processes left: files of ours, of this format, that nobody holds locked.
// Under the directory's lock, so that no file is met between its creation and its own lock.
void CounterRegistry::sweep(int directory) {
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return;
  DIR* entries = fdopendir(copy);  // takes the descriptor over
  if (entries == nullptr) {
    close(copy);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    const UniqueFd file(
        openat(directory, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status{};
    uint64_t magic = 0;
    const bool ours = file.is_open() && fstat(file.get(), &status) == 0 &&
                      S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                      status.st_size == static_cast<off_t>(sizeof(Table)) &&
                      pread(file.get(), &magic, sizeof magic, 0) == sizeof magic && magic == kMagic;
    if (ours && lock(file.get(), LOCK_EX | LOCK_NB)) unlinkat(directory, entry->d_name, 0);
  }
  closedir(entries);
}

Result<std::unique_ptr<CounterRegistry>> CounterRegistry::publish(const std::string& name) {
  auto directory = runtime_directory();
  if (!directory) return std::unexpected(directory.error());
  const UniqueFd held(open(directory->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!held.is_open() || !lock(held.get(), LOCK_EX)) {
    return fail_errno("lock runtime directory " + *directory);
  }
  sweep(held.get());
  auto made = make(*directory + "/" + name);
  lock(held.get(), LOCK_UN);  // at once, also where a fork of another thread has a copy of the fd
  return made;
}

Result<std::unique_ptr<CounterRegistry>> CounterRegistry::make(std::string path) {
  // A file of that name may still be mapped by its maker: it is unlinked, never truncated.
  unlink(path.c_str());
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return fail_errno("create counter file " + path);
  const auto give_up = [&path](const char* what) {
    auto error = fail_errno(what + path);
    unlink(path.c_str());
    return error;
  };
  // Held as long as the process lives: the kernel lets go of it however that ends.
  if (!lock(file.get(), LOCK_EX)) return give_up("lock counter file ");
  if (ftruncate(file.get(), sizeof(Table)) != 0) return give_up("size counter file ");
  void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return give_up("map counter file ");
  return std::unique_ptr<CounterRegistry>(
      new CounterRegistry(static_cast<Table*>(memory), std::move(path), std::move(file)));
}

CounterRegistry::~CounterRegistry() {
  munmap(table_, sizeof(Table));
  if (path_.empty()) return;
  // The name may have gone to a later registry.
  struct stat mine{};
  struct stat there{};
  if (fstat(file_.get(), &mine) == 0 && lstat(path_.c_str(), &there) == 0 &&
      is_same_file(mine, there)) {
    unlink(path_.c_str());
  }
}

Counter CounterRegistry::counter(std::string_view name) {
  const std::lock_guard guard(registration_lock);
  const uint64_t count = table_->count.load(std::memory_order_relaxed);
  name = name.substr(0, kNameMax);
  for (uint64_t i = 0; i < count; ++i) {
    if (name == table_->entries[i].name) return Counter(&table_->entries[i].value);
  }
  const bool last = count + 1 >= kCountersMax;
  if (count == kCountersMax) return Counter(&table_->entries[kCountersMax - 1].value);
  if (last) name = "counters.overflow";
  Table::Entry& entry = table_->entries[count];
  std::memcpy(entry.name, name.data(), name.size());
  table_->count.store(count + 1, std::memory_order_release);  // pairs with the readers' acquire
  return Counter(&entry.value);
}

std::vector<CounterSample> CounterRegistry::samples() const {
  std::vector<CounterSample> samples;
  const uint64_t count = table_->count.load(std::memory_order_acquire);
  for (uint64_t i = 0; i < count; ++i) {
    samples.push_back(
        {table_->entries[i].name, table_->entries[i].value.load(std::memory_order_relaxed)});
  }
  return samples;
}

uint64_t CounterRegistry::value(std::string_view name) const {
  const uint64_t count = table_->count.load(std::memory_order_acquire);
  for (uint64_t i = 0; i < count; ++i) {
    if (name == table_->entries[i].name) {
      return table_->entries[i].value.load(std::memory_order_relaxed);
    }
  }
  return 0;
}

Result<std::string> runtime_directory() {
  const char* base = std::getenv("XDG_RUNTIME_DIR");
  std::string path = base != nullptr && *base != '\0'
                         ? std::string(base) + "/nobounce"
                         : fmt::format("/dev/shm/nobounce-{}", geteuid());
  const std::string operation = "use runtime directory " + path;
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(operation);
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) return fail_errno(operation);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return fail(std::errc::permission_denied, operation, "it is not a directory of ours alone",
                "remove it, or chmod 700 it");
  }
  struct statfs fs{};
  if (statfs(path.c_str(), &fs) != 0) return fail_errno(operation);
  if (fs.f_type != kTmpfsMagic && fs.f_type != kRamfsMagic) {
    return fail(std::errc::not_supported, operation,
                "it is not on memory-backed storage, and a disk is the host's to read",
                "point XDG_RUNTIME_DIR at a tmpfs, or unset it");
  }
  return path;
}

Result<std::vector<CounterSample>> read_counters(const std::string& path) {
  const std::string operation = "read counters from " + path;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hold us
  if (fd < 0) return fail_errno(operation);
  // Read, not mapped: the file may shrink under us.
  std::vector<char> raw(sizeof(uint64_t) * 8 + 64 * CounterRegistry::kCountersMax);
  size_t got = 0;
  while (got < raw.size()) {
    const ssize_t n = read(fd, raw.data() + got, raw.size() - got);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  close(fd);
  uint64_t magic = 0;
  uint64_t count = 0;
  if (got >= 64) {
    std::memcpy(&magic, raw.data(), 8);
    std::memcpy(&count, raw.data() + 8, 8);
  }
  if (magic != kMagic || count > CounterRegistry::kCountersMax || 64 + count * 64 > got) {
    return fail(std::errc::invalid_argument, operation, "it is not a nobounce counter file");
  }
  std::vector<CounterSample> samples;
  for (uint64_t i = 0; i < count; ++i) {
    const char* entry = raw.data() + 64 + i * 64;
    CounterSample sample;
    sample.name.assign(entry, strnlen(entry, CounterRegistry::kNameMax));
    std::memcpy(&sample.value, entry + CounterRegistry::kNameMax + 1, 8);
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace nobounce
