#include "support/fake_device.hpp"

#include <sys/eventfd.h>

#include <algorithm>

#include "base/barrier.hpp"
#include "base/error.hpp"

namespace nobounce::test {

uint32_t FakeChain::writable() const {
  uint32_t sum = 0;
  for (const FakeDescriptor& part : parts) {
    if ((part.flags & wire::kDescriptorWrite) != 0) sum += part.length;
  }
  return sum;
}

// The Transport that the driver owns; all state is the FakeDevice's.
class FakeDevice::Shim final : public virtio::Transport {
 public:
  explicit Shim(FakeDevice& device) : device_(device) {}
  ~Shim() override { stop(); }

  Result<uint64_t> read_features() override {
    ++device_.feature_reads;
    if (auto step = check("read_features"); !step) return std::unexpected(step.error());
    return device_.offer;
  }
  Result<void> accept_features(uint64_t features) override {
    device_.accepted = features;
    return check("accept_features");
  }
  Result<virtio::NetConfig> read_config() override {
    if (auto step = check("read_config"); !step) return std::unexpected(step.error());
    return device_.config;
  }
  Result<void> share(SharedRegion& region) override {
    device_.region_ = &region;
    return check("share");
  }
  Result<void> set_up_queue(const virtio::QueueLayout& layout) override {
    if (auto step = check("set_up_queue"); !step) return step;
    device_.queues_[layout.index] = Queue{.layout = layout};
    const auto pair = static_cast<uint16_t>(layout.index / 2);
    UniqueFd& call = device_.calls_[pair];
    if (!call.is_open()) call.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return {};
  }
  Result<void> start() override {
    device_.started = true;
    return check("start");
  }
  void stop() noexcept override {
    if (std::exchange(stopped_, true)) return;
    ++device_.stops;
    device_.started = false;
    device_.on_stop();
  }
  void notify(uint16_t queue) noexcept override {
    ++device_.queues_.at(queue).kicks;
    if (device_.on_kick) device_.on_kick(queue);
  }
  [[nodiscard]] int call_fd(uint16_t queue) const noexcept override {
    return device_.calls_.at(static_cast<uint16_t>(queue / 2)).get();
  }
  [[nodiscard]] const char* failure() noexcept override { return device_.gone; }
  [[nodiscard]] bool has_disconnected() const noexcept override {
    return device_.gone != nullptr && !device_.gone_by_breach;
  }
  [[nodiscard]] int failure_fd() const noexcept override { return -1; }

 private:
  Result<void> check(const char* step) const {
    if (device_.refuse != step) return {};
    return fail(std::errc::io_error, step, "the test says no");
  }

  FakeDevice& device_;
  bool stopped_ = false;
};

FakeDevice::FakeDevice() = default;

std::unique_ptr<virtio::Transport> FakeDevice::transport() { return std::make_unique<Shim>(*this); }

// ---- rings ------------------------------------------------------------------------------------

uint16_t FakeDevice::available(uint16_t index) {
  Queue& q = queue(index);
  const auto now = q.layout.driver_area.load_le<uint16_t>(wire::kAvailIndex, LoadOrder::acquire);
  return static_cast<uint16_t>(now - q.avail);
}

std::optional<FakeChain> FakeDevice::pop(uint16_t index) {
  if (available(index) == 0) return std::nullopt;
  Queue& q = queue(index);
  const uint16_t size = q.layout.size;
  FakeChain chain;
  chain.head = q.layout.driver_area.load_le<uint16_t>(wire::avail_entry(q.avail % size));
  ++q.avail;
  uint16_t at = chain.head;
  while (chain.parts.size() < size) {
    const size_t base = wire::kDescriptorBytes * (at % size);
    const FakeDescriptor part{
        .address = q.layout.descriptors.load_le<uint64_t>(base + wire::kDescriptorAddress),
        .length = q.layout.descriptors.load_le<uint32_t>(base + wire::kDescriptorLength),
        .flags = q.layout.descriptors.load_le<uint16_t>(base + wire::kDescriptorFlags),
        .next = q.layout.descriptors.load_le<uint16_t>(base + wire::kDescriptorNext)};
    chain.parts.push_back(part);
    if ((part.flags & wire::kDescriptorHasNext) == 0) break;
    at = part.next;
  }
  // Asks to be told of the next one (EVENT_IDX; harmless without).
  q.layout.device_area.store_le<uint16_t>(wire::used_avail_event(size), q.avail);
  return chain;
}

void FakeDevice::write_used(uint16_t index, uint16_t at, uint32_t id, uint32_t length) {
  Queue& q = queue(index);
  q.layout.device_area.store_le<uint64_t>(wire::used_entry(at % q.layout.size),
                                          uint64_t{length} << 32 | id);
}

void FakeDevice::write_used_index(uint16_t index, uint16_t value) {
  queue(index).layout.device_area.store_le<uint16_t>(wire::kUsedIndex, value, StoreOrder::release);
}

void FakeDevice::publish_used(uint16_t index, uint16_t count) {
  Queue& q = queue(index);
  const uint16_t before = q.used;
  q.used = static_cast<uint16_t>(q.used + count);
  write_used_index(index, q.used);
  full_fence();
  const auto event = q.layout.driver_area.load_le<uint16_t>(wire::avail_used_event(q.layout.size));
  const bool wanted = (accepted & wire::kRingEventIdx) != 0
                          ? wire::needs_event(event, q.used, before)
                          : (q.layout.driver_area.load_le<uint16_t>(wire::kAvailFlags) &
                             wire::kAvailNoInterrupt) == 0;
  if (wanted) signal(index);
}

void FakeDevice::complete(uint16_t index, uint32_t id, uint32_t length) {
  write_used(index, queue(index).used, id, length);
  publish_used(index, 1);
}

void FakeDevice::signal(uint16_t index) {
  if (queue(index).interrupts_muted) return;
  const uint64_t one = 1;
  (void)!::write(calls_.at(static_cast<uint16_t>(index / 2)).get(), &one, sizeof one);
}

// ---- frames -----------------------------------------------------------------------------------

SentFrame FakeDevice::read_chain(const FakeChain& chain) {
  std::vector<std::byte> all;
  for (const FakeDescriptor& part : chain.parts) {
    const auto piece = read(part.address, part.length);
    all.insert(all.end(), piece.begin(), piece.end());
  }
  SentFrame frame;
  frame.header = wire::VirtioNetHeader::parse(all).value();
  frame.bytes.assign(all.begin() + wire::kNetHeaderBytes, all.end());
  frame.descriptors = chain.parts.size();
  return frame;
}

std::optional<SentFrame> FakeDevice::take_sent(uint16_t index, uint32_t used_length) {
  const auto chain = pop(index);
  if (!chain) return std::nullopt;
  SentFrame frame = read_chain(*chain);
  complete(index, chain->head, used_length);
  return frame;
}

bool FakeDevice::deliver(Bytes frame, wire::VirtioNetHeader header, uint16_t index, size_t piece) {
  return deliver_bytes(frame, header, index, piece, true);
}

bool FakeDevice::deliver_raw(Bytes frame, const wire::VirtioNetHeader& header, uint16_t index,
                             size_t piece) {
  return deliver_bytes(frame, header, index, piece, false);
}

bool FakeDevice::deliver_bytes(Bytes frame, const wire::VirtioNetHeader& header, uint16_t index,
                               size_t piece, bool count_buffers) {
  std::vector<std::byte> all(wire::kNetHeaderBytes + frame.size());
  header.emit(all);
  std::ranges::copy(frame, all.begin() + wire::kNetHeaderBytes);

  Queue& q = queue(index);
  std::vector<FakeChain> chains;
  size_t placed = 0;
  const auto size_in = [&](const FakeChain& chain) {
    const size_t most = piece == 0 ? chain.writable() : std::min<size_t>(piece, chain.writable());
    // The first buffer has the whole header and a byte of the frame.
    return std::min(all.size() - placed,
                    placed == 0 ? std::max(most, wire::kNetHeaderBytes + 1) : most);
  };
  if (available(index) == 0) return false;
  while (placed < all.size()) {
    const auto chain = pop(index);
    if (!chain) {  // not enough: give the chains back
      q.avail = static_cast<uint16_t>(q.avail - chains.size());
      return false;
    }
    chains.push_back(*chain);
    placed += size_in(*chain);
  }
  if (count_buffers) {
    wire::VirtioNetHeader counted = header;
    counted.num_buffers = static_cast<uint16_t>(chains.size());
    counted.emit(all);
  }
  placed = 0;
  uint16_t written = 0;
  for (const FakeChain& chain : chains) {
    const size_t size = size_in(chain);
    write(chain.parts[0].address, Bytes(all).subspan(placed, size));
    write_used(index, static_cast<uint16_t>(q.used + written++), chain.head,
               static_cast<uint32_t>(size));
    placed += size;
  }
  publish_used(index, written);
  return true;
}

// ---- memory -----------------------------------------------------------------------------------

bool FakeDevice::reaches(uint64_t iova, size_t size) const {
  const uint64_t base = region_->iova_base();
  return iova >= base && iova - base <= region_->size() && size <= region_->size() - (iova - base);
}

SharedBytes FakeDevice::at(uint64_t iova, size_t size) const {
  NB_ASSERT(reaches(iova, size));
  return region_->bytes().sub(iova - region_->iova_base(), size);
}

std::vector<std::byte> FakeDevice::read(uint64_t iova, size_t size) const {
  if (!reaches(iova, size)) return std::vector<std::byte>(std::min<size_t>(size, kPageSize));
  std::vector<std::byte> bytes(size);
  at(iova, size).copy_out(0, bytes);
  return bytes;
}

void FakeDevice::write(uint64_t iova, Bytes bytes) const {
  if (reaches(iova, bytes.size())) at(iova, bytes.size()).copy_in(0, bytes);
}

}  // namespace nobounce::test
