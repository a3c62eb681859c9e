// Includes go down the floors (docs/architecture.md). The table here is the rule; the folders are
// the floors. A test of its own says that no folder of src/ is missing from the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tidy/source_tree.hpp"

namespace nobounce::tidy {
namespace {

// A floor may include itself and every floor of lower rank. Equal rank: side by side, no includes.
const std::map<std::string, int> kRank = {
    {"base", 0},    {"wire", 1},   {"memory", 1}, {"swiotlb", 2},  {"dma", 3},  {"page_pool", 4},
    {"skb", 5},     {"netdev", 6}, {"virtio", 7}, {"ip", 8},       {"tcp", 9},  {"udp", 9},
    {"socket", 10}, {"ring", 11},  {"posix", 12}, {"backend", 13}, {"cli", 14},
};

// Beside the floors: the device's side shares only these with the guest's.
const std::set<std::string> kBackendMayInclude = {
    "backend", "base", "wire", "memory", "swiotlb", "dma", "page_pool", "skb", "netdev", "socket"};

// Only the composition at the top names a driver; ip/ and the transports see NetDevice alone.
const std::set<std::string> kMayNameVirtio = {"virtio", "socket", "ring", "posix", "cli"};

// Public headers belong to the floor that implements them.
const std::map<std::string, std::string> kPublicHeaderFloor = {
    {"nobounce/address.hpp", "base"},
    {"nobounce/error.hpp", "base"},
};

std::string floor_of(const std::string& path_in_src) {
  if (path_in_src.starts_with("nobounce/")) {
    const auto known = kPublicHeaderFloor.find(path_in_src);
    return known != kPublicHeaderFloor.end() ? known->second : "socket";
  }
  return path_in_src.substr(0, path_in_src.find('/'));
}

bool may_include(const std::string& from, const std::string& to) {
  if (from == to) return true;
  if (from == "backend") return kBackendMayInclude.contains(to);
  if (to == "virtio" && !kMayNameVirtio.contains(from)) return false;
  if (to == "backend" && from != "cli") return false;
  return kRank.at(to) < kRank.at(from);
}

TEST(Floors, the_rule_itself) {
  EXPECT_TRUE(may_include("tcp", "ip"));
  EXPECT_TRUE(may_include("socket", "virtio"));
  EXPECT_FALSE(may_include("ip", "tcp"));
  EXPECT_FALSE(may_include("tcp", "udp"));
  EXPECT_FALSE(may_include("wire", "memory"));
  EXPECT_FALSE(may_include("ip", "virtio"));
  EXPECT_FALSE(may_include("backend", "virtio"));
  EXPECT_FALSE(may_include("backend", "tcp"));
  EXPECT_FALSE(may_include("socket", "backend"));
  EXPECT_TRUE(may_include("cli", "backend"));
  EXPECT_EQ(floor_of("nobounce/address.hpp"), "base");
  EXPECT_EQ(floor_of("nobounce/stack.hpp"), "socket");
}

TEST(Floors, every_folder_of_src_is_a_floor) {
  for (const auto& entry : std::filesystem::directory_iterator(top() / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_TRUE(kRank.contains(entry.path().filename().string())) << entry.path();
  }
}

TEST(Floors, includes_go_down) {
  size_t seen = 0;
  for (const SourceFile& file : files({"src"}, {".cc", ".hpp"})) {
    const std::string from = floor_of(file.path.substr(4));
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string included = quoted_include(file.lines[i]);
      if (included.empty()) continue;
      ++seen;
      const std::string to = floor_of(included);
      ASSERT_TRUE(kRank.contains(to)) << place(file, i) << "\n  paths start at src/ or include/";
      EXPECT_TRUE(may_include(from, to))
          << place(file, i) << "\n  " << from << " is not above " << to;
    }
  }
  EXPECT_GT(seen, 50u);
}

TEST(Floors, public_headers_include_public_headers_only) {
  for (const SourceFile& file : files({"include"}, {".hpp"})) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string included = quoted_include(file.lines[i]);
      EXPECT_TRUE(included.empty() || included.starts_with("nobounce/")) << place(file, i);
    }
  }
}

TEST(Floors, what_is_included_exists) {
  for (const SourceFile& file : files({"src", "include"}, {".cc", ".hpp"})) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string included = quoted_include(file.lines[i]);
      if (included.empty()) continue;
      EXPECT_TRUE(std::filesystem::exists(top() / "src" / included) ||
                  std::filesystem::exists(top() / "include" / included))
          << place(file, i);
    }
  }
}

}  // namespace
}  // namespace nobounce::tidy
