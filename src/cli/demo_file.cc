#include "cli/demo_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/random.hpp"
#include "base/unique_fd.hpp"
#include "cli/sha256.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

constexpr size_t kBlock = 1 << 20;

}  // namespace

Result<Directory> Directory::make() {
  const char* base = std::getenv("TMPDIR");
  std::string name =
      std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/nobounce-demo-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return fail_errno("make a directory " + name);
  return Directory(std::move(name));
}

Directory::~Directory() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

Result<void> make_file(const std::string& path, const FileOptions& options) {
  const std::string operation = "write " + path;
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return fail_errno(operation);
  SeededRandom random(options.seed);
  std::vector<std::byte> block(kBlock);
  for (uint64_t done = 0; done < options.bytes && !stop_requested();) {
    random.fill(block);
    Bytes rest = Bytes(block).first(std::min<uint64_t>(block.size(), options.bytes - done));
    done += rest.size();
    while (!rest.empty()) {
      const ssize_t written = ::write(fd.get(), rest.data(), rest.size());
      if (written < 0) return fail_errno(operation, "TMPDIR can name a place with more room");
      rest = rest.subspan(static_cast<size_t>(written));
    }
  }
  return {};
}

Result<std::string> hash_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail_errno("read " + path);
  Sha256 hash;
  std::vector<std::byte> block(kBlock);
  for (;;) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0) return fail_errno("read " + path);
    if (got == 0 || stop_requested()) return hash.hex();
    hash.update(Bytes(block).first(static_cast<size_t>(got)));
  }
}

}  // namespace nobounce::cli
