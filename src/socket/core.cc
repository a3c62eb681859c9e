#include "socket/core.hpp"

#include <algorithm>

#include "socket/shard.hpp"

namespace nobounce {

void SocketCore::want_wake() noexcept { shard.has_news(*this); }

void SocketCore::fail(std::errc reason) noexcept {
  // Also after an orderly close: what tcp/ still held is lost, and its reader must know.
  std::errc none{};
  error.compare_exchange_strong(none, reason, std::memory_order_relaxed);
  closed.store(true, std::memory_order_release);
  event.signal();
}

// ---- TCP --------------------------------------------------------------------------------------

TcpCore::TcpCore(Shard& owner) : SocketCore(Kind::tcp, owner), options(owner.options().connection) {
  send_space.store(owner.options().send_buffer, std::memory_order_relaxed);
}

TcpCore::~TcpCore() {
  Extent extent;
  while (received.try_pop(extent)) page_return(*extent.page);
  frags.release();
}

void TcpCore::attach(tcp::Connection& with) noexcept {
  connection = &with;
  const tcp::ConnectionInfo info = shard.tcp().info(with);
  local = info.local;
  remote = info.remote;
}

void TcpCore::on_connected() noexcept {
  local = shard.tcp().info(*connection).local;
  connected.store(true, std::memory_order_release);
  want_wake();
}

void TcpCore::on_readable() noexcept {
  fill_received();
  want_wake();
}

void TcpCore::fill_received() noexcept {
  if (connection == nullptr) return;
  tcp::Layer& tcp = shard.tcp();
  Frag frag;
  uint32_t room = received.room();
  while (room > 0 && tcp.pop_received(*connection, frag)) {
    --room;
    const bool pushed = received.try_push(Extent{frag.page, frag.offset, frag.size});
    NB_ASSERT(pushed);
  }
  // Released after the pieces: who sees that nothing is left in tcp/ sees them all in the ring.
  backlog_in_tcp.store(room == 0, std::memory_order_release);
  if (tcp.at_end(*connection)) end_of_stream.store(true, std::memory_order_release);
}

void TcpCore::report_consumed() noexcept {
  // Cleared before the bytes are read: what is consumed after that submits anew.
  consumed_pending.store(false, std::memory_order_seq_cst);
  if (connection == nullptr) return;
  const uint64_t consumed = consumed_bytes.load(std::memory_order_acquire);
  if (consumed > consumed_seen) {
    shard.tcp().consumed(*connection, static_cast<size_t>(consumed - consumed_seen));
    consumed_seen = consumed;
  }
  // A reader that emptied the ring meanwhile sleeps: what waited in tcp/ is news to it.
  const bool waited = backlog_in_tcp.load(std::memory_order_relaxed);
  fill_received();
  if (waited) want_wake();
}

bool TcpCore::has_send_room() const noexcept {
  return send_space.load(std::memory_order_relaxed) >=
         static_cast<int64_t>(shard.options().send_buffer / 4);
}

void TcpCore::on_acked(size_t bytes) noexcept {
  send_space.fetch_add(static_cast<int64_t>(bytes), std::memory_order_seq_cst);
  if (wants_send_room.load(std::memory_order_seq_cst) && has_send_room()) {
    wants_send_room.store(false, std::memory_order_relaxed);
    want_wake();
  }
}

void TcpCore::on_closed(std::errc reason) noexcept {
  fill_received();
  error.store(reason, std::memory_order_relaxed);
  closed.store(true, std::memory_order_release);
  want_wake();
}

// ---- listener ---------------------------------------------------------------------------------

ListenerCore::ListenerCore(Shard& owner, uint32_t backlog_wanted)
    : SocketCore(Kind::listener, owner), backlog(std::clamp(backlog_wanted, 1u, kBacklogMax)) {}

ListenerCore::~ListenerCore() { NB_ASSERT(ready.empty()); }

bool ListenerCore::has_room() noexcept {
  return !closed.load(std::memory_order_relaxed) && ready.size() < backlog && shard.has_tcp_room();
}

tcp::Owner* ListenerCore::on_accept(tcp::Connection& connection) noexcept {
  if (closed.load(std::memory_order_relaxed) || ready.size() >= backlog) return nullptr;
  TcpCore* core = shard.acquire_tcp();
  if (core == nullptr) return nullptr;
  core->attach(connection);
  core->connected.store(true, std::memory_order_relaxed);
  const bool pushed = ready.try_push(core);
  NB_ASSERT(pushed);
  want_wake();
  return core;
}

// ---- UDP --------------------------------------------------------------------------------------

UdpCore::UdpCore(Shard& owner) : SocketCore(Kind::udp, owner) {}

// Half of it has to be free again before a sender is woken: not once a datagram.
void UdpCore::count_sent(uint32_t charge) noexcept {
  const uint32_t left = unsent_bytes.fetch_sub(charge, std::memory_order_seq_cst) - charge;
  if (left > kSendBytesMax / 2 || !wants_send_room.load(std::memory_order_seq_cst)) return;
  wants_send_room.store(false, std::memory_order_relaxed);
  shard.has_news(*this);
}

UdpCore::~UdpCore() {
  DatagramPiece piece;
  while (received.try_pop(piece)) {
    if (piece.page != nullptr) page_return(*piece.page);
  }
  local_frags.release();
  frags.release();
}

void UdpCore::on_datagram(PacketPtr packet, const Endpoint& from) noexcept {
  PacketData& data = packet->data();
  uint32_t charge = 0;
  uint32_t pieces = 0;
  for (uint8_t i = 0; i < data.frag_count; ++i) {
    if (data.frags[i].size == 0) continue;
    charge += charge_of(*data.frags[i].page);
    ++pieces;
  }
  if (received.room() < std::max(pieces, 1u) ||
      queued_bytes.load(std::memory_order_relaxed) + charge > kReceiveBytesMax) {
    shard.count_datagram_refused();
    return;
  }
  queued_bytes.fetch_add(charge, std::memory_order_relaxed);
  uint32_t remaining = data.bytes;
  uint32_t staged = 0;  // the reader sees a datagram whole or not at all
  if (pieces == 0) received.stage(staged++, DatagramPiece{nullptr, 0, 0, 0, from});
  for (uint8_t i = 0; i < data.frag_count; ++i) {
    const Frag& frag = data.frags[i];
    if (frag.size == 0) continue;
    page_hold(*frag.page);
    received.stage(staged++, DatagramPiece{frag.page, frag.offset, frag.size, remaining, from});
    remaining -= frag.size;
  }
  received.publish(staged);
  want_wake();
}

void UdpCore::on_error(std::errc reason) noexcept {
  error.store(reason, std::memory_order_release);
  want_wake();
}

}  // namespace nobounce
