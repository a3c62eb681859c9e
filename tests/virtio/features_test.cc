#include "virtio/features.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

TEST(Features, TM26_only_what_is_offered_known_and_wanted) {
  EXPECT_EQ(*negotiate(kAll, kAll), known_features());
  EXPECT_EQ(*negotiate(wire::kVersion1, kAll), wire::kVersion1);
  EXPECT_EQ(*negotiate(kAll, 0), wire::kVersion1);  // not for tests and tools to give up
  SeededRandom random(1);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t offered = random.next_u64() | wire::kVersion1;
    const uint64_t wanted = random.next_u64();
    const uint64_t accepted = *negotiate(offered, wanted);
    EXPECT_EQ(accepted & ~(offered & known_features() & (wanted | wire::kVersion1)), 0U);
    EXPECT_EQ(close_dependencies(accepted), accepted);
  }
}

TEST(Features, TM27_no_legacy_device) {
  for (const uint64_t offered : {uint64_t{0}, kAll & ~wire::kVersion1}) {
    const auto refused = negotiate(offered, kAll);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, std::errc::protocol_not_supported);
  }
}

TEST(Features, TM26_dependencies_are_closed) {
  const uint64_t base = kAll & ~wire::kNetGuestCsum;
  EXPECT_EQ(*negotiate(base, kAll) & (wire::kNetGuestTso4 | wire::kNetGuestTso6), 0U);
  EXPECT_EQ(*negotiate(kAll & ~wire::kNetCsum, kAll) & (wire::kNetHostTso4 | wire::kNetHostTso6),
            0U);
}

// All 16 combinations; GUEST_UFO is never taken.
TEST(Features, C021_receive_segmentation_needs_mergeable_buffers) {
  for (unsigned bits = 0; bits < 16; ++bits) {
    uint64_t offered = wire::kVersion1 | wire::kNetGuestCsum;
    if ((bits & 1) != 0) offered |= wire::kNetMrgRxbuf;
    if ((bits & 2) != 0) offered |= wire::kNetGuestTso4;
    if ((bits & 4) != 0) offered |= wire::kNetGuestTso6;
    if ((bits & 8) != 0) offered |= wire::kNetGuestUfo;
    const uint64_t accepted = *negotiate(offered, kAll);
    const bool mergeable = (bits & 1) != 0;
    EXPECT_EQ((accepted & wire::kNetGuestTso4) != 0, mergeable && (bits & 2) != 0);
    EXPECT_EQ((accepted & wire::kNetGuestTso6) != 0, mergeable && (bits & 4) != 0);
    EXPECT_EQ(accepted & wire::kNetGuestUfo, 0U);
  }
}

TEST(Features, what_has_no_driver_yet_is_never_taken) {
  const uint64_t never = wire::kRingPacked | wire::kInOrder | wire::kRingIndirectDesc |
                         wire::kAccessPlatform | wire::kVhostUserProtocolFeatures |
                         wire::kNetCtrlVq | wire::kNetGuestEcn | wire::kNetHostUfo | 1ULL << 57 |
                         1ULL << 60;
  EXPECT_EQ(*negotiate(kAll, kAll) & never, 0U);
}

}  // namespace
}  // namespace nobounce::virtio
