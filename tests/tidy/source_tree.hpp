// The source tree as the tidy tests see it: files, their lines, lines without comments.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nobounce::tidy {

struct SourceFile {
  std::string path;                // from the top, with slashes: "src/base/list.hpp"
  std::vector<std::string> lines;  // as they are
  std::vector<std::string> code;   // the same lines without comments; string literals are kept
};

[[nodiscard]] std::filesystem::path top();

// Files below the given folders or files of the tree whose name ends in one of `endings` (all when
// there are none), sorted by path. A folder that is not there gives nothing.
[[nodiscard]] std::vector<SourceFile> files(const std::vector<std::string>& folders,
                                            const std::vector<std::string>& endings = {});

// "file:line: text", as compilers print it.
[[nodiscard]] std::string place(const SourceFile& file, size_t line_index);

// The path inside quotes of an #include line, or nothing.
[[nodiscard]] std::string quoted_include(std::string_view line);

}  // namespace nobounce::tidy
