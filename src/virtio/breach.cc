#include "virtio/breach.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace nobounce::virtio {
namespace {

struct Text {
  const char* name;
  const char* sentence;
};

constexpr std::array<Text, kBreaches> kTexts{{
    {"none", "nothing is wrong"},
    {"used_index", "the device's used index is beyond what it was given"},
    {"id_range", "the device completed a descriptor that does not exist"},
    {"id_not_head", "the device completed a descriptor inside a chain"},
    {"id_not_posted", "the device completed a descriptor that it does not have"},
    {"length", "the device reported more bytes than the buffer holds"},
    {"device_gone", "the device is gone"},
    {"control_protocol", "the device broke the control protocol"},
    {"region_fault", "memory of the shared region was taken away"},
}};

const Text& text(Breach breach) noexcept {
  const auto index = static_cast<size_t>(breach);
  NB_ASSERT(index < kBreaches);
  return kTexts[index];
}

}  // namespace

const char* name(Breach breach) noexcept { return text(breach).name; }
const char* describe(Breach breach) noexcept { return text(breach).sentence; }

BreachLatch::BreachLatch(std::string_view device, CounterRegistry& counters, const char* when_gone)
    : when_gone_(when_gone) {
  const size_t size = std::min(device.size(), device_.size() - 1);
  std::copy_n(device.begin(), size, device_.begin());
  for (size_t i = 1; i < kBreaches; ++i) {
    counted_[i] = counters.counter(fmt::format("{}.broken.{}", device, kTexts[i].name));
  }
}

const char* BreachLatch::reason() const noexcept {
  const Breach first = breach();
  if (first == Breach::none) return nullptr;
  const char* detail = detail_.load(std::memory_order_relaxed);
  return detail != nullptr ? detail : describe(first);
}

void BreachLatch::latch(Breach breach, uint16_t queue, const char* detail) noexcept {
  NB_ASSERT(breach != Breach::none);
  counted_[static_cast<size_t>(breach)].add();
  Breach expected = Breach::none;
  if (!first_.compare_exchange_strong(expected, breach, std::memory_order_acq_rel)) return;
  detail_.store(detail, std::memory_order_relaxed);
  std::array<char, 200> line;
  const auto end =
      fmt::format_to_n(line.data(), line.size(), "{}, virtqueue {}: {}: {}", device_.data(), queue,
                       reason(), breach == Breach::device_gone ? when_gone_ : "stopped");
  log_warning(std::string_view(line.data(), std::min(end.size, line.size())));
}

}  // namespace nobounce::virtio
