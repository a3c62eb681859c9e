// The application's side of a listening socket.
#include "socket/stack_core.hpp"

namespace nobounce {

TcpListener::TcpListener(std::shared_ptr<StackCore> stack, ListenerCore* core) noexcept
    : stack_(std::move(stack)), core_(core) {}
TcpListener::TcpListener(TcpListener&& other) noexcept
    : stack_(std::move(other.stack_)), core_(std::exchange(other.core_, nullptr)) {}
TcpListener& TcpListener::operator=(TcpListener&& other) noexcept {
  if (this != &other) {
    close();
    stack_ = std::move(other.stack_);
    core_ = std::exchange(other.core_, nullptr);
  }
  return *this;
}
TcpListener::~TcpListener() { close(); }

SocketResult<TcpSocket> TcpListener::accept(Timeout timeout) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  ListenerCore& core = *core_;
  const Deadline deadline(core.shard.context().clock, to_ns(timeout));
  for (;;) {
    {
      const std::lock_guard guard(core.receive_lock);
      TcpCore* accepted = nullptr;
      if (core.ready.try_pop(accepted)) return TcpSocket(stack_, accepted);
    }
    if (core.closed.load(std::memory_order_acquire)) {
      return std::unexpected(core.error.load(std::memory_order_relaxed));
    }
    const bool ready = wait_until(core, deadline, [&core]() noexcept {
      return !core.ready.empty() || core.closed.load(std::memory_order_acquire);
    });
    if (!ready) return std::unexpected(std::errc::operation_would_block);
  }
}

void TcpListener::interrupt() noexcept {
  if (core_ != nullptr) core_->fail(std::errc::operation_canceled);
}

void TcpListener::close() noexcept {
  if (core_ == nullptr) return;
  close_core(*std::exchange(core_, nullptr), false);
  stack_.reset();
}

Endpoint TcpListener::local() const noexcept {
  return core_ != nullptr ? core_->local : Endpoint{};
}

}  // namespace nobounce
