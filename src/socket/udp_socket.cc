// The application's side of a UDP socket.
#include <algorithm>

#include "base/checksum.hpp"
#include "socket/stack_core.hpp"

namespace nobounce {
namespace {

constexpr size_t kHeaderBytes = 20 + 8;  // IPv4 and UDP
constexpr size_t kDatagramMax = 65535 - kHeaderBytes;
constexpr unsigned kLargeOrder = 4;  // 64 KiB: a datagram that does not fit the frag cache's block

// A block for one large datagram, chosen as the frag cache chooses.
Page* large_block(FragSource& source) noexcept {
  Page* block = nullptr;
  if (source.device != nullptr && source.device->bounces()) {
    block = source.device->pool()->alloc_block(kLargeOrder, BlockUse::transmit);
  }
  return block != nullptr ? block : source.arena->alloc(kLargeOrder);
}

enum class Summed : uint8_t { no, yes };

struct Placed {
  Frag frag;  // one reference to the page is the caller's
  uint16_t sum = 0;
};

// What will go in fragments is summed with the copy: no device does it, and the I/O thread does not
// touch payload.
uint16_t write(const Frag& frag, Bytes data, Summed summed) noexcept {
  if (summed == Summed::no) {
    page_write(*frag.page, frag.offset, data);
    return 0;
  }
  const uint16_t sum = checksum_fold(page_write_summed(*frag.page, frag.offset, data, 0));
  return sum == 0 ? uint16_t{0xffff} : sum;
}

SocketResult<Placed> place(UdpCore& core, const IpAddress& to, Bytes data, Summed summed) noexcept {
  FragSource& source = core.shard.frag_source(to);
  FragCache& frags = core.shard.is_ours(to) ? core.local_frags : core.frags;
  FragCache::Room room = frags.reserve(source);
  if (room.page != nullptr && room.size < data.size()) {
    frags.release();  // a datagram lies in one piece: a fresh block
    room = frags.reserve(source);
  }
  Frag frag{room.page, room.offset, static_cast<uint32_t>(data.size())};
  if (room.page != nullptr && room.size >= data.size()) {
    frags.commit(static_cast<uint32_t>(std::max<size_t>(data.size(), 1)));
  } else {
    frag.page = large_block(source);
    frag.offset = 0;
  }
  if (frag.page == nullptr) return std::unexpected(std::errc::no_buffer_space);
  const uint16_t sum = write(frag, data, summed);
  core.shard.context().copies.count(CopyKind::send, data.size());
  return Placed{frag, sum};
}

// Under send_lock. False: non-blocking.
bool wait_for_room(UdpCore& core, uint32_t charge) noexcept {
  if (core.has_send_room(charge)) return true;
  core.wants_send_room.store(true, std::memory_order_seq_cst);
  // Looked at again after the wish is known: what was sent in between is not missed.
  if (core.has_send_room(charge)) return true;
  if (core.nonblocking.load(std::memory_order_relaxed)) return false;
  const Deadline for_ever(core.shard.context().clock, Event::kForever);
  return wait_until(core, for_ever, [&core, charge]() noexcept {
    core.wants_send_room.store(true, std::memory_order_seq_cst);
    return core.has_send_room(charge) || core.closed.load(std::memory_order_acquire);
  });
}

}  // namespace

UdpSocket::UdpSocket(std::shared_ptr<StackCore> stack, UdpCore* core) noexcept
    : stack_(std::move(stack)), core_(core) {}
UdpSocket::UdpSocket(UdpSocket&& other) noexcept
    : stack_(std::move(other.stack_)), core_(std::exchange(other.core_, nullptr)) {}
UdpSocket& UdpSocket::operator=(UdpSocket&& other) noexcept {
  if (this != &other) {
    close();
    stack_ = std::move(other.stack_);
    core_ = std::exchange(other.core_, nullptr);
  }
  return *this;
}
UdpSocket::~UdpSocket() { close(); }

SocketResult<size_t> UdpSocket::send_to(std::span<const std::byte> data, const Endpoint& to) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  if (data.size() > kDatagramMax) return std::unexpected(std::errc::message_size);
  UdpCore& core = *core_;
  const std::lock_guard guard(core.send_lock);
  const std::errc pending = core.error.exchange(std::errc{}, std::memory_order_acquire);
  if (pending != std::errc{}) return std::unexpected(pending);
  const uint32_t charge = UdpCore::send_charge(data.size());
  if (!wait_for_room(core, charge)) return std::unexpected(std::errc::operation_would_block);
  const bool is_whole = data.size() + kHeaderBytes <= stack_->mtu;
  const auto placed = place(core, to.address, data, is_whole ? Summed::no : Summed::yes);
  if (!placed) return std::unexpected(placed.error());
  const Frag& frag = placed->frag;
  Submission submission;
  submission.op = Submission::Op::datagram;
  submission.socket = &core;
  submission.sequence = core.submitted_sequence;
  submission.page = frag.page;
  submission.offset = frag.offset;
  submission.size = frag.size;
  submission.payload_sum = placed->sum;
  submission.to = to;
  core.unsent_bytes.fetch_add(charge, std::memory_order_relaxed);
  const bool may_wait = !core.nonblocking.load(std::memory_order_relaxed);
  if (!core.shard.submit(submission, may_wait ? Event::kForever : 0)) {
    core.unsent_bytes.fetch_sub(charge, std::memory_order_relaxed);
    page_put(*frag.page);
    return std::unexpected(core.shard.why_not());
  }
  ++core.submitted_sequence;
  return data.size();
}

SocketResult<ReceivedDatagram> UdpSocket::recv_from(std::span<std::byte> buffer) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  UdpCore& core = *core_;
  const std::lock_guard guard(core.receive_lock);
  const Deadline deadline(core.shard.context().clock,
                          core.receive_timeout_ns.load(std::memory_order_relaxed));
  for (;;) {
    DatagramPiece* piece = core.received.front();
    if (piece != nullptr) break;
    const std::errc pending = core.error.exchange(std::errc{}, std::memory_order_acquire);
    if (pending != std::errc{}) return std::unexpected(pending);
    if (core.closed.load(std::memory_order_acquire)) {
      return std::unexpected(std::errc::network_down);
    }
    if (core.nonblocking.load(std::memory_order_relaxed) ||
        !wait_until(core, deadline, [&core]() noexcept {
          return !core.received.empty() || core.closed.load(std::memory_order_acquire) ||
                 core.error.load(std::memory_order_relaxed) != std::errc{};
        })) {
      return std::unexpected(std::errc::operation_would_block);
    }
  }
  ReceivedDatagram datagram;
  datagram.full_size = core.received.front()->remaining;
  datagram.from = core.received.front()->from;
  for (bool last = false; !last;) {
    DatagramPiece piece;
    const bool popped = core.received.try_pop(piece);
    NB_ASSERT(popped);
    last = piece.remaining == piece.size;
    if (piece.page == nullptr) break;
    const size_t part = std::min<size_t>(piece.size, buffer.size() - datagram.bytes);
    page_read(*piece.page, piece.offset, buffer.subspan(datagram.bytes, part));
    datagram.bytes += part;
    const uint32_t charge = UdpCore::charge_of(*piece.page);
    page_return(*piece.page);
    core.queued_bytes.fetch_sub(charge, std::memory_order_relaxed);
  }
  core.shard.context().copies.count(CopyKind::receive, datagram.bytes);
  return datagram;
}

SocketResult<void> UdpSocket::connect(const Endpoint& remote) {
  if (core_ == nullptr) return std::unexpected(std::errc::bad_file_descriptor);
  UdpCore& core = *core_;
  SocketResult<void> result = std::unexpected(std::errc::network_down);
  const bool ran = run_on_shard(
      core.shard, [&](Shard& shard) noexcept { result = shard.udp().connect(*core.port, remote); });
  return ran ? result : std::unexpected(core.shard.why_not());
}

void UdpSocket::close() noexcept {
  if (core_ == nullptr) return;
  close_core(*std::exchange(core_, nullptr), false);
  stack_.reset();
}

void UdpSocket::set_nonblocking(bool on) noexcept {
  if (core_ != nullptr) core_->nonblocking.store(on, std::memory_order_relaxed);
}
void UdpSocket::set_receive_timeout(Timeout timeout) noexcept {
  if (core_ != nullptr) core_->receive_timeout_ns.store(to_ns(timeout), std::memory_order_relaxed);
}
Endpoint UdpSocket::local() const noexcept { return core_ != nullptr ? core_->local : Endpoint{}; }

}  // namespace nobounce
