// The application's side of a TCP socket.
#include <algorithm>

#include "base/copies.hpp"
#include "socket/stack_core.hpp"

namespace nobounce {
namespace {

// The window is reported when this much of the buffer was read, so that a stream of small reads
// does not become a stream of submissions.
uint64_t report_threshold(const TcpCore& core) noexcept {
  return std::min<uint64_t>(core.shard.options().connection.receive_buffer / 4, 256 << 10);
}

void report_consumed(TcpCore& core) noexcept {
  core.consumed_reported = core.consumed_bytes.load(std::memory_order_relaxed);
  if (core.consumed_pending.exchange(true, std::memory_order_seq_cst)) return;
  Submission submission;
  submission.op = Submission::Op::consumed;
  submission.socket = &core;
  if (!core.shard.submit(submission)) core.consumed_pending.store(false, std::memory_order_relaxed);
}

// Copies what is there; under receive_lock. Returns the bytes.
size_t take_received(TcpCore& core, CopyLedger& copies, MutableBytes buffer) noexcept {
  size_t taken = 0;
  while (taken < buffer.size()) {
    Extent* extent = core.received.front();
    if (extent == nullptr) break;
    const size_t part = std::min<size_t>(extent->size, buffer.size() - taken);
    page_read(*extent->page, extent->offset, buffer.subspan(taken, part));
    taken += part;
    extent->offset += static_cast<uint32_t>(part);
    extent->size -= static_cast<uint32_t>(part);
    if (extent->size == 0) {
      page_return(*extent->page);
      core.received.pop();
    }
  }
  if (taken == 0) {
    // Likewise for those who do not wait (see recv).
    if (core.backlog_in_tcp.load(std::memory_order_acquire)) report_consumed(core);
    return 0;
  }
  copies.count(CopyKind::receive, taken);
  core.consumed_bytes.fetch_add(taken, std::memory_order_release);
  const uint64_t unreported =
      core.consumed_bytes.load(std::memory_order_relaxed) - core.consumed_reported;
  const bool room_wanted = core.backlog_in_tcp.load(std::memory_order_acquire) &&
                           core.received.size() <= TcpCore::kExtents / 2;
  if (unreported >= report_threshold(core) || room_wanted) report_consumed(core);
  return taken;
}

// Closed, and nothing more will come. tcp/ may still hold what `received` had no room for, also after
// a reset: the stream, or the error, comes behind that (C132).
bool is_over(const TcpCore& core) noexcept {
  return core.closed.load(std::memory_order_acquire) &&
         !core.backlog_in_tcp.load(std::memory_order_acquire);
}

// Why nothing can be read any more; {} while it can.
std::optional<SocketResult<size_t>> end_of_receive(TcpCore& core) noexcept {
  const bool at_end = core.end_of_stream.load(std::memory_order_acquire);
  const bool closed = is_over(core);
  if (!at_end && !closed && !core.receive_shut.load(std::memory_order_relaxed)) return {};
  if (core.receive_shut.load(std::memory_order_relaxed)) return SocketResult<size_t>(0);
  if (!core.received.empty()) return {};  // filled before the flag was set
  const std::errc error = core.error.load(std::memory_order_relaxed);
  if (at_end || !closed || error == std::errc{}) return SocketResult<size_t>(0);
  return SocketResult<size_t>(std::unexpected(error));
}

}  // namespace

TcpSocket::TcpSocket(std::shared_ptr<StackCore> stack, TcpCore* core) noexcept
    : stack_(std::move(stack)), core_(core) {}
TcpSocket::TcpSocket(TcpSocket&& other) noexcept
    : stack_(std::move(other.stack_)), core_(std::exchange(other.core_, nullptr)) {}
TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  if (this != &other) {
    close();
    stack_ = std::move(other.stack_);
    core_ = std::exchange(other.core_, nullptr);
  }
  return *this;
}
TcpSocket::~TcpSocket() { close(); }

void TcpSocket::close() noexcept {
  if (core_ == nullptr) return;
  close_core(*std::exchange(core_, nullptr), false);
  stack_.reset();
}

void TcpSocket::abort() noexcept {
  if (core_ == nullptr) return;
  close_core(*std::exchange(core_, nullptr), true);
  stack_.reset();
}

// ---- send -------------------------------------------------------------------------------------

namespace {

// One piece: from `data` into the socket's block and on its way. Returns the bytes; 0 when the
// stack is down; under send_lock, with send_space >= 1.
SocketResult<size_t> send_piece(TcpCore& core, CopyLedger& copies, Bytes data, More more,
                                const Deadline& deadline) noexcept {
  const auto space = static_cast<size_t>(core.send_space.load(std::memory_order_relaxed));
  const FragCache::Room room = core.frags.reserve(core.shard.frag_source(core.remote.address));
  if (room.page == nullptr) return std::unexpected(std::errc::no_buffer_space);
  const size_t part = std::min({data.size(), space, size_t{room.size}});
  page_write(*room.page, room.offset, data.first(part));
  copies.count(CopyKind::send, part);
  core.frags.commit(static_cast<uint32_t>(part));
  Submission submission;
  submission.op = Submission::Op::send;
  submission.more = part < data.size() ? More::yes : more;
  submission.sequence = core.submitted_sequence;
  submission.socket = &core;
  submission.page = room.page;
  submission.offset = room.offset;
  submission.size = static_cast<uint32_t>(part);
  core.send_space.fetch_sub(static_cast<int64_t>(part), std::memory_order_relaxed);
  const bool may_wait = !core.nonblocking.load(std::memory_order_relaxed);
  if (!core.shard.submit(submission, may_wait ? deadline.left_ns() : 0)) {
    page_put(*room.page);
    core.send_space.fetch_add(static_cast<int64_t>(part), std::memory_order_relaxed);
    return std::unexpected(core.shard.why_not());
  }
  ++core.submitted_sequence;
  return part;
}

// Why nothing can be sent any more; {} while it can.
std::optional<std::errc> end_of_send(TcpCore& core) noexcept {
  if (core.send_shut.load(std::memory_order_relaxed)) return std::errc::broken_pipe;
  if (!core.closed.load(std::memory_order_acquire)) return {};
  const std::errc error = core.error.load(std::memory_order_relaxed);
  return error == std::errc{} ? std::errc::broken_pipe : error;
}

// A connection that was only started: under send_lock. False: time-out or non-blocking.
bool wait_for_connection(TcpCore& core, const Deadline& deadline) noexcept {
  if (core.nonblocking.load(std::memory_order_relaxed)) return false;
  return wait_until(core, deadline, [&core]() noexcept {
    return core.connected.load(std::memory_order_acquire) ||
           core.closed.load(std::memory_order_acquire);
  });
}

// Waits for room in the send buffer; under send_lock. False: time-out or non-blocking.
bool wait_for_room(TcpCore& core, const Deadline& deadline) noexcept {
  const auto has_room = [&core]() noexcept {
    return core.closed.load(std::memory_order_acquire) ||
           core.send_shut.load(std::memory_order_relaxed) || core.has_send_room();
  };
  core.wants_send_room.store(true, std::memory_order_seq_cst);
  // Looked at again after the wish is known: an acknowledgement in between is not missed.
  if (core.send_space.load(std::memory_order_seq_cst) > 0) return true;
  if (core.nonblocking.load(std::memory_order_relaxed)) return false;
  return wait_until(core, deadline, has_room);
}

}  // namespace

SocketResult<size_t> TcpSocket::send(std::span<const std::byte> data, More more) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  TcpCore& core = *core_;
  const std::lock_guard guard(core.send_lock);
  const Deadline deadline(core.shard.context().clock,
                          core.send_timeout_ns.load(std::memory_order_relaxed));
  size_t sent = 0;
  do {
    if (const auto error = end_of_send(core)) {
      if (sent > 0) break;
      return std::unexpected(*error);
    }
    if (sent == data.size()) break;
    if (!core.connected.load(std::memory_order_acquire)) {
      if (!wait_for_connection(core, deadline)) {
        return std::unexpected(std::errc::operation_would_block);
      }
      continue;
    }
    if (core.send_space.load(std::memory_order_acquire) <= 0) {
      if (!wait_for_room(core, deadline)) {
        if (sent > 0) break;
        return std::unexpected(std::errc::operation_would_block);
      }
      continue;
    }
    const auto part =
        send_piece(core, stack_->shard->context().copies, data.subspan(sent), more, deadline);
    if (!part) {
      if (part.error() == std::errc::no_buffer_space &&
          !core.nonblocking.load(std::memory_order_relaxed) && deadline.left_ns() > 0) {
        // No memory anywhere: what is in flight comes back with acknowledgements.
        const uint32_t seen = core.event.prepare();
        core.shard.wait(core.event, seen, std::min<uint64_t>(kNsPerMs, deadline.left_ns()));
        continue;
      }
      if (sent > 0) break;
      return std::unexpected(part.error());
    }
    sent += *part;
  } while (sent < data.size());
  return sent;
}

// ---- receive ----------------------------------------------------------------------------------

SocketResult<size_t> TcpSocket::recv(std::span<std::byte> buffer) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  TcpCore& core = *core_;
  const std::lock_guard guard(core.receive_lock);
  if (buffer.empty()) return 0;
  const Deadline deadline(core.shard.context().clock,
                          core.receive_timeout_ns.load(std::memory_order_relaxed));
  CopyLedger& copies = core.shard.context().copies;
  for (;;) {
    if (!core.receive_shut.load(std::memory_order_relaxed)) {
      if (const size_t taken = take_received(core, copies, buffer); taken > 0) return taken;
    }
    if (const auto end = end_of_receive(core)) return *end;
    if (core.nonblocking.load(std::memory_order_relaxed)) {
      return std::unexpected(std::errc::operation_would_block);
    }
    bool asked = false;
    const bool ready = wait_until(core, deadline, [&]() noexcept {
      if (is_readable()) return true;
      // The ring was drained before the shard said that more waits in tcp/: ask for it, nobody else
      // will. The answer is a wake-up.
      if (!asked && core.backlog_in_tcp.load(std::memory_order_acquire)) {
        asked = true;
        report_consumed(core);
      }
      return false;
    });
    if (!ready) return std::unexpected(std::errc::operation_would_block);
  }
}

// ---- the rest ---------------------------------------------------------------------------------

SocketResult<void> TcpSocket::shutdown(Shutdown how) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  TcpCore& core = *core_;
  if (!core.connected.load(std::memory_order_acquire)) {
    return std::unexpected(std::errc::not_connected);
  }
  if (how != Shutdown::receive) {
    core.send_shut.store(true, std::memory_order_relaxed);
    core.event.signal();  // a send that waits for room lets go of the lock
    const std::lock_guard guard(core.send_lock);
    if (!core.fin_submitted) {
      Submission submission;
      submission.op = Submission::Op::shutdown;
      submission.socket = &core;
      submission.sequence = core.submitted_sequence;
      if (!core.shard.submit(submission)) return std::unexpected(core.shard.why_not());
      ++core.submitted_sequence;
      core.fin_submitted = true;
    }
  }
  if (how != Shutdown::send) {
    core.receive_shut.store(true, std::memory_order_release);
    core.event.signal();
  }
  return {};
}

void TcpSocket::set_nonblocking(bool on) noexcept {
  if (core_ != nullptr) core_->nonblocking.store(on, std::memory_order_relaxed);
}
void TcpSocket::set_send_timeout(Timeout timeout) noexcept {
  if (core_ != nullptr) core_->send_timeout_ns.store(to_ns(timeout), std::memory_order_relaxed);
}
void TcpSocket::set_receive_timeout(Timeout timeout) noexcept {
  if (core_ != nullptr) core_->receive_timeout_ns.store(to_ns(timeout), std::memory_order_relaxed);
}

namespace {

template <class Change>
SocketResult<void> change_options(TcpCore* core, Change change) noexcept {
  if (core == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  const bool ran = run_on_shard(core->shard, [core, change](Shard& shard) noexcept {
    change(core->options);
    if (core->connection != nullptr) shard.tcp().set_options(*core->connection, core->options);
  });
  if (!ran) return std::unexpected(core->shard.why_not());
  return {};
}

}  // namespace

SocketResult<void> TcpSocket::set_nodelay(bool on) noexcept {
  return change_options(core_, [on](tcp::ConnectionOptions& options) { options.nodelay = on; });
}
SocketResult<void> TcpSocket::set_keepalive(bool on) noexcept {
  return change_options(core_, [on](tcp::ConnectionOptions& options) { options.keepalive = on; });
}

bool TcpSocket::is_readable() const noexcept {
  if (core_ == nullptr) return false;
  return !core_->received.empty() || core_->end_of_stream.load(std::memory_order_acquire) ||
         is_over(*core_) || core_->receive_shut.load(std::memory_order_relaxed);
}
bool TcpSocket::is_writable() const noexcept {
  if (core_ == nullptr) return false;
  if (core_->closed.load(std::memory_order_acquire)) return true;
  return core_->connected.load(std::memory_order_acquire) && core_->has_send_room();
}
size_t TcpSocket::unacknowledged() const noexcept {
  if (core_ == nullptr || core_->closed.load(std::memory_order_acquire)) return 0;
  const int64_t buffer = core_->shard.options().send_buffer;
  const int64_t space = core_->send_space.load(std::memory_order_acquire);
  return static_cast<size_t>(std::max<int64_t>(buffer - space, 0));
}
std::optional<std::errc> TcpSocket::error() const noexcept {
  if (core_ == nullptr || !core_->closed.load(std::memory_order_acquire)) return {};
  const std::errc error = core_->error.load(std::memory_order_relaxed);
  if (error == std::errc{}) return {};
  return error;
}
Endpoint TcpSocket::local() const noexcept { return core_ != nullptr ? core_->local : Endpoint{}; }
Endpoint TcpSocket::remote() const noexcept {
  return core_ != nullptr ? core_->remote : Endpoint{};
}

}  // namespace nobounce
