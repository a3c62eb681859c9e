// The readers behind the other tidy tests, tested first: a check that sees nothing finds nothing.
#include "tidy/source_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/paths.hpp"

namespace nobounce::tidy {
namespace {

// Removes // and /* */ comments; `in_block` lives across lines.
std::string without_comments(const std::string& line, bool& in_block) {
  std::string code;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const std::string_view rest = std::string_view(line).substr(i);
    if (in_block) {
      if (rest.starts_with("*/")) {
        in_block = false;
        ++i;
      }
      continue;
    }
    if (!in_string && rest.starts_with("//")) break;
    if (!in_string && rest.starts_with("/*")) {
      in_block = true;
      ++i;
      continue;
    }
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\') && !rest.starts_with("\"'")) {
      in_string = !in_string;
    }
    code += line[i];
  }
  return code;
}

SourceFile read(const std::filesystem::path& path) {
  SourceFile file;
  file.path = std::filesystem::relative(path, top()).generic_string();
  std::ifstream in(path);
  bool in_block = false;
  for (std::string line; std::getline(in, line);) {
    file.code.push_back(without_comments(line, in_block));
    file.lines.push_back(std::move(line));
  }
  return file;
}

}  // namespace

std::filesystem::path top() { return test::kSourceDir; }

std::vector<SourceFile> files(const std::vector<std::string>& folders,
                              const std::vector<std::string>& endings) {
  std::vector<SourceFile> found;
  const auto take = [&](const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    const auto fits = [&](const std::string& ending) { return name.ends_with(ending); };
    if (endings.empty() || std::ranges::any_of(endings, fits)) found.push_back(read(path));
  };
  for (const std::string& folder : folders) {
    const auto root = top() / folder;
    if (std::filesystem::is_regular_file(root)) take(root);
    if (!std::filesystem::is_directory(root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) take(entry.path());
    }
  }
  std::ranges::sort(found, {}, &SourceFile::path);
  return found;
}

std::string place(const SourceFile& file, size_t line_index) {
  return file.path + ":" + std::to_string(line_index + 1) + ": " + file.lines[line_index];
}

std::string quoted_include(std::string_view line) {
  const size_t start = line.find_first_not_of(" \t");
  if (start == std::string_view::npos || line[start] != '#') return {};
  if (line.find("include") == std::string_view::npos) return {};
  const size_t open = line.find('"');
  const size_t close = open == std::string_view::npos ? open : line.find('"', open + 1);
  if (close == std::string_view::npos) return {};
  return std::string(line.substr(open + 1, close - open - 1));
}

namespace {

TEST(SourceTree, comments_are_taken_out_and_strings_are_kept) {
  bool in_block = false;
  EXPECT_EQ(without_comments("int a;  // reinterpret_cast", in_block), "int a;  ");
  EXPECT_EQ(without_comments("f(\"http://x\");", in_block), "f(\"http://x\");");
  EXPECT_EQ(without_comments("a /* b */ c", in_block), "a  c");
  EXPECT_FALSE(in_block);
  EXPECT_EQ(without_comments("a /* b", in_block), "a ");
  EXPECT_TRUE(in_block);
  EXPECT_EQ(without_comments("c */ d", in_block), " d");
  EXPECT_FALSE(in_block);
}

TEST(SourceTree, includes_in_quotes_are_read) {
  EXPECT_EQ(quoted_include("#include \"base/list.hpp\""), "base/list.hpp");
  EXPECT_EQ(quoted_include("  #  include \"x.hpp\"  // why"), "x.hpp");
  EXPECT_EQ(quoted_include("#include <vector>"), "");
  EXPECT_EQ(quoted_include("puts(\"include\");"), "");
}

TEST(SourceTree, the_tree_is_found) {
  EXPECT_GT(files({"src/base"}, {".hpp"}).size(), 10u);
  EXPECT_EQ(files({"LICENSE"}).size(), 1u);
  EXPECT_EQ(files({"no/such/folder"}).size(), 0u);
}

}  // namespace
}  // namespace nobounce::tidy
