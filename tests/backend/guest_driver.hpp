// The guest, played by hand: a memfd, split rings in it as a driver writes them, vhost-user messages.
//
// Honest by default; every word can be set to anything, because the device must survive it.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/session.hpp"
#include "base/random.hpp"
#include "wire/vhost_user.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend::test {

using ByteVector = std::vector<std::byte>;

inline constexpr uint64_t kGuestBase = uint64_t{1} << 32;
inline constexpr uint64_t kUserBase = uint64_t{0x7f} << 32;

inline size_t open_fds() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

inline uint64_t event_count(int fd) {
  uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == sizeof count ? count : 0;
}

inline UniqueFd make_event() { return UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }
inline UniqueFd duplicate(int fd) { return UniqueFd(::dup(fd)); }

// Self-describing payload: every byte follows from the seed and its place.
inline std::byte pattern(uint64_t seed, size_t at) {
  return static_cast<std::byte>((seed * 131 + at * 7 + (at >> 8) * 13) & 0xff);
}

// ---- memory -----------------------------------------------------------------------------------

class GuestRam {
 public:
  explicit GuestRam(size_t bytes = 4 << 20)
      : bytes_(bytes), fd_(::memfd_create("guest", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(base, MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
  }
  ~GuestRam() { ::munmap(base_, bytes_); }
  GuestRam(const GuestRam&) = delete;
  GuestRam& operator=(const GuestRam&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] std::byte* at(size_t offset) const { return base_ + offset; }
  template <class T>
  void store(size_t offset, T value) const {
    std::atomic_ref<T>(*reinterpret_cast<T*>(base_ + offset))
        .store(value, std::memory_order_release);
  }
  template <class T>
  [[nodiscard]] T load(size_t offset) const {
    return std::atomic_ref<T>(*reinterpret_cast<T*>(base_ + offset))
        .load(std::memory_order_acquire);
  }
  void write(size_t offset, Bytes bytes) const {
    std::memcpy(base_ + offset, bytes.data(), bytes.size());
  }
  [[nodiscard]] ByteVector read(size_t offset, size_t bytes) const {
    return {base_ + offset, base_ + offset + bytes};
  }
  [[nodiscard]] wire::MemTable table() const {
    wire::MemTable table;
    table.count = 1;
    table.regions[0] = {kGuestBase, bytes_, kUserBase, 0};
    return table;
  }
  [[nodiscard]] std::unique_ptr<GuestMemory> map() const {
    const UniqueFd copies[] = {duplicate(fd())};
    auto memory = GuestMemory::create(table(), copies);
    EXPECT_TRUE(memory) << memory.error().to_string();
    return memory ? std::move(*memory) : nullptr;
  }

 private:
  size_t bytes_;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
};

// ---- one ring, driver's side ------------------------------------------------------------------

struct UsedEntry {
  uint32_t id = 0;
  uint32_t length = 0;
  friend bool operator==(const UsedEntry&, const UsedEntry&) = default;
};

struct Buffer {
  uint64_t address = 0;  // guest address
  uint32_t length = 0;
};

class DriverRing {
 public:
  DriverRing(const GuestRam& memory, size_t offset, uint16_t size, uint16_t base = 0)
      : ram_at_(&memory),
        size_(size),
        descriptors_(round_up(offset, 4096)),
        avail_(descriptors_ + wire::descriptor_table_bytes(size)),
        used_(round_up(avail_ + wire::avail_bytes(size), 4096)),
        avail_index_(base),
        used_index_(base) {
    std::memset(memory.at(descriptors_), 0, end() - descriptors_);
    ram().store<uint16_t>(avail_ + wire::kAvailIndex, base);
    ram().store<uint16_t>(used_ + wire::kUsedIndex, base);
  }
  [[nodiscard]] size_t end() const { return used_ + wire::used_bytes(size_); }
  [[nodiscard]] uint16_t size() const { return size_; }

  [[nodiscard]] wire::VringAddr address(uint32_t index) const {
    return {.index = index,
            .descriptors = kUserBase + descriptors_,
            .used = kUserBase + used_,
            .avail = kUserBase + avail_};
  }
  [[nodiscard]] RingParts parts(const GuestMemory& memory) const {
    return {
        *memory.translate_user(kUserBase + descriptors_, wire::descriptor_table_bytes(size_), 16),
        *memory.translate_user(kUserBase + avail_, wire::avail_bytes(size_), 2),
        *memory.translate_user(kUserBase + used_, wire::used_bytes(size_), 4)};
  }

  void set_descriptor(uint16_t index, uint64_t address, uint32_t length, uint16_t flags,
                      uint16_t next = 0) const {
    const size_t at = descriptors_ + wire::kDescriptorBytes * index;
    ram().store<uint64_t>(at, address);
    ram().store<uint32_t>(at + 8, length);
    ram().store<uint16_t>(at + 12, flags);
    ram().store<uint16_t>(at + 14, next);
  }
  // Descriptors first, first + 1, ... as one chain; not offered yet.
  void set_chain(uint16_t first, const std::vector<Buffer>& buffers, bool device_writes) const {
    for (size_t i = 0; i < buffers.size(); ++i) {
      const bool last = i + 1 == buffers.size();
      const auto index = static_cast<uint16_t>((first + i) % size_);
      const auto flags = static_cast<uint16_t>((device_writes ? wire::kDescriptorWrite : 0) |
                                               (last ? 0 : wire::kDescriptorHasNext));
      set_descriptor(index, buffers[i].address, buffers[i].length, flags,
                     static_cast<uint16_t>((index + 1) % size_));
    }
  }
  void offer(uint16_t head) {
    ram().store<uint16_t>(avail_ + wire::avail_entry(avail_index_ % size_), head);
    set_avail_index(static_cast<uint16_t>(avail_index_ + 1));
  }
  void set_avail_index(uint16_t index) {
    avail_index_ = index;
    ram().store<uint16_t>(avail_ + wire::kAvailIndex, index);
  }
  [[nodiscard]] uint16_t avail_index() const { return avail_index_; }
  void set_avail_flags(uint16_t flags) const { ram().store<uint16_t>(avail_, flags); }
  void set_used_event(uint16_t event) const {
    ram().store<uint16_t>(avail_ + wire::avail_used_event(size_), event);
  }
  [[nodiscard]] uint16_t avail_event() const {
    return ram().load<uint16_t>(used_ + wire::used_avail_event(size_));
  }
  [[nodiscard]] uint16_t used_flags() const { return ram().load<uint16_t>(used_); }
  [[nodiscard]] uint16_t device_used_index() const {
    return ram().load<uint16_t>(used_ + wire::kUsedIndex);
  }
  [[nodiscard]] bool has_used() const { return device_used_index() != used_index_; }
  [[nodiscard]] UsedEntry take_used() {
    EXPECT_TRUE(has_used());
    const size_t at = used_ + wire::used_entry(used_index_ % size_);
    ++used_index_;
    return {ram().load<uint32_t>(at), ram().load<uint32_t>(at + 4)};
  }

 private:
  const GuestRam& ram() const { return *ram_at_; }

  const GuestRam* ram_at_;
  uint16_t size_;
  size_t descriptors_;
  size_t avail_;
  size_t used_;
  uint16_t avail_index_;
  uint16_t used_index_;
};

// ---- messages ---------------------------------------------------------------------------------

inline Message make_message(wire::VhostUserRequest request, Bytes payload = {},
                            std::vector<UniqueFd> fds = {}, bool need_reply = false) {
  Message message;
  message.header = {
      .request = request, .need_reply = need_reply, .size = static_cast<uint32_t>(payload.size())};
  std::copy(payload.begin(), payload.end(), message.payload.begin());
  for (UniqueFd& fd : fds) message.fds[message.fd_count++] = std::move(fd);
  return message;
}

template <class Payload>
ByteVector encode(const Payload& payload, size_t bytes = Payload::kBytes) {
  ByteVector out(bytes);
  payload.emit(out);
  return out;
}

inline ByteVector encode(const wire::MemTable& table) { return encode(table, table.bytes()); }
inline ByteVector encode(const wire::ConfigSpace& config) { return encode(config, config.bytes()); }
inline ByteVector encode_u64(uint64_t value) { return encode(wire::VhostUserU64{value}); }

// Plays the front-end against a Session, without a socket.
class SessionDriver {
 public:
  using Request = wire::VhostUserRequest;

  explicit SessionDriver(Session& session) : session_(session) {}

  Outcome send(Request request, Bytes payload = {}, std::vector<UniqueFd> fds = {},
               bool need_reply = false) {
    Message message = make_message(request, payload, std::move(fds), need_reply);
    return session_.handle(message, reply);
  }
  [[nodiscard]] Verdict verdict(Request request, Bytes payload = {},
                                std::vector<UniqueFd> fds = {}) {
    return send(request, payload, std::move(fds)).verdict;
  }
  [[nodiscard]] uint64_t reply_u64() const { return load_u64(0); }
  [[nodiscard]] uint32_t reply_u32(size_t at) const {
    uint32_t value = 0;
    std::memcpy(&value, reply.bytes.data() + wire::kVhostUserHeaderBytes + at, sizeof value);
    return value;
  }
  [[nodiscard]] uint64_t load_u64(size_t at) const {
    uint64_t value = 0;
    std::memcpy(&value, reply.bytes.data() + wire::kVhostUserHeaderBytes + at, sizeof value);
    return value;
  }

  void expect_accepted(const Outcome& outcome) {
    EXPECT_EQ(outcome.verdict, Verdict::accepted) << outcome.reason;
  }
  void set_features(uint64_t features) {
    expect_accepted(send(Request::set_features, encode_u64(features)));
  }
  void set_memory(const GuestRam& ram) {
    std::vector<UniqueFd> fds;
    fds.push_back(duplicate(ram.fd()));
    expect_accepted(send(Request::set_mem_table, encode(ram.table()), std::move(fds)));
  }
  // NUM, BASE, ADDR, CALL, KICK, ENABLE: a running ring.
  void start_ring(uint32_t index, const DriverRing& ring, int kick, int call) {
    expect_accepted(send(Request::set_vring_num, encode(wire::VringState{index, ring.size()})));
    expect_accepted(
        send(Request::set_vring_base, encode(wire::VringState{index, ring.avail_index()})));
    expect_accepted(send(Request::set_vring_addr, encode(ring.address(index))));
    expect_accepted(set_event(Request::set_vring_call, index, call));
    expect_accepted(set_event(Request::set_vring_kick, index, kick));
    if (session_.has(wire::kVhostUserProtocolFeatures)) {
      expect_accepted(send(Request::set_vring_enable, encode(wire::VringState{index, 1})));
    }
  }
  Outcome set_event(Request request, uint32_t index, int fd) {
    std::vector<UniqueFd> fds;
    if (fd >= 0) fds.push_back(duplicate(fd));
    return send(request,
                encode(wire::VringFd{.index = static_cast<uint8_t>(index), .no_fd = fd < 0}),
                std::move(fds));
  }

  Reply reply;

 private:
  Session& session_;
};

}  // namespace nobounce::backend::test
