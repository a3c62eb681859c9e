#include "wire/tcp.hpp"

#include <algorithm>

namespace nobounce::wire {
namespace {

constexpr size_t kOptionsSizeMax = kTcpHeaderSizeMax - kTcpHeaderSize;

enum Kind : uint8_t {
  kEnd = 0,
  kNop = 1,
  kMss = 2,
  kWindowScale = 3,
  kSackPermitted = 4,
  kSack = 5,
  kTimestamps = 8,
};

// Appends to a range whose size the caller has computed.
class Writer {
 public:
  explicit Writer(MutableBytes to) noexcept : to_(to) {}
  void put8(uint8_t value) noexcept { put<uint8_t>(value); }
  void put16(uint16_t value) noexcept { put<uint16_t>(value); }
  void put32(uint32_t value) noexcept { put<uint32_t>(value); }
  void nop(size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) put8(kNop);
  }
  [[nodiscard]] size_t at() const noexcept { return at_; }

 private:
  template <class T>
  void put(T value) noexcept {
    store_be<T>(to_, at_, value);
    at_ += sizeof(T);
  }
  MutableBytes to_;
  size_t at_ = 0;
};

size_t sack_blocks_that_fit(const TcpOptions& options, size_t used) noexcept {
  if (used + 4 > kOptionsSizeMax) return 0;
  return std::min<size_t>(options.sack_count, (kOptionsSizeMax - used - 4) / 8);
}

// All but the SACK blocks. sackOK takes the place of the two NOPs before the timestamps.
size_t fixed_size(const TcpOptions& options) noexcept {
  size_t size = 0;
  if (options.mss) size += 4;
  if (options.timestamps) {
    size += kTcpTimestampOptionSize;
  } else if (options.sack_permitted) {
    size += 4;
  }
  if (options.window_scale) size += 4;
  return size;
}

void read_option(TcpOptions& options, uint8_t kind, Bytes body) noexcept {
  switch (kind) {
    case kMss:
      if (body.size() == 2) options.mss = load_be<uint16_t>(body, 0);
      break;
    case kWindowScale:
      if (body.size() == 1) {
        options.window_scale = std::min(load_be<uint8_t>(body, 0), kTcpWindowScaleMax);
      }
      break;
    case kSackPermitted:
      if (body.empty()) options.sack_permitted = true;
      break;
    case kTimestamps:
      if (body.size() == 8) {
        options.timestamps = TcpTimestamps{load_be<uint32_t>(body, 0), load_be<uint32_t>(body, 4)};
      }
      break;
    case kSack:
      if (body.empty() || body.size() % 8 != 0) break;
      options.sack = {};
      options.sack_count = static_cast<uint8_t>(body.size() / 8);  // 40 bytes hold at most 4
      NB_ASSERT(options.sack_count <= kTcpSackBlocksMax);
      for (size_t i = 0; i < options.sack_count; ++i) {
        options.sack[i] = {load_be<uint32_t>(body, i * 8), load_be<uint32_t>(body, i * 8 + 4)};
      }
      break;
    default:
      break;  // skipped by its length
  }
}

}  // namespace

size_t TcpOptions::size() const noexcept {
  const size_t fixed = fixed_size(*this);
  const size_t blocks = sack_blocks_that_fit(*this, fixed);
  return fixed + (blocks == 0 ? 0 : 4 + blocks * 8);
}

void TcpOptions::emit(MutableBytes to) const noexcept {
  const size_t blocks = sack_blocks_that_fit(*this, fixed_size(*this));
  Writer out(to);
  if (mss) {
    out.put8(kMss);
    out.put8(4);
    out.put16(*mss);
  }
  if (sack_permitted) {
    if (!timestamps) out.nop(2);
    out.put8(kSackPermitted);
    out.put8(2);
  } else if (timestamps) {
    out.nop(2);
  }
  if (timestamps) {
    out.put8(kTimestamps);
    out.put8(10);
    out.put32(timestamps->value);
    out.put32(timestamps->echo);
  }
  if (window_scale) {
    out.nop(1);
    out.put8(kWindowScale);
    out.put8(3);
    out.put8(*window_scale);
  }
  if (blocks > 0) {
    out.nop(2);
    out.put8(kSack);
    out.put8(static_cast<uint8_t>(2 + blocks * 8));
    for (size_t i = 0; i < blocks; ++i) {
      out.put32(sack[i].left);
      out.put32(sack[i].right);
    }
  }
  NB_ASSERT(out.at() == size());
  NB_ASSERT(out.at() % 4 == 0);
}

TcpOptions TcpOptions::parse(Bytes bytes) noexcept {
  TcpOptions options;
  bytes = bytes.first(std::min(bytes.size(), kOptionsSizeMax));
  while (!bytes.empty()) {
    const uint8_t kind = load_be<uint8_t>(bytes, 0);
    if (kind == kEnd) break;
    if (kind == kNop) {
      bytes = bytes.subspan(1);
      continue;
    }
    if (bytes.size() < 2) break;
    const size_t length = load_be<uint8_t>(bytes, 1);
    if (length < 2 || length > bytes.size()) break;
    read_option(options, kind, bytes.subspan(2, length - 2));
    bytes = bytes.subspan(length);
  }
  return options;
}

void TcpHeader::emit(MutableBytes to) const noexcept {
  const size_t bytes = size();
  NB_ASSERT(to.size() >= bytes);
  store_be<uint16_t>(to, 0, source_port);
  store_be<uint16_t>(to, 2, destination_port);
  store_be<uint32_t>(to, 4, sequence);
  store_be<uint32_t>(to, 8, acknowledgement);
  store_be<uint8_t>(to, 12, static_cast<uint8_t>(bytes / 4 << 4));
  store_be<uint8_t>(to, 13, flags);
  store_be<uint16_t>(to, 14, window);
  store_be<uint16_t>(to, kTcpChecksumOffset, checksum);
  store_be<uint16_t>(to, 18, urgent_pointer);
  options.emit(to.subspan(kTcpHeaderSize, bytes - kTcpHeaderSize));
}

std::expected<TcpView, HeaderCause> TcpView::parse(Bytes head) noexcept {
  if (head.size() < kTcpHeaderSize) return std::unexpected(HeaderCause::truncated);
  const size_t size = size_t{load_be<uint8_t>(head, 12)} >> 4 << 2;
  if (size < kTcpHeaderSize) return std::unexpected(HeaderCause::bad_header_size);
  if (size > head.size()) return std::unexpected(HeaderCause::truncated);
  return TcpView(head.first(size));
}

TcpHeader TcpView::header() const noexcept {
  return {.source_port = source_port(),
          .destination_port = destination_port(),
          .sequence = sequence(),
          .acknowledgement = acknowledgement(),
          .flags = flags(),
          .window = window(),
          .checksum = checksum(),
          .urgent_pointer = urgent_pointer(),
          .options = options()};
}

}  // namespace nobounce::wire
