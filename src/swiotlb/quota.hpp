// Who may take how much of the pool.
//
//   pool   0 %                                                                        100 %
//   transmit blocks   |<-- tx_percent -->|                        of the whole, charged as taken
//   receive blocks    |<-- rx_percent -->|                        likewise
//   receive in all    |<------ blocks + bounces of receive pages ------>| tx reserve | ordinary 10 % |
//
// Invariants
//  1. Blocks in use of a direction never exceed its budget: reserve() comes before the search and
//     is taken back when that fails (NC-4).
//  2. Receive's blocks and bounces together stay out of the transmit reserve and of the 10 % that is
//     for ordinary bounces (NC-8, NC-9, SW-81).
//  3. Lowering a percentage revokes nothing; the counts stay exact (NC-6).
//
// A transmit that found no room leaves a wish, in slots: receive gives blocks back instead of
// caching them until that many came free or transmit is served again (NC-63). A transmit refused by
// its own budget leaves none: receive's blocks could not help it.
//
// Threads: any. Cost: one compare-and-swap. Spec: NC-1..NC-9, NC-63.
#pragma once

#include <atomic>
#include <cstdint>

#include "swiotlb/swiotlb.hpp"

namespace nobounce {

enum class Refusal : uint8_t { none, off, budget, share, no_fit };
inline constexpr unsigned kRefusals = 5;

class Quota {
 public:
  static constexpr unsigned kNocopyPercentMax = 90;
  static constexpr unsigned kOrdinaryPercent = 100 - kNocopyPercentMax;

  Quota(uint64_t slots, const NocopyQuotas& quotas) noexcept : slots_(slots) { store(quotas); }

  // None when the percentages can be used; else what is wrong with them.
  [[nodiscard]] static Result<void> check(const NocopyQuotas& quotas);
  void set(const NocopyQuotas& quotas) noexcept { store(quotas); }
  [[nodiscard]] NocopyQuotas get() const noexcept;

  [[nodiscard]] Refusal reserve(BlockUse use, uint32_t slots) noexcept;
  void give_back(BlockUse use, uint32_t slots) noexcept;
  [[nodiscard]] bool reserve_receive_bounce(uint32_t slots) noexcept;
  void give_back_receive_bounce(uint32_t slots) noexcept;

  [[nodiscard]] uint64_t lent(BlockUse use) const noexcept;
  [[nodiscard]] uint64_t receive_bounces() const noexcept;
  [[nodiscard]] uint64_t budget(BlockUse use) const noexcept;
  [[nodiscard]] uint64_t receive_limit() const noexcept;

  // Transmit found no room for `slots`.
  void note_transmit_short(uint32_t slots) noexcept;
  void note_transmit_served(uint32_t slots) noexcept { wish_less(slots); }
  [[nodiscard]] bool receive_should_evict() const noexcept {
    return wish_slots_.load(std::memory_order_relaxed) != 0 ||
           lent(BlockUse::receive) > budget(BlockUse::receive);
  }

 private:
  void store(const NocopyQuotas& quotas) noexcept;
  void wish_less(uint32_t slots) noexcept;
  [[nodiscard]] uint64_t share(unsigned percent) const noexcept { return slots_ * percent / 100; }

  const uint64_t slots_;
  std::atomic<uint32_t> percents_{0};  // tx, rx, reserve: a byte each, so that they are read as one
  alignas(64) std::atomic<uint64_t> transmit_lent_{0};
  // Blocks in the low half, bounces in the high one: one word, so that their sum has one bound.
  alignas(64) std::atomic<uint64_t> receive_{0};
  std::atomic<uint32_t> wish_slots_{0};
};

}  // namespace nobounce
