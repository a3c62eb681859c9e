#include "wire/vhost_user.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/random.hpp"

namespace nobounce::wire {
namespace {

using Header = std::array<std::byte, kVhostUserHeaderBytes>;

Header header_of(uint32_t request, uint32_t flags, uint32_t size) {
  Header bytes{};
  std::memcpy(bytes.data(), &request, 4);
  std::memcpy(bytes.data() + 4, &flags, 4);
  std::memcpy(bytes.data() + 8, &size, 4);
  return bytes;
}

TEST(VhostUserHeader, round_trip_and_flag_bits) {
  for (const bool reply : {false, true}) {
    for (const bool need_reply : {false, true}) {
      const VhostUserHeader header{.request = VhostUserRequest::set_vring_addr,
                                   .reply = reply,
                                   .need_reply = need_reply,
                                   .size = 40};
      Header bytes{};
      header.emit(bytes);
      uint32_t flags = 0;
      std::memcpy(&flags, bytes.data() + 4, 4);
      EXPECT_EQ(flags, 1u | (reply ? 4u : 0u) | (need_reply ? 8u : 0u));
      ASSERT_TRUE(VhostUserHeader::parse(bytes));
      EXPECT_EQ(*VhostUserHeader::parse(bytes), header);
    }
  }
}

TEST(VhostUserHeader, TM73_wrong_version_size_or_length_is_refused) {
  for (const uint32_t version : {0u, 2u, 3u}) {
    const auto parsed = VhostUserHeader::parse(header_of(1, version, 0));
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error(), VhostUserFault::version);
  }
  for (const uint32_t size : {uint32_t{kVhostUserPayloadMax} + 1, 0x80000000u, 0xffffffffu}) {
    const auto parsed = VhostUserHeader::parse(header_of(1, 1, size));
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error(), VhostUserFault::bad_size);
  }
  EXPECT_TRUE(VhostUserHeader::parse(header_of(1, 1, kVhostUserPayloadMax)));
  const Header whole = header_of(1, 1, 0);
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_FALSE(VhostUserHeader::parse(Bytes(whole).first(size)));
  }
}

TEST(VhostUserRule, TM73_TM74_each_request_takes_exactly_its_sizes_and_fds) {
  for (uint32_t id = 0; id < 64; ++id) {
    const auto request = static_cast<VhostUserRequest>(id);
    const auto rule = vhost_user_rule(request);
    if (!rule) {
      EXPECT_STREQ(to_string(request), "unknown");
      const auto checked = check_request({.request = request}, 0);
      ASSERT_FALSE(checked);
      EXPECT_EQ(checked.error(), VhostUserFault::unknown_request);
      continue;
    }
    EXPECT_LE(rule->size_max, kVhostUserPayloadMax);
    for (uint32_t size = 0; size <= kVhostUserPayloadMax; ++size) {
      const bool fits = size >= rule->size_min && size <= rule->size_max;
      EXPECT_EQ(check_request({.request = request, .size = size}, rule->fds_min).has_value(), fits)
          << id << " " << size;
    }
    for (size_t fds = 0; fds <= 16; ++fds) {
      const bool fits = fds >= rule->fds_min && fds <= rule->fds_max;
      EXPECT_EQ(check_request({.request = request, .size = rule->size_min}, fds).has_value(), fits)
          << id << " " << fds;
    }
  }
}

TEST(VhostUserPayload, vring_messages_round_trip) {
  std::array<std::byte, 64> bytes{};
  const VringState state{.index = 3, .value = 0x80008000};
  state.emit(bytes);
  EXPECT_EQ(VringState::parse(Bytes(bytes).first(8)), state);
  const VringAddr addr{
      .index = 1, .flags = 0, .descriptors = 1ull << 40, .used = 2, .avail = 3, .log = 4};
  addr.emit(bytes);
  EXPECT_EQ(VringAddr::parse(Bytes(bytes).first(40)), addr);
  uint64_t used = 0;  // order on the wire: descriptors, used, avail
  std::memcpy(&used, bytes.data() + 16, 8);
  EXPECT_EQ(used, 2u);
  for (const bool no_fd : {false, true}) {
    const VringFd fd{.index = 255, .no_fd = no_fd};
    fd.emit(bytes);
    EXPECT_EQ(VringFd::parse(Bytes(bytes).first(8)), fd);
  }
  const VhostUserU64 number{0x0123456789abcdef};
  number.emit(bytes);
  EXPECT_EQ(VhostUserU64::parse(Bytes(bytes).first(8)), number);
}

TEST(VhostUserPayload, fixed_forms_take_no_other_size) {
  const std::array<std::byte, 64> bytes{};
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const Bytes input = Bytes(bytes).first(size);
    EXPECT_EQ(VhostUserU64::parse(input).has_value(), size == 8) << size;
    EXPECT_EQ(VringFd::parse(input).has_value(), size == 8) << size;
    EXPECT_EQ(VringState::parse(input).has_value(), size == 8) << size;
    EXPECT_EQ(VringAddr::parse(input).has_value(), size == 40) << size;
    EXPECT_EQ(MemRegion::parse(input).has_value(), size == 32) << size;
    EXPECT_EQ(SingleMemRegion::parse(input).has_value(), size == 40) << size;
    EXPECT_EQ(LogBase::parse(input).has_value(), size == 16) << size;
  }
}

TEST(VhostUserPayload, TM76_memory_table_count_must_agree_with_its_size) {
  MemTable table;
  table.count = kMemRegionsMax;
  for (size_t i = 0; i < kMemRegionsMax; ++i) {
    table.regions[i] = {
        .guest_address = i, .bytes = i + 1, .user_address = i + 2, .mmap_offset = i + 3};
  }
  std::vector<std::byte> bytes(table.bytes());
  table.emit(bytes);
  const auto parsed = MemTable::parse(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->count, table.count);
  EXPECT_EQ(parsed->regions, table.regions);
  for (uint32_t count : {0u, 7u, 9u, 0x10000000u, 0x08000008u, 0xffffffffu}) {
    std::memcpy(bytes.data(), &count, 4);
    const auto refused = MemTable::parse(bytes);
    ASSERT_FALSE(refused) << count;
    EXPECT_EQ(refused.error(), VhostUserFault::bad_count);
  }
  for (size_t size = 0; size < 8; ++size) EXPECT_FALSE(MemTable::parse(Bytes(bytes).first(size)));
}

TEST(VhostUserPayload, config_content_must_be_there) {
  ConfigSpace config;
  config.size = 12;
  config.content[11] = std::byte{7};
  std::vector<std::byte> bytes(config.bytes());
  config.emit(bytes);
  const auto parsed = ConfigSpace::parse(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->content, config.content);
  EXPECT_FALSE(ConfigSpace::parse(Bytes(bytes).first(bytes.size() - 1)));
  for (uint32_t size : {13u, 257u, 0xffffffffu, 0xfffffff4u}) {
    std::memcpy(bytes.data() + 4, &size, 4);
    EXPECT_FALSE(ConfigSpace::parse(bytes)) << size;
  }
  const uint32_t none = 0;  // an error reply
  std::memcpy(bytes.data() + 4, &none, 4);
  EXPECT_TRUE(ConfigSpace::parse(Bytes(bytes).first(12)));
}

TEST(VhostUserPayload, random_bytes_never_hurt) {
  SeededRandom random(11);
  for (int i = 0; i < 20000; ++i) {
    std::array<std::byte, kVhostUserPayloadMax> bytes;
    random.fill(bytes);
    if (random.below(2) == 0) std::memset(bytes.data(), 0, 8);
    const Bytes input = Bytes(bytes).first(random.below(kVhostUserPayloadMax + 1));
    (void)VhostUserHeader::parse(input);
    (void)MemTable::parse(input);
    (void)ConfigSpace::parse(input);
    (void)VringAddr::parse(input);
  }
}

}  // namespace
}  // namespace nobounce::wire
