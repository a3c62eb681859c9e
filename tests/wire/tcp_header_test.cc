// TCP header and options: layout (T-7), tolerance (T-2, T-3), every length.
#include <gtest/gtest.h>

#include "support/frames.hpp"
#include "wire/tcp.hpp"

namespace nobounce::wire {
namespace {

using test::ByteVector;

ByteVector bytes_of(std::initializer_list<int> values) {
  ByteVector bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

ByteVector emit(const TcpOptions& options) {
  ByteVector bytes(options.size());
  options.emit(bytes);
  return bytes;
}

TEST(TcpHeader, round_trip) {
  TcpHeader header{.source_port = 80,
                   .destination_port = 65535,
                   .sequence = 0xfffffff0,
                   .acknowledgement = 0x80000001,
                   .flags = kTcpAck | kTcpPsh | kTcpCwr,
                   .window = 0xffff,
                   .checksum = 0x1234,
                   .urgent_pointer = 7};
  header.options.timestamps = TcpTimestamps{1, 0xffffffff};
  header.options.sack_count = 2;
  header.options.sack[0] = {100, 200};
  header.options.sack[1] = {0xffffff00, 5};
  ByteVector bytes(header.size());
  header.emit(bytes);
  const auto view = TcpView::parse(bytes);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->header_size(), 20U + 12 + 4 + 16);
  const TcpHeader back = view->header();
  EXPECT_EQ(back.source_port, header.source_port);
  EXPECT_EQ(back.destination_port, header.destination_port);
  EXPECT_EQ(back.sequence, header.sequence);
  EXPECT_EQ(back.acknowledgement, header.acknowledgement);
  EXPECT_EQ(back.flags, header.flags);
  EXPECT_EQ(back.window, header.window);
  EXPECT_EQ(back.checksum, header.checksum);
  EXPECT_EQ(back.urgent_pointer, header.urgent_pointer);
  EXPECT_EQ(back.options, header.options);
  EXPECT_TRUE(view->has(kTcpAck));
  EXPECT_FALSE(view->has(kTcpSyn));
}

TEST(TcpHeader, T2_data_offset_below_five_or_past_the_segment_gives_no_view) {
  for (size_t size = 0; size <= 64; ++size) {
    for (unsigned offset = 0; offset < 16; ++offset) {
      ByteVector bytes(size, std::byte{1});                                   // NOPs
      if (size > 12) bytes[12] = static_cast<std::byte>(offset << 4 | 0x0f);  // reserved bits set
      const auto view = TcpView::parse(bytes);
      const bool is_right = size >= 20 && offset >= 5 && offset * 4 <= size;
      ASSERT_EQ(view.has_value(), is_right) << size << " " << offset;
      if (view) {
        EXPECT_EQ(view->header_size(), offset * 4);
      } else if (size >= 20 && offset < 5) {
        EXPECT_EQ(view.error(), HeaderCause::bad_header_size);
      } else {
        EXPECT_EQ(view.error(), HeaderCause::truncated);
      }
    }
  }
}

TEST(TcpHeader, T2_truncated_at_every_length) {
  TcpHeader header{.flags = kTcpSyn};
  header.options = {
      .mss = 1460, .window_scale = 8, .sack_permitted = true, .timestamps = TcpTimestamps{1, 2}};
  ByteVector bytes(header.size());
  header.emit(bytes);
  ASSERT_EQ(bytes.size(), 40U);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(TcpView::parse(Bytes(bytes).first(size)));
  }
}

// ---- layout -------------------------------------------------------------------------------------

TEST(TcpOptions, T7_syn_layout_with_timestamps) {
  EXPECT_EQ(emit({.mss = 1460,
                  .window_scale = 8,
                  .sack_permitted = true,
                  .timestamps = TcpTimestamps{0x01020304, 0}}),
            bytes_of({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 8}));
}

TEST(TcpOptions, T7_syn_layout_without_timestamps) {
  EXPECT_EQ(emit({.mss = 1460, .window_scale = 8, .sack_permitted = true}),
            bytes_of({2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 3, 3, 8}));
  EXPECT_EQ(emit({.mss = 536}), bytes_of({2, 4, 2, 24}));
  EXPECT_EQ(emit({.mss = 536, .window_scale = 0}), bytes_of({2, 4, 2, 24, 1, 3, 3, 0}));
  EXPECT_EQ(emit({.mss = 536, .timestamps = TcpTimestamps{1, 2}}),
            bytes_of({2, 4, 2, 24, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}));
}

TEST(TcpOptions, T7_data_layout) {
  EXPECT_EQ(emit({}), ByteVector{});
  EXPECT_EQ(emit({.timestamps = TcpTimestamps{1, 2}}),
            bytes_of({1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}));
  TcpOptions sack{.sack_count = 1};
  sack.sack[0] = {1, 2};
  EXPECT_EQ(emit(sack), bytes_of({1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}));
}

TEST(TcpOptions, T39_three_blocks_beside_timestamps_four_without) {
  TcpOptions options{.sack_count = 4};
  for (uint32_t i = 0; i < 4; ++i) options.sack[i] = {i * 10, i * 10 + 5};
  EXPECT_EQ(options.size(), 36U);
  EXPECT_EQ(TcpOptions::parse(emit(options)).sack_count, 4);
  options.timestamps = TcpTimestamps{1, 2};
  EXPECT_EQ(options.size(), 40U);
  const TcpOptions back = TcpOptions::parse(emit(options));
  EXPECT_EQ(back.sack_count, 3);
  EXPECT_EQ(back.sack[2], options.sack[2]);
}

TEST(TcpOptions, every_combination_fits_is_aligned_and_comes_back) {
  for (unsigned mask = 0; mask < 16; ++mask) {
    for (uint8_t blocks = 0; blocks <= 4; ++blocks) {
      TcpOptions options;
      if (mask & 1) options.mss = 1000;
      if (mask & 2) options.window_scale = 14;
      options.sack_permitted = (mask & 4) != 0;
      if (mask & 8) options.timestamps = TcpTimestamps{3, 4};
      options.sack_count = blocks;
      for (uint32_t i = 0; i < blocks; ++i) options.sack[i] = {i, i + 1};
      ASSERT_LE(options.size(), 40U);
      ASSERT_EQ(options.size() % 4, 0U);
      TcpOptions back = TcpOptions::parse(emit(options));
      EXPECT_LE(back.sack_count, blocks);
      EXPECT_TRUE(blocks == 0 || back.sack_count > 0);
      back.sack_count = options.sack_count;
      back.sack = options.sack;
      EXPECT_EQ(back, options);
    }
  }
}

// ---- tolerance ----------------------------------------------------------------------------------

TEST(TcpOptions, T3_unknown_kinds_are_skipped_by_their_length) {
  const TcpOptions options =
      TcpOptions::parse(bytes_of({254, 4, 2, 4, 2, 4, 5, 220, 253, 2, 3, 3, 7}));
  EXPECT_EQ(options.mss, 1500);
  EXPECT_EQ(options.window_scale, 7);
}

TEST(TcpOptions, T3_illegal_lengths_end_the_walk_and_keep_what_was_read) {
  for (const int length : {0, 1, 6, 255}) {  // 6 is one past the end
    const TcpOptions options = TcpOptions::parse(bytes_of({2, 4, 1, 0, 77, length, 4, 2, 0}));
    EXPECT_EQ(options.mss, 256);
    EXPECT_FALSE(options.sack_permitted);
  }
  EXPECT_EQ(TcpOptions::parse(bytes_of({2, 4, 1, 0, 77})).mss, 256);  // no length byte
}

TEST(TcpOptions, T3_end_of_list_ends_it) {
  EXPECT_FALSE(TcpOptions::parse(bytes_of({1, 0, 2, 4, 1, 0})).mss);
}

// Each known kind with each length 0..40: the right one is read, any other skipped or ends it.
TEST(TcpOptions, T3_each_kind_with_each_length) {
  for (const int kind : {2, 3, 4, 5, 8}) {
    for (int length = 0; length <= 40; ++length) {
      ByteVector bytes(40, std::byte{1});
      bytes[0] = static_cast<std::byte>(kind);
      bytes[1] = static_cast<std::byte>(length);
      const TcpOptions options = TcpOptions::parse(bytes);
      EXPECT_EQ(options.mss.has_value(), kind == 2 && length == 4);
      EXPECT_EQ(options.window_scale.has_value(), kind == 3 && length == 3);
      EXPECT_EQ(options.sack_permitted, kind == 4 && length == 2);
      EXPECT_EQ(options.timestamps.has_value(), kind == 8 && length == 10);
      const bool is_sack = kind == 5 && length > 2 && (length - 2) % 8 == 0;
      EXPECT_EQ(options.sack_count, is_sack ? (length - 2) / 8 : 0) << length;
    }
  }
}

TEST(TcpOptions, C052_window_scale_extremes) {
  const auto scale = [](int value) {
    return TcpOptions::parse(bytes_of({3, 3, value})).window_scale;
  };
  EXPECT_EQ(scale(0), 0);
  EXPECT_EQ(scale(14), 14);
  EXPECT_EQ(scale(15), 14);
  EXPECT_EQ(scale(255), 14);
  EXPECT_EQ(TcpOptions::parse(bytes_of({3, 3, 2, 3, 3, 9})).window_scale, 9);  // repeated: the last
  EXPECT_FALSE(TcpOptions::parse(bytes_of({3, 4, 2, 0})).window_scale);        // odd length
}

TEST(TcpOptions, T3_random_bytes_neither_loop_nor_crash) {
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    ByteVector bytes(random.below(64));
    random.fill(bytes);
    for (std::byte& byte : bytes) {  // mostly small values: kinds and lengths that mean something
      if (random.below(4) != 0) byte &= std::byte{0x0f};
    }
    const TcpOptions options = TcpOptions::parse(bytes);
    ASSERT_LE(options.sack_count, kTcpSackBlocksMax);
    ASSERT_LE(options.window_scale.value_or(0), kTcpWindowScaleMax);
    ASSERT_LE(options.size(), 40U);
    ASSERT_EQ(TcpOptions::parse(emit(options)).mss, options.mss);
  }
}

}  // namespace
}  // namespace nobounce::wire
