// The latch of a broken device: the first breach of the rules wins, is counted by its reason and
// logged once. Nothing un-latches it.
//
// Threads: any. Cost: is_broken() one relaxed load.
// Spec: threat-model.md section 4 (V2, V3), TM-33, TM-71, TM-84; C134, C136.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/counters.hpp"

namespace nobounce::virtio {

enum class Breach : uint8_t {
  none,
  used_index,        // used.idx beyond what is outstanding (or moved back)
  id_range,          // used id not below the queue size
  id_not_head,       // used id is inside a chain
  id_not_posted,     // used id is not outstanding: never posted, or completed twice
  length,            // more bytes reported than were posted
  device_gone,       // the transport lost the device: it closed the connection, or died
  control_protocol,  // the device broke the control protocol
  region_fault,      // memory of the shared region was taken away
};
inline constexpr size_t kBreaches = 9;

// "id_not_posted", for counters.
[[nodiscard]] const char* name(Breach breach) noexcept;
// A sentence for people.
[[nodiscard]] const char* describe(Breach breach) noexcept;

class BreachLatch {
 public:
  // Counters: "<device>.broken.<reason>". `when_gone` ends the log line of a device that is gone: what
  // happens next; static life.
  BreachLatch(std::string_view device, CounterRegistry& counters,
              const char* when_gone = "stopped");

  [[nodiscard]] bool is_broken() const noexcept {
    return first_.load(std::memory_order_relaxed) != Breach::none;
  }
  [[nodiscard]] Breach breach() const noexcept { return first_.load(std::memory_order_acquire); }
  // Null while nothing is latched.
  [[nodiscard]] const char* reason() const noexcept;

  // `detail` has static life (the transport's own words), or is null. Later breaches count only.
  void latch(Breach breach, uint16_t queue, const char* detail = nullptr) noexcept;

 private:
  std::array<char, 24> device_{};
  const char* when_gone_;
  std::atomic<Breach> first_{Breach::none};
  std::atomic<const char*> detail_{nullptr};
  std::array<SharedCounter, kBreaches> counted_;
};

}  // namespace nobounce::virtio
