#include "swiotlb/quota.hpp"

#include <algorithm>

namespace nobounce {
namespace {

constexpr uint64_t kBounceOne = uint64_t{1} << 32;

[[nodiscard]] constexpr uint64_t blocks_of(uint64_t receive) noexcept {
  return receive & 0xffffffff;
}
[[nodiscard]] constexpr uint64_t bounces_of(uint64_t receive) noexcept { return receive >> 32; }
[[nodiscard]] constexpr uint64_t total_of(uint64_t receive) noexcept {
  return blocks_of(receive) + bounces_of(receive);
}

// A wish is for a few blocks beyond the one that failed, and has an end.
constexpr uint32_t kWishFactor = 8;
constexpr uint32_t kWishMax = 1024;

}  // namespace

Result<void> Quota::check(const NocopyQuotas& quotas) {
  const auto refuse = [](const char* cause, const char* hint) {
    return fail(std::errc::invalid_argument, "set the nocopy quotas", cause, hint);
  };
  if (quotas.tx_percent > kNocopyPercentMax || quotas.rx_percent > kNocopyPercentMax) {
    return refuse("a percentage is above 90", "give 0 (off) to 90 for each direction");
  }
  if (quotas.tx_percent + quotas.rx_percent > kNocopyPercentMax) {
    return refuse("transmit and receive together are above 90 percent",
                  "10 percent of the pool always stay for ordinary bounces: lower one of them");
  }
  if (quotas.tx_reserve_percent > kNocopyPercentMax) {
    return refuse("the transmit reserve is above 90 percent", "give 0 to 90");
  }
  return {};
}

void Quota::store(const NocopyQuotas& quotas) noexcept {
  percents_.store(quotas.tx_percent | quotas.rx_percent << 8 | quotas.tx_reserve_percent << 16,
                  std::memory_order_relaxed);
}

NocopyQuotas Quota::get() const noexcept {
  const uint32_t percents = percents_.load(std::memory_order_relaxed);
  return {.tx_percent = percents & 0xff,
          .rx_percent = percents >> 8 & 0xff,
          .tx_reserve_percent = percents >> 16 & 0xff};
}

uint64_t Quota::budget(BlockUse use) const noexcept {
  const NocopyQuotas quotas = get();
  return share(use == BlockUse::transmit ? quotas.tx_percent : quotas.rx_percent);
}

uint64_t Quota::receive_limit() const noexcept {
  // What transmit may lend is not receive's to take: else both together could leave no slot for the
  // bounce that the head of the transmit queue waits for (NC-8). Rounded down for receive, so that
  // what is kept from it is never less than promised.
  const NocopyQuotas quotas = get();
  return share(kNocopyPercentMax - std::max(quotas.tx_reserve_percent, quotas.tx_percent));
}

uint64_t Quota::lent(BlockUse use) const noexcept {
  return use == BlockUse::transmit ? transmit_lent_.load(std::memory_order_relaxed)
                                   : blocks_of(receive_.load(std::memory_order_relaxed));
}

uint64_t Quota::receive_bounces() const noexcept {
  return bounces_of(receive_.load(std::memory_order_relaxed));
}

Refusal Quota::reserve(BlockUse use, uint32_t slots) noexcept {
  const uint64_t limit = budget(use);
  if (limit == 0) return Refusal::off;
  if (use == BlockUse::transmit) {
    uint64_t lent = transmit_lent_.load(std::memory_order_relaxed);
    do {
      if (lent + slots > limit) return Refusal::budget;
    } while (!transmit_lent_.compare_exchange_weak(lent, lent + slots, std::memory_order_relaxed));
    return Refusal::none;
  }
  const uint64_t total_limit = receive_limit();
  uint64_t receive = receive_.load(std::memory_order_relaxed);
  do {
    if (blocks_of(receive) + slots > limit) return Refusal::budget;
    if (total_of(receive) + slots > total_limit) return Refusal::share;
  } while (!receive_.compare_exchange_weak(receive, receive + slots, std::memory_order_relaxed));
  return Refusal::none;
}

void Quota::give_back(BlockUse use, uint32_t slots) noexcept {
  if (use == BlockUse::transmit) {
    const uint64_t before = transmit_lent_.fetch_sub(slots, std::memory_order_relaxed);
    NB_ASSERT(before >= slots);
    return;
  }
  const uint64_t before = receive_.fetch_sub(slots, std::memory_order_relaxed);
  NB_ASSERT(blocks_of(before) >= slots);
  wish_less(slots);
}

bool Quota::reserve_receive_bounce(uint32_t slots) noexcept {
  const uint64_t total_limit = receive_limit();
  uint64_t receive = receive_.load(std::memory_order_relaxed);
  do {
    if (total_of(receive) + slots > total_limit) return false;
  } while (!receive_.compare_exchange_weak(receive, receive + slots * kBounceOne,
                                           std::memory_order_relaxed));
  return true;
}

void Quota::give_back_receive_bounce(uint32_t slots) noexcept {
  const uint64_t before = receive_.fetch_sub(slots * kBounceOne, std::memory_order_relaxed);
  NB_ASSERT(bounces_of(before) >= slots);
  wish_less(slots);
}

void Quota::note_transmit_short(uint32_t slots) noexcept {
  wish_slots_.store(std::min(slots * kWishFactor, kWishMax), std::memory_order_relaxed);
}

void Quota::wish_less(uint32_t slots) noexcept {
  uint32_t wish = wish_slots_.load(std::memory_order_relaxed);
  while (wish != 0 && !wish_slots_.compare_exchange_weak(wish, wish - std::min(wish, slots),
                                                         std::memory_order_relaxed)) {
  }
}

}  // namespace nobounce
