#include "socket/echo_board.hpp"

namespace nobounce {

bool EchoBoard::add(EchoWaiter& waiter) noexcept {
  for (EchoWaiter*& entry : waiters_) {
    if (entry == nullptr) {
      entry = &waiter;
      return true;
    }
  }
  return false;
}

void EchoBoard::remove(EchoWaiter& waiter) noexcept {
  for (EchoWaiter*& entry : waiters_) {
    if (entry == &waiter) entry = nullptr;
  }
}

void EchoBoard::finish(EchoWaiter& waiter, std::errc error) noexcept {
  waiter.error = error;
  waiter.finished.store(true, std::memory_order_release);
  waiter.event.signal();
}

void EchoBoard::echo_reply(const IpAddress& from, uint16_t id, uint16_t sequence, uint8_t ttl,
                           size_t bytes) noexcept {
  for (EchoWaiter*& entry : waiters_) {
    if (entry == nullptr || entry->id != id || entry->sequence != sequence) continue;
    if (entry->finished.load(std::memory_order_relaxed)) continue;
    entry->reply = {from, ttl, bytes, context_.now_ns - entry->sent_ns};
    finish(*entry, {});
  }
}

void EchoBoard::echo_error(const ip::IcmpError& error) noexcept {
  for (EchoWaiter*& entry : waiters_) {
    if (entry == nullptr || entry->to != error.destination) continue;
    if (!entry->finished.load(std::memory_order_relaxed)) {
      finish(*entry, std::errc::host_unreachable);
    }
  }
}

}  // namespace nobounce
