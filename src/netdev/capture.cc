#include "netdev/capture.hpp"

#include <algorithm>
#include <chrono>

namespace nobounce {
namespace {

uint64_t wall_clock_ns() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

Result<std::unique_ptr<CaptureDevice>> CaptureDevice::open(std::unique_ptr<NetDevice> inner,
                                                           const CaptureOptions& options,
                                                           Clock& clock,
                                                           CounterRegistry& counters) {
  NB_ASSERT(inner != nullptr);
  auto writer = CaptureWriter::open(
      options.path, std::max(options.queue_bytes, pcapng::kHeadersSizeMax), counters);
  if (!writer) return std::unexpected(writer.error());
  return std::unique_ptr<CaptureDevice>(
      new CaptureDevice(std::move(inner), std::move(*writer), options, clock, counters));
}

CaptureDevice::CaptureDevice(std::unique_ptr<NetDevice> inner,
                             std::unique_ptr<CaptureWriter> writer, const CaptureOptions& options,
                             Clock& clock, CounterRegistry& counters)
    : inner_(std::move(inner)),
      writer_(std::move(writer)),
      clock_(clock),
      wall_offset_ns_(wall_clock_ns() - clock.now_ns()),
      snap_length_(std::clamp<uint32_t>(options.snap_length, 1, kPacketBytesMax)),
      staging_(inner_->queue_pairs()),
      frames_(counters.counter("capture.frames")),
      dropped_(counters.counter("capture.dropped")),
      bytes_(counters.counter("capture.bytes")) {
  // Room for a burst of the largest blocks; pages come with use.
  for (Staging& staging : staging_) {
    staging.bytes =
        std::make_unique_for_overwrite<std::byte[]>(kBurstMax * pcapng::packet_size(snap_length_));
  }
  std::array<std::byte, pcapng::kHeadersSizeMax> headers;
  const size_t size = pcapng::write_headers(headers, "nobounce " NOBOUNCE_VERSION, inner_->name(),
                                            inner_->mac(), snap_length_);
  const bool is_queued = writer_->append(Bytes(headers).first(size));
  NB_ASSERT(is_queued);
}

CaptureDevice::~CaptureDevice() {
  writer_->drain();
  std::array<std::byte, pcapng::kStatisticsSize> bytes;
  const size_t size = pcapng::write_statistics(
      bytes, wall_time_ns(), frames_.value() + dropped_.value(), dropped_.value());
  static_cast<void>(writer_->append(Bytes(bytes).first(size)));  // false only after a write error
}

void CaptureDevice::stage(Staging& staging, size_t index, const Packet& packet,
                          pcapng::Direction direction, uint16_t queue) noexcept {
  const size_t begin = index == 0 ? 0 : staging.ends[index - 1];
  const size_t captured = std::min<size_t>(packet.size(), snap_length_);
  const size_t size = pcapng::packet_size(captured);
  const MutableBytes data =
      pcapng::begin_packet({staging.bytes.get() + begin, size}, captured,
                           {.time_ns = wall_time_ns(),
                            .original_size = static_cast<uint32_t>(packet.size()),
                            .direction = direction,
                            .queue = queue});
  packet.read(0, data);
  staging.ends[index] = begin + size;
}

void CaptureDevice::commit(const Staging& staging, size_t count) noexcept {
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = staging.ends[i];
    if (writer_->append({staging.bytes.get() + begin, end - begin})) {
      frames_.add();
      bytes_.add(end - begin);
    } else {
      dropped_.add();
    }
    begin = end;
  }
}

size_t CaptureDevice::transmit(uint16_t queue, PacketBurst& burst) noexcept {
  Staging& staging = staging_[queue];
  for (size_t i = 0; i < burst.size(); ++i) {
    stage(staging, i, *burst[i], pcapng::Direction::out, queue);
  }
  const size_t left = inner_->transmit(queue, burst);
  commit(staging, left);
  return left;
}

size_t CaptureDevice::receive(uint16_t queue, PacketBurst& burst) noexcept {
  Staging& staging = staging_[queue];
  const size_t before = burst.size();
  const size_t received = inner_->receive(queue, burst);
  NB_ASSERT(before + received == burst.size());
  for (size_t i = 0; i < received; ++i) {
    stage(staging, i, *burst[before + i], pcapng::Direction::in, queue);
  }
  commit(staging, received);
  return received;
}

}  // namespace nobounce
