#include "wire/vhost_user.hpp"

#include <algorithm>

namespace nobounce::wire {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kVersionMask = 3;
constexpr uint32_t kReplyFlag = 1 << 2;
constexpr uint32_t kNeedReplyFlag = 1 << 3;
constexpr uint64_t kVringIndexMask = 0xff;
constexpr uint64_t kVringNoFd = 1 << 8;

template <class T>
T host(Bytes bytes, size_t offset) noexcept {
  NB_ASSERT(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void put(MutableBytes to, size_t offset, std::type_identity_t<T> value) noexcept {
  NB_ASSERT(offset + sizeof(T) <= to.size());
  std::memcpy(to.data() + offset, &value, sizeof value);
}

struct Entry {
  VhostUserRequest request;
  const char* name;
  VhostUserRule rule;
};

using enum VhostUserRequest;

// One row a request: name, payload sizes, fds, own reply (virtio.md 11).
constexpr Entry kEntries[] = {
    {get_features, "GET_FEATURES", {0, 0, 0, 0, true}},
    {set_features, "SET_FEATURES", {8, 8, 0, 0, false}},
    {set_owner, "SET_OWNER", {0, 0, 0, 0, false}},
    {reset_owner, "RESET_OWNER", {0, 0, 0, 0, false}},
    {set_mem_table, "SET_MEM_TABLE", {8, 8 + 32 * kMemRegionsMax, 0, kMemRegionsMax, false}},
    {set_log_base, "SET_LOG_BASE", {16, 16, 1, 1, true}},
    {set_log_fd, "SET_LOG_FD", {0, 8, 1, 1, false}},
    {set_vring_num, "SET_VRING_NUM", {8, 8, 0, 0, false}},
    {set_vring_addr, "SET_VRING_ADDR", {40, 40, 0, 0, false}},
    {set_vring_base, "SET_VRING_BASE", {8, 8, 0, 0, false}},
    {get_vring_base, "GET_VRING_BASE", {8, 8, 0, 0, true}},
    {set_vring_kick, "SET_VRING_KICK", {8, 8, 0, 1, false}},
    {set_vring_call, "SET_VRING_CALL", {8, 8, 0, 1, false}},
    {set_vring_err, "SET_VRING_ERR", {8, 8, 0, 1, false}},
    {get_protocol_features, "GET_PROTOCOL_FEATURES", {0, 0, 0, 0, true}},
    {set_protocol_features, "SET_PROTOCOL_FEATURES", {8, 8, 0, 0, false}},
    {get_queue_num, "GET_QUEUE_NUM", {0, 0, 0, 0, true}},
    {set_vring_enable, "SET_VRING_ENABLE", {8, 8, 0, 0, false}},
    {send_rarp, "SEND_RARP", {8, 8, 0, 0, false}},
    {net_set_mtu, "NET_SET_MTU", {8, 8, 0, 0, false}},
    {set_backend_req_fd, "SET_BACKEND_REQ_FD", {0, 0, 1, 1, false}},
    {iotlb_msg, "IOTLB_MSG", {32, 32, 0, 0, false}},
    {set_vring_endian, "SET_VRING_ENDIAN", {8, 8, 0, 0, false}},
    {get_config, "GET_CONFIG", {12, 12 + kConfigBytesMax, 0, 0, true}},
    {set_config, "SET_CONFIG", {12, 12 + kConfigBytesMax, 0, 0, false}},
    {get_inflight_fd, "GET_INFLIGHT_FD", {24, 24, 0, 0, true}},
    {set_inflight_fd, "SET_INFLIGHT_FD", {24, 24, 1, 1, false}},
    {reset_device, "RESET_DEVICE", {0, 0, 0, 0, false}},
    {vring_kick, "VRING_KICK", {8, 8, 0, 0, false}},
    {get_max_mem_slots, "GET_MAX_MEM_SLOTS", {0, 0, 0, 0, true}},
    {add_mem_reg, "ADD_MEM_REG", {40, 40, 1, 1, false}},
    {rem_mem_reg, "REM_MEM_REG", {40, 40, 0, 1, false}},  // a stray fd is closed, no fault
    {set_status, "SET_STATUS", {8, 8, 0, 0, false}},
    {get_status, "GET_STATUS", {0, 0, 0, 0, true}},
};

const Entry* find(VhostUserRequest request) noexcept {
  const auto* entry = std::ranges::find(kEntries, request, &Entry::request);
  return entry == std::end(kEntries) ? nullptr : entry;
}

std::unexpected<VhostUserFault> bad(VhostUserFault fault) noexcept {
  return std::unexpected(fault);
}

}  // namespace

const char* to_string(VhostUserRequest request) noexcept {
  const Entry* entry = find(request);
  return entry == nullptr ? "unknown" : entry->name;
}

const char* to_string(VhostUserFault fault) noexcept {
  switch (fault) {
    case VhostUserFault::truncated:
      return "message too short";
    case VhostUserFault::version:
      return "not protocol version 1";
    case VhostUserFault::unknown_request:
      return "unknown request";
    case VhostUserFault::bad_size:
      return "payload size does not fit the request";
    case VhostUserFault::bad_count:
      return "a count contradicts the payload size";
    case VhostUserFault::bad_fds:
      return "wrong number of file descriptors";
  }
  return "unknown";
}

VhostUserResult<VhostUserHeader> VhostUserHeader::parse(Bytes bytes) noexcept {
  if (bytes.size() < kVhostUserHeaderBytes) return bad(VhostUserFault::truncated);
  const auto flags = host<uint32_t>(bytes, 4);
  if ((flags & kVersionMask) != kVersion) return bad(VhostUserFault::version);
  const VhostUserHeader header{
      .request = static_cast<VhostUserRequest>(host<uint32_t>(bytes, 0)),
      .reply = (flags & kReplyFlag) != 0,
      .need_reply = (flags & kNeedReplyFlag) != 0,
      .size = host<uint32_t>(bytes, 8),
  };
  if (header.size > kVhostUserPayloadMax) return bad(VhostUserFault::bad_size);
  return header;
}

void VhostUserHeader::emit(MutableBytes to) const noexcept {
  put<uint32_t>(to, 0, static_cast<uint32_t>(request));
  put<uint32_t>(to, 4, kVersion | (reply ? kReplyFlag : 0) | (need_reply ? kNeedReplyFlag : 0));
  put<uint32_t>(to, 8, size);
}

std::optional<VhostUserRule> vhost_user_rule(VhostUserRequest request) noexcept {
  const Entry* entry = find(request);
  if (entry == nullptr) return std::nullopt;
  return entry->rule;
}

VhostUserResult<VhostUserRule> check_request(const VhostUserHeader& header,
                                             size_t fd_count) noexcept {
  const auto rule = vhost_user_rule(header.request);
  if (!rule) return bad(VhostUserFault::unknown_request);
  if (header.size < rule->size_min || header.size > rule->size_max) {
    return bad(VhostUserFault::bad_size);
  }
  if (fd_count < rule->fds_min || fd_count > rule->fds_max) return bad(VhostUserFault::bad_fds);
  return *rule;
}

VhostUserResult<VhostUserU64> VhostUserU64::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  return VhostUserU64{host<uint64_t>(bytes, 0)};
}

void VhostUserU64::emit(MutableBytes to) const noexcept { put<uint64_t>(to, 0, value); }

VhostUserResult<VringFd> VringFd::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  const auto value = host<uint64_t>(bytes, 0);
  return VringFd{.index = static_cast<uint8_t>(value & kVringIndexMask),
                 .no_fd = (value & kVringNoFd) != 0};
}

void VringFd::emit(MutableBytes to) const noexcept {
  put<uint64_t>(to, 0, index | (no_fd ? kVringNoFd : 0));
}

VhostUserResult<VringState> VringState::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  return VringState{.index = host<uint32_t>(bytes, 0), .value = host<uint32_t>(bytes, 4)};
}

void VringState::emit(MutableBytes to) const noexcept {
  put<uint32_t>(to, 0, index);
  put<uint32_t>(to, 4, value);
}

VhostUserResult<VringAddr> VringAddr::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  return VringAddr{.index = host<uint32_t>(bytes, 0),
                   .flags = host<uint32_t>(bytes, 4),
                   .descriptors = host<uint64_t>(bytes, 8),
                   .used = host<uint64_t>(bytes, 16),
                   .avail = host<uint64_t>(bytes, 24),
                   .log = host<uint64_t>(bytes, 32)};
}

void VringAddr::emit(MutableBytes to) const noexcept {
  put<uint32_t>(to, 0, index);
  put<uint32_t>(to, 4, flags);
  put<uint64_t>(to, 8, descriptors);
  put<uint64_t>(to, 16, used);
  put<uint64_t>(to, 24, avail);
  put<uint64_t>(to, 32, log);
}

VhostUserResult<MemRegion> MemRegion::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  return MemRegion{.guest_address = host<uint64_t>(bytes, 0),
                   .bytes = host<uint64_t>(bytes, 8),
                   .user_address = host<uint64_t>(bytes, 16),
                   .mmap_offset = host<uint64_t>(bytes, 24)};
}

void MemRegion::emit(MutableBytes to) const noexcept {
  put<uint64_t>(to, 0, guest_address);
  put<uint64_t>(to, 8, bytes);
  put<uint64_t>(to, 16, user_address);
  put<uint64_t>(to, 24, mmap_offset);
}

VhostUserResult<MemTable> MemTable::parse(Bytes bytes) noexcept {
  if (bytes.size() < 8) return bad(VhostUserFault::truncated);
  MemTable table;
  table.count = host<uint32_t>(bytes, 0);
  if (table.count > kMemRegionsMax) return bad(VhostUserFault::bad_count);
  if (bytes.size() != table.bytes()) return bad(VhostUserFault::bad_count);
  for (size_t i = 0; i < table.count; ++i) {
    const auto region =
        MemRegion::parse(bytes.subspan(8 + i * MemRegion::kBytes, MemRegion::kBytes));
    if (!region) return bad(region.error());
    table.regions[i] = *region;
  }
  return table;
}

void MemTable::emit(MutableBytes to) const noexcept {
  NB_ASSERT(count <= kMemRegionsMax);
  NB_ASSERT(to.size() >= bytes());
  put<uint32_t>(to, 0, count);
  put<uint32_t>(to, 4, 0);
  for (size_t i = 0; i < count; ++i) {
    regions[i].emit(to.subspan(8 + i * MemRegion::kBytes, MemRegion::kBytes));
  }
}

VhostUserResult<SingleMemRegion> SingleMemRegion::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  const auto region = MemRegion::parse(bytes.subspan(8));
  if (!region) return bad(region.error());
  return SingleMemRegion{*region};
}

void SingleMemRegion::emit(MutableBytes to) const noexcept {
  put<uint64_t>(to, 0, 0);
  region.emit(to.subspan(8));
}

VhostUserResult<ConfigSpace> ConfigSpace::parse(Bytes bytes) noexcept {
  if (bytes.size() < kFixedBytes) return bad(VhostUserFault::truncated);
  ConfigSpace config;
  config.offset = host<uint32_t>(bytes, 0);
  config.size = host<uint32_t>(bytes, 4);
  config.flags = host<uint32_t>(bytes, 8);
  if (config.size > kConfigBytesMax) return bad(VhostUserFault::bad_count);
  if (bytes.size() < config.bytes()) return bad(VhostUserFault::bad_count);
  std::ranges::copy(bytes.subspan(kFixedBytes, config.size), config.content.begin());
  return config;
}

void ConfigSpace::emit(MutableBytes to) const noexcept {
  NB_ASSERT(size <= kConfigBytesMax);
  NB_ASSERT(to.size() >= bytes());
  put<uint32_t>(to, 0, offset);
  put<uint32_t>(to, 4, size);
  put<uint32_t>(to, 8, flags);
  std::ranges::copy(Bytes(content).first(size), to.begin() + kFixedBytes);
}

VhostUserResult<LogBase> LogBase::parse(Bytes bytes) noexcept {
  if (bytes.size() != kBytes) return bad(VhostUserFault::bad_size);
  return LogBase{.bytes = host<uint64_t>(bytes, 0), .offset = host<uint64_t>(bytes, 8)};
}

void LogBase::emit(MutableBytes to) const noexcept {
  put<uint64_t>(to, 0, bytes);
  put<uint64_t>(to, 8, offset);
}

}  // namespace nobounce::wire
