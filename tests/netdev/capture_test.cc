// Captures: every frame that left or came, in pcapng, from private copies; never in traffic's way.
#include "netdev/capture.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "support/frames.hpp"

namespace nobounce::test {
namespace {

struct Block {
  uint32_t type = 0;
  ByteVector body;  // between the two lengths
};

struct PacketBlock {
  uint64_t time_ns = 0;
  uint32_t original = 0;
  ByteVector data;
  uint32_t direction = 0;
  uint32_t queue = 0;
};

ByteVector read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Bytes bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<Block> read_blocks(const std::string& path) {
  const ByteVector file = read_file(path);
  std::vector<Block> blocks;
  size_t at = 0;
  while (at + 12 <= file.size()) {
    const uint32_t size = load_le<uint32_t>(file, at + 4);
    EXPECT_EQ(size % 4, 0U);
    if (size < 12 || at + size > file.size()) break;
    EXPECT_EQ(load_le<uint32_t>(file, at + size - 4), size);
    const auto begin = file.begin() + static_cast<ptrdiff_t>(at);
    blocks.push_back({load_le<uint32_t>(file, at), ByteVector(begin + 8, begin + size - 4)});
    at += size;
  }
  EXPECT_EQ(at, file.size());
  return blocks;
}

PacketBlock packet_of(const Block& block) {
  const Bytes body(block.body);
  PacketBlock packet;
  packet.time_ns = uint64_t{load_le<uint32_t>(body, 4)} << 32 | load_le<uint32_t>(body, 8);
  const uint32_t captured = load_le<uint32_t>(body, 12);
  packet.original = load_le<uint32_t>(body, 16);
  const Bytes data = body.subspan(20, captured);
  packet.data.assign(data.begin(), data.end());
  size_t at = 20 + round_up(captured, 4);
  for (size_t i = 20 + captured; i < at; ++i) EXPECT_EQ(body[i], std::byte{0});
  while (load_le<uint16_t>(body, at) != 0) {
    const uint16_t code = load_le<uint16_t>(body, at);
    const uint16_t size = load_le<uint16_t>(body, at + 2);
    if (code == 2) packet.direction = load_le<uint32_t>(body, at + 4);
    if (code == 6) packet.queue = load_le<uint32_t>(body, at + 4);
    at += 4 + round_up(size, 4);
  }
  EXPECT_EQ(at + 4, body.size());
  return packet;
}

class Capture : public testing::Test {
 protected:
  Capture() : path_(testing::TempDir() + "nobounce_capture_" + std::to_string(::getpid())) {}
  ~Capture() override { ::unlink(path_.c_str()); }

  std::unique_ptr<CaptureDevice> open(CaptureOptions options = {}) {
    auto device = std::make_unique<ScriptDevice>(end.context, ScriptDevice::Options{});
    script = device.get();
    options.path = path_;
    return CaptureDevice::open(std::move(device), options, clock, end.counters).value();
  }
  PacketPtr make(Bytes head, Bytes payload) {
    PacketPtr packet = end.packets.make();
    std::ranges::copy(head, packet->append(head.size()).begin());
    if (!payload.empty()) {
      const Frag frag = end.make_frag(payload);
      EXPECT_TRUE(packet->add_frag(*frag.page, frag.offset, frag.size));
    }
    return packet;
  }

  ManualClock clock;
  StackEnd end{clock};
  ScriptDevice* script = nullptr;
  std::string path_;
};

TEST_F(Capture, C107_every_frame_both_ways_and_the_closing_statistics) {
  auto device = open();
  std::vector<ByteVector> want;
  for (const size_t size : {14U, 15U, 60U, 1514U, 9014U}) {
    PacketBurst burst;
    const ByteVector bytes = pattern(size, size);
    burst.push(make(Bytes(bytes).first(14), Bytes(bytes).subspan(14)));
    EXPECT_EQ(device->transmit(0, burst), 1U);
    want.push_back(bytes);
    clock.advance(1000);
    script->inject(bytes);
    EXPECT_EQ(device->receive(0, burst), 1U);
    EXPECT_EQ(flatten(*burst[0]), bytes);
    want.push_back(bytes);
    clock.advance(1000);
  }
  device.reset();
  const auto blocks = read_blocks(path_);
  ASSERT_EQ(blocks.size(), 2 + want.size() + 1);
  EXPECT_EQ(blocks[0].type, 0x0a0d0d0aU);
  EXPECT_EQ(load_le<uint32_t>(blocks[0].body, 0), 0x1a2b3c4dU);
  EXPECT_EQ(blocks[1].type, 1U);
  EXPECT_EQ(load_le<uint16_t>(blocks[1].body, 0), 1U);
  uint64_t last = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(blocks[i + 2].type, 6U);
    const PacketBlock packet = packet_of(blocks[i + 2]);
    EXPECT_EQ(packet.data, want[i]);
    EXPECT_EQ(packet.original, want[i].size());
    EXPECT_EQ(packet.direction, i % 2 == 0 ? 2U : 1U);
    EXPECT_TRUE(last == 0 || packet.time_ns == last + 1000);
    last = packet.time_ns;
  }
  EXPECT_GT(last, uint64_t{1'600'000'000} * kNsPerSecond);  // the wall clock's
  EXPECT_EQ(blocks.back().type, 5U);
  EXPECT_EQ(load_le<uint64_t>(blocks.back().body, 12 + 4), want.size());
  EXPECT_EQ(load_le<uint64_t>(blocks.back().body, 12 + 16), 0U);
  EXPECT_EQ(end.count("capture.frames"), want.size());
}

TEST_F(Capture, C107_frames_the_device_did_not_take_are_recorded_once) {
  auto device = open();
  script->set_room(3);
  PacketBurst burst;
  for (uint64_t i = 0; i < 10; ++i) burst.push(make(pattern(20, i), {}));
  EXPECT_EQ(device->transmit(0, burst), 3U);
  EXPECT_EQ(device->transmit(0, burst), 0U);
  script->set_room(100);
  EXPECT_EQ(device->transmit(0, burst), 7U);
  device.reset();
  const auto blocks = read_blocks(path_);
  ASSERT_EQ(blocks.size(), 13U);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(packet_of(blocks[i + 2]).data, pattern(20, i));
}

TEST_F(Capture, snap_length_cuts_the_copy_not_the_frame) {
  auto device = open({.snap_length = 33});
  PacketBurst burst;
  const ByteVector bytes = pattern(500);
  burst.push(make(Bytes(bytes).first(20), Bytes(bytes).subspan(20)));
  EXPECT_EQ(device->transmit(0, burst), 1U);
  EXPECT_EQ(script->pop()->bytes, bytes);
  device.reset();
  const PacketBlock packet = packet_of(read_blocks(path_)[2]);
  EXPECT_EQ(packet.data, ByteVector(bytes.begin(), bytes.begin() + 33));
  EXPECT_EQ(packet.original, 500U);
}

TEST_F(Capture, C107_a_full_queue_drops_from_the_capture_and_counts) {
  auto device = open({.queue_bytes = 600});
  for (int i = 0; i < 50; ++i) {
    PacketBurst burst;
    burst.push(make(pattern(20), pattern(1000)));  // larger than the whole queue
    burst.push(make(pattern(20), {}));
    EXPECT_EQ(device->transmit(0, burst), 2U);
    device->drain();
  }
  EXPECT_EQ(script->sent(), 100U);
  device.reset();
  EXPECT_EQ(end.count("capture.dropped"), 50U);
  EXPECT_EQ(end.count("capture.frames"), 50U);
  const auto blocks = read_blocks(path_);
  ASSERT_EQ(blocks.size(), 53U);
  EXPECT_EQ(load_le<uint64_t>(blocks.back().body, 12 + 4), 100U);
  EXPECT_EQ(load_le<uint64_t>(blocks.back().body, 12 + 16), 50U);
}

TEST_F(Capture, is_readable_by_its_owner_only) {
  auto device = open();
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(Capture, a_path_that_cannot_be_written_is_an_error_that_names_it) {
  auto device =
      CaptureDevice::open(std::make_unique<ScriptDevice>(end.context, ScriptDevice::Options{}),
                          {.path = "/nonexistent/file"}, clock, end.counters);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, std::errc::no_such_file_or_directory);
  EXPECT_NE(device.error().to_string().find("/nonexistent/file"), std::string::npos);
}

TEST_F(Capture, a_write_error_stops_the_capture_not_the_traffic) {
  auto script_device = std::make_unique<ScriptDevice>(end.context, ScriptDevice::Options{});
  script = script_device.get();
  auto device =
      CaptureDevice::open(std::move(script_device), {.path = "/dev/full"}, clock, end.counters);
  if (!device) GTEST_SKIP() << "no /dev/full here";
  (*device)->drain();
  PacketBurst burst;
  burst.push(make(pattern(20), {}));
  EXPECT_EQ((*device)->transmit(0, burst), 1U);
  device->reset();
  EXPECT_EQ(end.count("capture.write_errors"), 1U);
  EXPECT_EQ(end.count("capture.dropped"), 1U);
}

TEST_F(Capture, passes_the_inner_device_through) {
  auto device = open();
  EXPECT_EQ(device->mtu(), script->mtu());
  EXPECT_EQ(device->mac(), script->mac());
  EXPECT_EQ(device->leaf(), script);
  EXPECT_NE(device->id(), script->id());
  EXPECT_STREQ(device->name(), "script");
  script->set_broken(true);
  EXPECT_TRUE(device->is_broken());
  script->set_link_up(false);
  EXPECT_FALSE(device->link_up());
  EXPECT_EQ(device->transmit_room(0), script->transmit_room(0));
}

}  // namespace
}  // namespace nobounce::test
