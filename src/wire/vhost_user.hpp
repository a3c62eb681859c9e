// vhost-user messages: plain structs in host byte order, each with parse() and emit().
//
// A message is a 12-byte header, then `size` bytes of payload; fds travel with the header's first
// byte. The rule table says which sizes and how many fds a request may have: a receiver reads the
// header alone, looks the rule up and only then reads the payload (TM-73, TM-74).
// parse() checks form (length, version, counts), never meaning: ranges and states are for the end
// that receives them.
//
// Threads: plain values. Cost: a few loads; nothing allocates.
// Spec: virtio.md 11; TM-73..TM-76.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>

#include "base/bytes.hpp"

namespace nobounce::wire {

enum class VhostUserRequest : uint32_t {
  get_features = 1,
  set_features = 2,
  set_owner = 3,
  reset_owner = 4,
  set_mem_table = 5,
  set_log_base = 6,
  set_log_fd = 7,
  set_vring_num = 8,
  set_vring_addr = 9,
  set_vring_base = 10,
  get_vring_base = 11,
  set_vring_kick = 12,
  set_vring_call = 13,
  set_vring_err = 14,
  get_protocol_features = 15,
  set_protocol_features = 16,
  get_queue_num = 17,
  set_vring_enable = 18,
  send_rarp = 19,
  net_set_mtu = 20,
  set_backend_req_fd = 21,
  iotlb_msg = 22,
  set_vring_endian = 23,
  get_config = 24,
  set_config = 25,
  get_inflight_fd = 31,
  set_inflight_fd = 32,
  reset_device = 34,
  vring_kick = 35,
  get_max_mem_slots = 36,
  add_mem_reg = 37,
  rem_mem_reg = 38,
  set_status = 39,
  get_status = 40,
};

// "SET_MEM_TABLE"; "unknown" for other numbers.
[[nodiscard]] const char* to_string(VhostUserRequest request) noexcept;

// Protocol feature bits.
inline constexpr uint64_t kProtocolMq = uint64_t{1} << 0;
inline constexpr uint64_t kProtocolLogShmfd = uint64_t{1} << 1;
inline constexpr uint64_t kProtocolRarp = uint64_t{1} << 2;
inline constexpr uint64_t kProtocolReplyAck = uint64_t{1} << 3;
inline constexpr uint64_t kProtocolMtu = uint64_t{1} << 4;
inline constexpr uint64_t kProtocolBackendReq = uint64_t{1} << 5;
inline constexpr uint64_t kProtocolConfig = uint64_t{1} << 9;
inline constexpr uint64_t kProtocolInflightShmfd = uint64_t{1} << 12;
inline constexpr uint64_t kProtocolResetDevice = uint64_t{1} << 13;
inline constexpr uint64_t kProtocolConfigureMemSlots = uint64_t{1} << 15;
inline constexpr uint64_t kProtocolStatus = uint64_t{1} << 16;

inline constexpr size_t kVhostUserHeaderBytes = 12;
inline constexpr size_t kMemRegionsMax = 8;
inline constexpr size_t kConfigBytesMax = 256;
inline constexpr size_t kVhostUserPayloadMax = 12 + kConfigBytesMax;  // the largest: config
inline constexpr size_t kVhostUserFdsMax = kMemRegionsMax;

enum class VhostUserFault : uint8_t {
  truncated,        // fewer bytes than the form needs
  version,          // not version 1
  unknown_request,  // no rule for this number
  bad_size,         // payload size not one of the request's
  bad_count,        // a count in the payload contradicts its size
  bad_fds,          // number of fds not one of the request's
};
[[nodiscard]] const char* to_string(VhostUserFault fault) noexcept;

template <class T>
using VhostUserResult = std::expected<T, VhostUserFault>;

struct VhostUserHeader {
  VhostUserRequest request{};
  bool reply = false;
  bool need_reply = false;
  uint32_t size = 0;  // of the payload

  // Checks length, version and that the payload is no larger than any request's.
  [[nodiscard]] static VhostUserResult<VhostUserHeader> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;  // 12 bytes
  friend bool operator==(const VhostUserHeader&, const VhostUserHeader&) = default;
};

// What a request may look like and whether it has a reply of its own.
struct VhostUserRule {
  uint16_t size_min = 0;
  uint16_t size_max = 0;
  uint8_t fds_min = 0;
  uint8_t fds_max = 0;
  bool own_reply = false;
};
[[nodiscard]] std::optional<VhostUserRule> vhost_user_rule(VhostUserRequest request) noexcept;
// Header and number of received fds against the rule of the request.
[[nodiscard]] VhostUserResult<VhostUserRule> check_request(const VhostUserHeader& header,
                                                           size_t fd_count) noexcept;

// ---- payloads ---------------------------------------------------------------------------------
// parse() takes exactly the payload; emit() writes kBytes (or bytes()) at the front of `to`.

struct VhostUserU64 {
  static constexpr size_t kBytes = 8;
  uint64_t value = 0;
  [[nodiscard]] static VhostUserResult<VhostUserU64> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
  friend bool operator==(const VhostUserU64&, const VhostUserU64&) = default;
};

// SET_VRING_KICK / CALL / ERR: bits 0-7 the ring, bit 8 "no fd, poll".
struct VringFd {
  static constexpr size_t kBytes = 8;
  uint8_t index = 0;
  bool no_fd = false;
  [[nodiscard]] static VhostUserResult<VringFd> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
  friend bool operator==(const VringFd&, const VringFd&) = default;
};

struct VringState {
  static constexpr size_t kBytes = 8;
  uint32_t index = 0;
  uint32_t value = 0;  // num, base or enable
  [[nodiscard]] static VhostUserResult<VringState> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
  friend bool operator==(const VringState&, const VringState&) = default;
};

struct VringAddr {
  static constexpr size_t kBytes = 40;
  uint32_t index = 0;
  uint32_t flags = 0;        // bit 0: log
  uint64_t descriptors = 0;  // user addresses of the memory table
  uint64_t used = 0;
  uint64_t avail = 0;
  uint64_t log = 0;
  [[nodiscard]] static VhostUserResult<VringAddr> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
  friend bool operator==(const VringAddr&, const VringAddr&) = default;
};

struct MemRegion {
  static constexpr size_t kBytes = 32;
  uint64_t guest_address = 0;
  uint64_t bytes = 0;
  uint64_t user_address = 0;
  uint64_t mmap_offset = 0;
  [[nodiscard]] static VhostUserResult<MemRegion> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
  friend bool operator==(const MemRegion&, const MemRegion&) = default;
};

struct MemTable {
  uint32_t count = 0;
  std::array<MemRegion, kMemRegionsMax> regions{};
  [[nodiscard]] constexpr size_t bytes() const noexcept { return 8 + MemRegion::kBytes * count; }
  // The count must be at most kMemRegionsMax and agree with the size.
  [[nodiscard]] static VhostUserResult<MemTable> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
};

// ADD_MEM_REG / REM_MEM_REG: {pad u64, region}.
struct SingleMemRegion {
  static constexpr size_t kBytes = 40;
  MemRegion region;
  [[nodiscard]] static VhostUserResult<SingleMemRegion> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
};

struct ConfigSpace {
  static constexpr size_t kFixedBytes = 12;
  uint32_t offset = 0;
  uint32_t size = 0;  // of the content that follows
  uint32_t flags = 0;
  std::array<std::byte, kConfigBytesMax> content{};
  [[nodiscard]] constexpr size_t bytes() const noexcept { return kFixedBytes + size; }
  // `size` at most kConfigBytesMax, and either the content is there, or the payload is the fixed
  // part alone with size 0 (an error reply).
  [[nodiscard]] static VhostUserResult<ConfigSpace> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
};

struct LogBase {
  static constexpr size_t kBytes = 16;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  [[nodiscard]] static VhostUserResult<LogBase> parse(Bytes bytes) noexcept;
  void emit(MutableBytes to) const noexcept;
};

}  // namespace nobounce::wire
