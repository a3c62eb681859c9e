// The kernel's own stream, between two namespaces of this process.
#include "cli/kernel_stream.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "cli/kernel_pair.hpp"
#include "cli/kernel_sockets.hpp"
#include "support/namespace.hpp"

namespace nobounce::cli {
namespace {

using namespace std::chrono_literals;

class KernelStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = test::why_no_tap()) GTEST_SKIP() << *reason;
  }
};

TEST_F(KernelStreamTest, moves_bytes_both_ways) {
  KernelStream stream(1);
  for (const uint16_t mtu : std::initializer_list<uint16_t>{1500, 65521}) {
    auto pair = KernelPair::open(mtu);
    ASSERT_TRUE(pair) << pair.error().to_string();
    for (const Direction direction : kDirections) {
      SCOPED_TRACE(std::to_string(mtu) + " " + to_string(direction));
      const auto sample = (*pair)->run(stream, direction, 200ms);
      ASSERT_TRUE(sample) << sample.error().to_string();
      EXPECT_GT(sample->bytes, 100'000u);
      EXPECT_GE(sample->seconds, 0.2);
      EXPECT_LT(sample->seconds, 20);
      EXPECT_GT(sample->cpu_ns, 0u);
      EXPECT_TRUE(sample->moved.empty());
    }
    EXPECT_EQ((*pair)->congestion_control(), kernel_congestion_control());
  }
}

TEST_F(KernelStreamTest, nobody_there_is_told) {
  auto side = KernelSide::start();
  ASSERT_TRUE(side) << side.error().to_string();
  ASSERT_TRUE((*side)->set_up("lo", "127.0.0.1"));
  KernelStream stream(1);
  Result<KernelStreamResult> result;
  (*side)->run([&] { result = stream.run("127.0.0.1", PerfJob::transmit, 1s); });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, std::errc::connection_refused) << result.error().to_string();
  EXPECT_NE(result.error().operation.find("127.0.0.1:9"), std::string::npos);
}

TEST_F(KernelStreamTest, an_interface_that_is_not_there_is_told) {
  auto side = KernelSide::start();
  ASSERT_TRUE(side) << side.error().to_string();
  const auto up = (*side)->set_up("nb7", "10.78.0.1");
  ASSERT_FALSE(up);
  EXPECT_NE(up.error().operation.find("nb7"), std::string::npos) << up.error().to_string();
}

// A far end that goes in mid-stream: an error, no stream that seems shorter.
TEST_F(KernelStreamTest, a_far_end_that_ends_early_is_an_error) {
  auto side = KernelSide::start();
  ASSERT_TRUE(side) << side.error().to_string();
  ASSERT_TRUE((*side)->set_up("lo", "127.0.0.1"));
  KernelStream stream(1);
  for (const PerfJob job : {PerfJob::transmit, PerfJob::receive}) {
    SCOPED_TRACE(to_string(job));
    Result<KernelStreamResult> result;
    (*side)->run([&] {
      auto listener = kernel_listen(service_port(job));
      ASSERT_TRUE(listener) << listener.error().to_string();
      std::thread closer([&] {
        ASSERT_TRUE(test::wait_readable(listener->get()));
        const UniqueFd fd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
      });
      result = stream.run("127.0.0.1", job, 60s);
      closer.join();
    });
    ASSERT_FALSE(result);
    EXPECT_FALSE(result.error().cause.empty());
  }
}

}  // namespace
}  // namespace nobounce::cli
