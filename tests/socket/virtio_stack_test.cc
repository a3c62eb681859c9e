// Stack::open against back-ends that do not do their part.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>

#include "base/log.hpp"
#include "nobounce/stack.hpp"
#include "virtio/vhost_user/scripted_back_end.hpp"

namespace nobounce::test {
namespace {

using Request = wire::VhostUserRequest;

class VirtioStack : public testing::Test {
 protected:
  VirtioStack() {
    set_log_level(LogLevel::quiet);
    char folder[] = "/tmp/nobounce-virtio-stack-XXXXXX";
    folder_ = ::mkdtemp(folder);
    back_end_.listen(folder_ + "/vhost.sock");
  }
  ~VirtioStack() override {
    back_end_.end();
    set_log_level(LogLevel::warning);
    std::filesystem::remove_all(folder_);
  }
  [[nodiscard]] StackOptions options() const {
    StackOptions options;
    options.net = "vhost-user:" + folder_ + "/vhost.sock";
    options.address = {IpAddress::v4(10, 77, 0, 2), 24};
    options.pool_bytes = 4 << 20;
    options.private_bytes = 4 << 20;
    options.queue_size = 64;
    options.connections_max = 16;
    options.first_frame_ns = 50'000'000;
    return options;
  }
  // The error of open(), which must name the region and leave no rings running.
  std::string refusal() {
    const auto stack = Stack::open(options());
    EXPECT_FALSE(stack.has_value());
    return stack ? "" : stack.error().to_string();
  }

  std::string folder_;
  ScriptedBackEnd back_end_;
};

TEST_F(VirtioStack, C126_a_back_end_that_maps_nothing_is_told_at_the_start) {
  const std::string line = refusal();
  EXPECT_NE(line.find("has taken no frame out of the shared region of "), std::string::npos)
      << line;
  EXPECT_NE(line.find("at guest address 0x100000000"), std::string::npos) << line;
  EXPECT_NE(line.find("MAP_SHARED"), std::string::npos) << line;
  EXPECT_EQ(back_end_.messages(Request::get_vring_base).size(), 2u) << "the rings were stopped";
}

// Works on the rings as it should, in a copy that the guest never sees.
class PrivateMapping {
 public:
  void share(const ReceivedMessage& message) {
    const auto table = wire::MemTable::parse(message.payload);
    bytes_ = table->regions[0].bytes;
    base_ = table->regions[0].user_address;
    memory_ = static_cast<char*>(
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE, message.fds.at(0), 0));
    ASSERT_NE(memory_, MAP_FAILED);
  }
  void place(const ReceivedMessage& message) {
    const auto address = wire::VringAddr::parse(message.payload);
    if (address->index == 1) used_ = address->used - base_;
  }
  void take_first_frame() {
    const uint16_t one = 1;
    std::memcpy(memory_ + used_ + wire::kUsedIndex, &one, sizeof one);
    ++taken;
  }
  ~PrivateMapping() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }

  int taken = 0;

 private:
  char* memory_ = nullptr;
  uint64_t bytes_ = 0, base_ = 0, used_ = 0;
};

TEST_F(VirtioStack, C126_a_back_end_that_maps_privately_is_told_at_the_start) {
  PrivateMapping mapping;
  back_end_.script = [&mapping](const ReceivedMessage& message, ScriptedBackEnd::Answer&) {
    if (message.header.request == Request::set_mem_table) mapping.share(message);
    if (message.header.request == Request::set_vring_addr) mapping.place(message);
    if (message.header.request == Request::set_vring_enable) mapping.take_first_frame();
  };
  EXPECT_NE(refusal().find("MAP_SHARED"), std::string::npos);
  back_end_.end();
  EXPECT_GT(mapping.taken, 0);
}

TEST_F(VirtioStack, the_look_at_the_first_frame_can_be_left_out) {
  StackOptions asked = options();
  asked.first_frame_ns = 0;
  const auto stack = Stack::open(asked);
  ASSERT_TRUE(stack.has_value()) << stack.error().to_string();
  // TM-86: kicks that the peer made block and the watchdog ended are counted with the stack's.
  bool counted = false;
  for (const CounterValue& counter : (*stack)->counters()) {
    counted = counted || counter.name == "virtio.kicks_rescued";
  }
  EXPECT_TRUE(counted);
}

}  // namespace
}  // namespace nobounce::test
