// Out-of-order data of one connection: packets sorted by sequence number, no two of which overlap.
//
// Of bytes that arrive twice the first copy is kept (T-24). What arrives next to what is there
// joins its packet while that has frag slots, so that small segments do not use up the packets.
// A FIN that came early is remembered by its sequence number (T-56).
// Bounds: packets and frags (pages pinned) by Limits; bytes are bounded by the receive window the caller enforces.
// Cost: insertion searches from the last insertion's place, O(distance); at worst Limits::packets steps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tcp/packet_queue.hpp"
#include "tcp/seqnum.hpp"
#include "wire/tcp.hpp"

namespace nobounce::tcp {

class Reassembly {
 public:
  enum class Result : uint8_t { queued, duplicate, full };
  struct Limits {
    size_t packets = 0;
    size_t frags = 0;
  };

  [[nodiscard]] bool empty() const noexcept { return queue_.empty(); }
  [[nodiscard]] size_t packets() const noexcept { return queue_.count(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return queue_.bytes(); }

  // `packet` has payload only, its first byte at `seq`. What fits of it is kept.
  Result insert(PacketPtr packet, Seq seq, const Limits& limits) noexcept;
  // The packet that continues the stream at `next`, cut to begin there; null when it is missing.
  // What lies before `next` is dropped.
  [[nodiscard]] PacketPtr take(Seq next) noexcept;

  void remember_fin(Seq seq) noexcept {
    if (!fin_) fin_ = seq;
  }
  // Is the end of the stream at `next`?
  [[nodiscard]] bool fin_at(Seq next) const noexcept { return fin_ && *fin_ == next; }

  // SACK blocks, the most recently changed first (RFC 2018 4), at most `count_max`.
  size_t blocks(std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax>& out, Seq next,
                size_t count_max) noexcept;
  void clear() noexcept;

 private:
  [[nodiscard]] Packet* first_ending_after(Seq seq) noexcept;
  Result place(Packet* following, PacketPtr packet, const Limits& limits) noexcept;
  void note_range(Packet& packet) noexcept;

  PacketQueue queue_;
  size_t frags_ = 0;        // of all packets
  Packet* hint_ = nullptr;  // in the queue, or null
  std::optional<Seq> fin_;
  std::array<wire::TcpSackBlock, wire::kTcpSackBlocksMax> recent_{};
  size_t recent_count_ = 0;
};

// Moves the frags of `from` to the end of `to`. False, and nothing moved, when they do not fit.
[[nodiscard]] bool absorb(Packet& to, Packet& from) noexcept;

}  // namespace nobounce::tcp
