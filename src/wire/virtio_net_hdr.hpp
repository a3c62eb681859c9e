// virtio_net_hdr of VERSION_1: 12 bytes in front of every frame, both ways (virtio.md 8).
//
// parse() takes a private copy and reads every byte once; it judges nothing but the length: what a
// field may say depends on the negotiated features and is the driver's (or device's) to check.
// emit() writes all 12 bytes (TM-43).
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"

namespace nobounce::wire {

inline constexpr size_t kNetHeaderBytes = 12;

inline constexpr uint8_t kNetNeedsCsum = 1;
inline constexpr uint8_t kNetDataValid = 2;
inline constexpr uint8_t kNetRscInfo = 4;

inline constexpr uint8_t kNetGsoNone = 0;
inline constexpr uint8_t kNetGsoTcp4 = 1;
inline constexpr uint8_t kNetGsoUfo = 3;
inline constexpr uint8_t kNetGsoTcp6 = 4;
inline constexpr uint8_t kNetGsoUso = 5;
inline constexpr uint8_t kNetGsoEcn = 0x80;  // a flag beside the type

struct VirtioNetHeader {
  uint8_t flags = 0;
  uint8_t gso_type = kNetGsoNone;
  uint16_t hdr_len = 0;
  uint16_t gso_size = 0;
  uint16_t csum_start = 0;
  uint16_t csum_offset = 0;
  uint16_t num_buffers = 0;  // receive: >= 1; transmit: 0

  // Nothing when there are fewer than 12 bytes.
  [[nodiscard]] static std::optional<VirtioNetHeader> parse(Bytes bytes) noexcept;
  // Asserts room for 12 bytes.
  void emit(MutableBytes to) const noexcept;

  friend bool operator==(const VirtioNetHeader&, const VirtioNetHeader&) = default;
};

}  // namespace nobounce::wire
