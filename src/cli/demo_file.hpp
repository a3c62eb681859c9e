// The file the demo sends, and the private directory it and the sockets lie in.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace nobounce::cli {

// Goes with its handle, and all that is in it.
class Directory {
 public:
  static Result<Directory> make();  // below TMPDIR, else /tmp
  Directory(Directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Directory& operator=(Directory&&) = delete;
  ~Directory();
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit Directory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

struct FileOptions {
  uint64_t bytes = uint64_t{256} << 20;
  uint64_t seed = 1;
};

// Both stop early on Ctrl-C: whoever called looks.
[[nodiscard]] Result<void> make_file(const std::string& path, const FileOptions& options);
[[nodiscard]] Result<std::string> hash_file(const std::string& path);

}  // namespace nobounce::cli
