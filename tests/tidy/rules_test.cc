// What must hold everywhere and a compiler does not check: the trust boundary's types are not gone
// around, fences stand in one header, documents name files that exist. Lengths are only reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <map>
#include <set>

#include "tidy/source_tree.hpp"

namespace nobounce::tidy {
namespace {

bool is_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

// Every line of code (not comment) that names `word`, outside `allowed` folders or files.
std::vector<std::string> uses_outside(const std::vector<SourceFile>& sources,
                                      const std::string& word,
                                      const std::vector<std::string>& allowed) {
  std::vector<std::string> uses;
  for (const SourceFile& file : sources) {
    const auto permits = [&](const std::string& place) {
      return file.path == place || is_below(file.path, place);
    };
    if (std::ranges::any_of(allowed, permits)) continue;
    for (size_t i = 0; i < file.code.size(); ++i) {
      if (file.code[i].find(word) != std::string::npos) uses.push_back(place(file, i));
    }
  }
  return uses;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

TEST(Tidy, TM1_shared_memory_is_reached_by_its_types_alone) {
  const auto uses = uses_outside(files({"src", "include"}, {".cc", ".hpp"}), "SharedMemoryAccess",
                                 {"src/memory"});
  EXPECT_TRUE(uses.empty()) << joined(uses);
}

// Casts live in base/ and memory/. The exceptions are system calls whose interface is a cast: file
// and reason.
const std::map<std::string, std::string> kCastAllowed = {
    {"src/virtio/vhost_user", "sockaddr_un and control messages of the vhost-user socket"},
    {"src/backend", "sockaddr_un and control messages of the vhost-user socket"},
    {"src/cli/kernel_sockets.cc", "sockaddr_in of the kernel's sockets"},
};

// Even an excused file casts to what the system call takes, nothing else.
const std::set<std::string> kSystemTypes = {"sockaddr*", "const sockaddr*", "cmsghdr*"};

std::string cast_to(const std::string& code) {
  const size_t open = code.find("reinterpret_cast<") + 17;
  return code.substr(open, code.find('>', open) - open);
}

TEST(Tidy, casts_live_in_base_and_memory) {
  const auto sources = files({"src", "include"}, {".cc", ".hpp"});
  std::vector<std::string> bad;
  for (const SourceFile& file : sources) {
    if (is_below(file.path, "src/base") || is_below(file.path, "src/memory")) continue;
    const bool excused = std::ranges::any_of(kCastAllowed, [&](const auto& entry) {
      return file.path == entry.first || file.path.starts_with(entry.first);
    });
    for (size_t i = 0; i < file.code.size(); ++i) {
      const std::string& code = file.code[i];
      if (code.find("reinterpret_cast") == std::string::npos) continue;
      if (!excused || !kSystemTypes.contains(cast_to(code))) bad.push_back(place(file, i));
    }
  }
  EXPECT_TRUE(bad.empty()) << joined(bad);
}

TEST(Tidy, const_is_not_cast_away) {
  const auto uses = uses_outside(files({"src", "include"}, {".cc", ".hpp"}), "const_cast<", {});
  EXPECT_TRUE(uses.empty()) << joined(uses);
}

TEST(Tidy, fences_stand_in_one_header) {
  for (const char* word : {"atomic_thread_fence", "atomic_signal_fence", "__sync_synchronize"}) {
    const auto uses =
        uses_outside(files({"src", "include"}, {".cc", ".hpp"}), word, {"src/base/barrier.hpp"});
    EXPECT_TRUE(uses.empty()) << joined(uses);
  }
}

TEST(Tidy, headers_are_guarded) {
  for (const SourceFile& file : files({"src", "include", "tests"}, {".hpp"})) {
    const auto count = std::ranges::count(file.code, "#pragma once");
    EXPECT_EQ(count, 1) << file.path;
  }
}

TEST(Tidy, headers_open_with_their_contract) {
  for (const SourceFile& file : files({"src", "include"}, {".hpp"})) {
    ASSERT_FALSE(file.lines.empty()) << file.path;
    EXPECT_TRUE(file.lines.front().starts_with("//")) << file.path << ": no head comment";
  }
}

// What the compiler includes with namespaces: one project, one namespace.
TEST(Tidy, headers_open_no_namespace) {
  const auto uses = uses_outside(files({"src", "include"}, {".hpp"}), "using namespace", {});
  EXPECT_TRUE(uses.empty()) << joined(uses);
}

const std::vector<std::string> kDocuments = {"README.md", "CONTRIBUTING.md", "docs"};

// A path of the tree inside backquotes or as a link's target.
std::vector<std::string> paths_named(const std::string& line) {
  std::vector<std::string> paths;
  const auto is_path = [](const std::string& text) {
    static const std::set<std::string> kFolders = {".ci",   "src",     "include", "tests", "docs",
                                                   "cmake", "scripts", "bench",   "fuzz"};
    const auto is_plain = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
             std::string_view("_./-").find(c) != std::string_view::npos;
    };
    const size_t slash = text.find('/');
    return slash != std::string::npos && kFolders.contains(text.substr(0, slash)) &&
           std::ranges::all_of(text, is_plain);
  };
  for (size_t open = line.find('`'); open != std::string::npos;) {
    const size_t close = line.find('`', open + 1);
    if (close == std::string::npos) break;
    const std::string quoted = line.substr(open + 1, close - open - 1);
    if (is_path(quoted)) paths.push_back(quoted);
    open = line.find('`', close + 1);
  }
  for (size_t open = line.find("]("); open != std::string::npos; open = line.find("](", open + 2)) {
    const size_t end = line.find_first_of(")# ", open + 2);
    const std::string target = line.substr(open + 2, end - open - 2);
    if (!target.empty() && !target.starts_with("http")) paths.push_back("link:" + target);
  }
  return paths;
}

TEST(Tidy, paths_in_documents_are_recognised) {
  EXPECT_EQ(paths_named("see `src/base/list.hpp` and `make test`"),
            std::vector<std::string>{"src/base/list.hpp"});
  EXPECT_EQ(paths_named("see [this](docs/architecture.md#floors)"),
            std::vector<std::string>{"link:docs/architecture.md"});
  EXPECT_TRUE(paths_named("see [that](https://example.org/x) and `build/release/x`").empty());
}

TEST(Tidy, files_named_in_documents_exist) {
  for (const SourceFile& file : files(kDocuments, {".md"})) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      for (const std::string& path : paths_named(file.lines[i])) {
        const auto target = path.starts_with("link:")
                                ? (top() / file.path).parent_path() / path.substr(5)
                                : top() / path;
        EXPECT_TRUE(std::filesystem::exists(target)) << place(file, i) << "\n  no " << path;
      }
    }
  }
}

TEST(Tidy, nothing_names_the_machine_it_was_written_on) {
  // Spelt apart so that this file passes its own test.
  const std::vector<std::string> words = {std::string("/ho") + "me/", std::string("/wo") + "rk/",
                                          std::string("/ro") + "ot/"};
  for (const SourceFile& file :
       files({"src", "include", "tests", "docs", "cmake", "scripts", ".ci", "README.md",
              "CONTRIBUTING.md", "CMakeLists.txt", "CMakePresets.json", "Makefile"})) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      for (const std::string& word : words) {
        EXPECT_EQ(file.lines[i].find(word), std::string::npos) << place(file, i);
      }
    }
  }
}

TEST(Tidy, report_of_lengths) {
  constexpr size_t kLong = 600;
  for (const SourceFile& file : files({"src", "include", "tests"}, {".cc", ".hpp"})) {
    if (file.lines.size() > kLong) {
      std::cout << file.path << ": " << file.lines.size() << " lines (guide: " << kLong << ")\n";
    }
  }
}

}  // namespace
}  // namespace nobounce::tidy
