#include "netdev/net_device.hpp"

#include <mutex>
#include <vector>

namespace nobounce {
namespace {

// Devices come and go rarely; look-ups by id are for hints, off the data path.
struct Registry {
  struct Entry {
    NetDevice* device = nullptr;
    uint32_t generation = 0;
  };
  std::mutex lock;
  std::vector<Entry> entries;
};

// Never destroyed: a stack in static storage may go after it.
Registry& registry() noexcept {
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace

NetDevice::NetDevice() {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  uint32_t index = 0;
  while (index < all.entries.size() && all.entries[index].device != nullptr) ++index;
  if (index == all.entries.size()) all.entries.emplace_back();
  Registry::Entry& entry = all.entries[index];
  entry.device = this;
  ++entry.generation;
  id_ = {index, entry.generation};
}

NetDevice::~NetDevice() {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  all.entries[id_.index].device = nullptr;
}

NetDevice* find_device(DeviceId id) noexcept {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  if (id.generation == 0 || id.index >= all.entries.size()) return nullptr;
  const Registry::Entry& entry = all.entries[id.index];
  return entry.generation == id.generation ? entry.device : nullptr;
}

}  // namespace nobounce
