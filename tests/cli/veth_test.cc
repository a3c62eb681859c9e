#include "cli/veth.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "cli/kernel_side.hpp"
#include "support/namespace.hpp"

namespace nobounce::cli {
namespace {

class VethTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = test::why_no_tap()) GTEST_SKIP() << *reason;
    here_ = start();
    there_ = start();
  }
  static std::unique_ptr<KernelSide> start() {
    auto side = KernelSide::start();
    EXPECT_TRUE(side) << side.error().to_string();
    return side ? std::move(*side) : nullptr;
  }
  // -1: there is none.
  static int mtu(KernelSide& side, const std::string& name) {
    int result = 0;
    side.run([&] { result = test::Host().mtu(name); });
    return result;
  }
  Result<void> make(const VethOptions& options) {
    Result<void> result;
    here_->run([&] { result = make_veth(options); });
    return result;
  }

  std::unique_ptr<KernelSide> here_, there_;
};

TEST_F(VethTest, comes_with_both_ends_and_goes_with_either) {
  for (const uint16_t bytes : std::initializer_list<uint16_t>{1500, 65521, 65535}) {
    SCOPED_TRACE(bytes);
    const auto made = make({.here = "a0", .there = "b0", .netns = there_->netns(), .mtu = bytes});
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(mtu(*here_, "a0"), bytes);
    EXPECT_EQ(mtu(*there_, "b0"), bytes);
    EXPECT_EQ(mtu(*here_, "b0"), -1);
    EXPECT_EQ(mtu(*there_, "a0"), -1);
    EXPECT_EQ(test::Host().mtu("a0"), -1) << "it is in the namespace of the test";
    there_.reset();
    // The kernel takes a namespace down at its leisure.
    for (int i = 0; i < 1000 && mtu(*here_, "a0") != -1; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(mtu(*here_, "a0"), -1);
    there_ = start();
  }
}

TEST_F(VethTest, may_have_one_name_at_both_ends) {
  const VethOptions options{.here = "nbv0", .there = "nbv0", .netns = there_->netns()};
  ASSERT_TRUE(make(options));
  EXPECT_EQ(mtu(*here_, "nbv0"), 1500);
  EXPECT_EQ(mtu(*there_, "nbv0"), 1500);
  // Twice is refused, and the first one stays.
  const auto again = make(options);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, std::errc::file_exists) << again.error().to_string();
  EXPECT_EQ(mtu(*here_, "nbv0"), 1500);
}

TEST_F(VethTest, what_the_kernel_refuses_leaves_nothing) {
  const struct {
    VethOptions options;
    std::errc code;
  } kCases[] = {
      {{.here = "a0", .there = "b0", .netns = "/proc/self/no-such"},
       std::errc::no_such_file_or_directory},
      {{.here = "a0", .there = "b0", .netns = "/dev/null"}, std::errc::invalid_argument},
      {{.here = "a0", .there = "b0", .netns = there_->netns(), .mtu = 67},
       std::errc::invalid_argument},
      {{.here = "a/0", .there = "b0", .netns = there_->netns()}, std::errc::invalid_argument},
      {{.here = "", .there = "a name that is too long for one", .netns = there_->netns()},
       std::errc::result_out_of_range},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.options.netns + " " + test.options.here);
    const auto made = make(test.options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, test.code) << made.error().to_string();
    EXPECT_EQ(mtu(*here_, "a0"), -1);
    EXPECT_EQ(mtu(*there_, "b0"), -1);
  }
}

}  // namespace
}  // namespace nobounce::cli
