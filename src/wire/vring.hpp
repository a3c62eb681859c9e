// Split virtqueue: where each field lies in its part, and the feature bits that both ends know.
//
// Constants only. The parts are shared memory: reach them with SharedBytes::load_le / store_le.
// Every index free-runs modulo 65536; slot = index modulo queue size (a power of two <= 32768).
// Spec: virtio.md 1, 3, 4, 7.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nobounce::wire {

inline constexpr uint16_t kQueueSizeMax = 32768;

// ---- descriptor table: 16 bytes an entry, aligned 16 ----
inline constexpr size_t kDescriptorBytes = 16;
inline constexpr size_t kDescriptorAlign = 16;
inline constexpr size_t kDescriptorAddress = 0;  // u64
inline constexpr size_t kDescriptorLength = 8;   // u32
inline constexpr size_t kDescriptorFlags = 12;   // u16
inline constexpr size_t kDescriptorNext = 14;    // u16

inline constexpr uint16_t kDescriptorHasNext = 1;
inline constexpr uint16_t kDescriptorWrite = 2;  // the device writes
inline constexpr uint16_t kDescriptorIndirect = 4;

[[nodiscard]] constexpr size_t descriptor_table_bytes(size_t queue_size) noexcept {
  return kDescriptorBytes * queue_size;
}

// ---- avail ring (driver -> device), aligned 2 ----
inline constexpr size_t kAvailAlign = 2;
inline constexpr size_t kAvailFlags = 0;  // u16
inline constexpr size_t kAvailIndex = 2;  // u16
inline constexpr size_t kAvailRing = 4;   // u16 an entry
inline constexpr uint16_t kAvailNoInterrupt = 1;

[[nodiscard]] constexpr size_t avail_entry(size_t slot) noexcept { return kAvailRing + 2 * slot; }
// u16 at the end of the ring: the driver wants to be told after this completion.
[[nodiscard]] constexpr size_t avail_used_event(size_t queue_size) noexcept {
  return kAvailRing + 2 * queue_size;
}
[[nodiscard]] constexpr size_t avail_bytes(size_t queue_size) noexcept {
  return 6 + 2 * queue_size;
}

// ---- used ring (device -> driver), aligned 4 ----
// The driver lays it at 4 modulo 8: elements are then 8-aligned and taken with one load (TM-8).
inline constexpr size_t kUsedAlign = 4;
inline constexpr size_t kUsedFlags = 0;  // u16
inline constexpr size_t kUsedIndex = 2;  // u16
inline constexpr size_t kUsedRing = 4;   // {id u32, len u32} an entry
inline constexpr size_t kUsedEntryBytes = 8;
inline constexpr uint16_t kUsedNoNotify = 1;

[[nodiscard]] constexpr size_t used_entry(size_t slot) noexcept {
  return kUsedRing + kUsedEntryBytes * slot;
}
// u16 at the end of the ring: the device wants to be told after this publication.
[[nodiscard]] constexpr size_t used_avail_event(size_t queue_size) noexcept {
  return kUsedRing + kUsedEntryBytes * queue_size;
}
[[nodiscard]] constexpr size_t used_bytes(size_t queue_size) noexcept {
  return 6 + kUsedEntryBytes * queue_size;
}

// An index moved from `before` to `now`: does the other side, which asked to be told after `event`,
// want a notification? (VIRTIO 1.2 2.7.10)
[[nodiscard]] constexpr bool needs_event(uint16_t event, uint16_t now, uint16_t before) noexcept {
  return static_cast<uint16_t>(now - event - 1) < static_cast<uint16_t>(now - before);
}

// ---- feature bits ----
[[nodiscard]] constexpr uint64_t feature(unsigned bit) noexcept { return uint64_t{1} << bit; }

inline constexpr uint64_t kNetCsum = feature(0);
inline constexpr uint64_t kNetGuestCsum = feature(1);
inline constexpr uint64_t kNetCtrlGuestOffloads = feature(2);
inline constexpr uint64_t kNetMtu = feature(3);
inline constexpr uint64_t kNetMac = feature(5);
inline constexpr uint64_t kNetGuestTso4 = feature(7);
inline constexpr uint64_t kNetGuestTso6 = feature(8);
inline constexpr uint64_t kNetGuestEcn = feature(9);
inline constexpr uint64_t kNetGuestUfo = feature(10);
inline constexpr uint64_t kNetHostTso4 = feature(11);
inline constexpr uint64_t kNetHostTso6 = feature(12);
inline constexpr uint64_t kNetHostEcn = feature(13);
inline constexpr uint64_t kNetHostUfo = feature(14);
inline constexpr uint64_t kNetMrgRxbuf = feature(15);
inline constexpr uint64_t kNetStatus = feature(16);
inline constexpr uint64_t kNetCtrlVq = feature(17);
inline constexpr uint64_t kNetGuestAnnounce = feature(21);
inline constexpr uint64_t kNetMq = feature(22);
inline constexpr uint64_t kNetCtrlMacAddr = feature(23);
inline constexpr uint64_t kVhostLogAll = feature(26);
inline constexpr uint64_t kRingIndirectDesc = feature(28);
inline constexpr uint64_t kRingEventIdx = feature(29);
inline constexpr uint64_t kVhostUserProtocolFeatures = feature(30);  // never a virtio bit
inline constexpr uint64_t kVersion1 = feature(32);
inline constexpr uint64_t kAccessPlatform = feature(33);
inline constexpr uint64_t kRingPacked = feature(34);
inline constexpr uint64_t kInOrder = feature(35);

// ---- device status ----
inline constexpr uint8_t kStatusAcknowledge = 1;
inline constexpr uint8_t kStatusDriver = 2;
inline constexpr uint8_t kStatusDriverOk = 4;
inline constexpr uint8_t kStatusFeaturesOk = 8;
inline constexpr uint8_t kStatusNeedsReset = 64;
inline constexpr uint8_t kStatusFailed = 128;

// ---- net configuration space ----
inline constexpr size_t kNetConfigMac = 0;       // 6 bytes
inline constexpr size_t kNetConfigStatus = 6;    // u16
inline constexpr size_t kNetConfigMaxPairs = 8;  // u16
inline constexpr size_t kNetConfigMtu = 10;      // u16
inline constexpr size_t kNetConfigBytes = 12;    // as far as we know it
inline constexpr uint16_t kNetLinkUp = 1;

}  // namespace nobounce::wire
