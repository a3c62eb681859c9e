#include "wire/virtio_net_hdr.hpp"

namespace nobounce::wire {
namespace {

enum Offset : size_t {
  kFlags = 0,
  kGsoType = 1,
  kHdrLen = 2,
  kGsoSize = 4,
  kCsumStart = 6,
  kCsumOffset = 8,
  kNumBuffers = 10,
};

}  // namespace

std::optional<VirtioNetHeader> VirtioNetHeader::parse(Bytes bytes) noexcept {
  if (bytes.size() < kNetHeaderBytes) return std::nullopt;
  return VirtioNetHeader{
      .flags = load_le<uint8_t>(bytes, kFlags),
      .gso_type = load_le<uint8_t>(bytes, kGsoType),
      .hdr_len = load_le<uint16_t>(bytes, kHdrLen),
      .gso_size = load_le<uint16_t>(bytes, kGsoSize),
      .csum_start = load_le<uint16_t>(bytes, kCsumStart),
      .csum_offset = load_le<uint16_t>(bytes, kCsumOffset),
      .num_buffers = load_le<uint16_t>(bytes, kNumBuffers),
  };
}

void VirtioNetHeader::emit(MutableBytes to) const noexcept {
  NB_ASSERT(to.size() >= kNetHeaderBytes);
  store_le<uint8_t>(to, kFlags, flags);
  store_le<uint8_t>(to, kGsoType, gso_type);
  store_le<uint16_t>(to, kHdrLen, hdr_len);
  store_le<uint16_t>(to, kGsoSize, gso_size);
  store_le<uint16_t>(to, kCsumStart, csum_start);
  store_le<uint16_t>(to, kCsumOffset, csum_offset);
  store_le<uint16_t>(to, kNumBuffers, num_buffers);
}

}  // namespace nobounce::wire
