// Packets (skb): private headers, payload in page frags.
//
//   Packet (private)                         PacketData (private, shared by clones)
//   +-------------------------------+        +--------------------------------------+
//   | head: headroom | headers ...  |        | frags[0..n): page, offset, size      |---> pages,
//   | frame fields: offsets, gso,   |------->| notifier, flags, references          |     private
//   | checksum state                |        +--------------------------------------+     or shared
//   +-------------------------------+
//
// The bytes of a packet are its head followed by its frags in order. Headers are pushed in front of
// the head on the way down and pulled off it on the way up. Payload is only ever in frags; nothing
// of the packet's bookkeeping is ever in shared memory (NC-54, NC-65).
// A clone has a head of its own and shares the data: TCP keeps one packet for retransmission and
// sends clones.
//
// A received packet: the driver copies the first bytes of the frame (at most kHeaderWindow) into the
// head, once, and lets the first frag begin behind them. Parsers see the head alone. When the
// headers are parsed, give_back_head() returns what the window took too much: the frag then starts
// right behind the headers and payload is read where the device wrote it. A small packet may be all
// head and no frag (a device short of pages): payload_to_frags() serves both.
//
// Ownership: PacketPtr is a move-only handle; destruction returns the head and drops the data, the
// last drop returns each frag (page_return) and completes the notifier.
// Threads: packets and data belong to one shard's thread (reference counts are plain). Pages may be
// returned from anywhere. Cost: O(frags) to free; nothing allocates: PacketPool is sized at start.
// Spec: PP-77..PP-81, ZN-1..ZN-6, NC-54, NC-57, TM-44, TM-46.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/bytes.hpp"
#include "base/list.hpp"
#include "base/object_pool.hpp"
#include "memory/page.hpp"
#include "memory/private_arena.hpp"
#include "page_pool/page_pool.hpp"
#include "skb/notifier.hpp"

namespace nobounce {

inline constexpr size_t kHeadBytes = 256;     // headroom + headers of one packet
inline constexpr size_t kHeaderWindow = 192;  // of a received frame copied to private memory
inline constexpr size_t kFragsMax = 18;       // 64 KiB + headers in 4 KiB pages
inline constexpr size_t kPacketBytesMax = 65535 + 18;

struct Frag {
  Page* page = nullptr;  // one reference held by the PacketData
  uint32_t offset = 0;   // in the page's block
  uint32_t size = 0;
};

class PacketPool;
class PacketPtr;

class PacketData {
 public:
  uint32_t references = 1;
  uint8_t flags = 0;  // NotifierFlags
  uint8_t frag_count = 0;
  uint32_t bytes = 0;  // sum of frag sizes
  Notifier* notifier = nullptr;
  std::array<Frag, kFragsMax> frags;
};

// What the device said or must do about checksums.
enum class Checksum : uint8_t {
  none,     // TX: nothing to do. RX: must be verified in software.
  partial,  // TX: the device (or netdev's fall-back) completes from csum_start. RX: not yet filled,
            // content vouched for by the device: never compare (virtio 5.1.6.4)
  verified,  // RX: the device vouches for it
};

// What one packet stands for several of. fragments4 is the stack's own, no device's: a datagram that
// the output cuts into IPv4 fragments.
enum class Gso : uint8_t { none, tcp4, tcp6, fragments4 };

class Packet : public ListHook {
 public:
  // ---- head ----
  [[nodiscard]] Bytes head() const noexcept {
    return Bytes(head_bytes_).subspan(head_start_, head_size_);
  }
  [[nodiscard]] MutableBytes mutable_head() noexcept {
    return MutableBytes(head_bytes_).subspan(head_start_, head_size_);
  }
  [[nodiscard]] size_t headroom() const noexcept { return head_start_; }
  [[nodiscard]] size_t tailroom() const noexcept { return kHeadBytes - head_start_ - head_size_; }
  // Grows the head at the front; the new bytes are unwritten. Asserts headroom.
  MutableBytes push(size_t bytes) noexcept;
  // Drops bytes from the front of the head. Asserts that the head holds them.
  void pull(size_t bytes) noexcept;
  // Grows the head at the back (building small packets). Asserts tailroom and that no frag exists.
  MutableBytes append(size_t bytes) noexcept;

  // ---- whole packet ----
  [[nodiscard]] size_t size() const noexcept { return head_size_ + data().bytes; }
  [[nodiscard]] size_t payload_size() const noexcept { return data().bytes; }
  // Cuts the packet to `bytes` from the front, head first; frags that go are returned.
  void trim(size_t bytes) noexcept;
  // Drops `bytes` from the front of the frags.
  void pull_frags(size_t bytes) noexcept;
  // Received packets: the head keeps its first `keep` bytes; what was copied beyond them is payload
  // and is read from the frag again (it lies right before it). Asserts that the frag has that room.
  void give_back_head(size_t keep) noexcept;
  // Copies `to.size()` bytes from `offset` of the packet (head, then frags).
  void read(size_t offset, MutableBytes to) const noexcept;
  // Sum over [offset, offset + bytes) of the packet, each byte read once.
  [[nodiscard]] uint64_t sum(size_t offset, size_t bytes) const noexcept;

  // ---- frags ----
  [[nodiscard]] PacketData& data() noexcept { return *data_; }
  [[nodiscard]] const PacketData& data() const noexcept { return *data_; }
  [[nodiscard]] bool is_cloned() const noexcept { return data_->references > 1; }
  [[nodiscard]] size_t frag_room() const noexcept { return kFragsMax - data_->frag_count; }
  // Appends a frag and takes over one reference to its page; grows the last frag instead when it
  // continues it (ZN-74; the extra reference is returned). False when no slot is left: the caller
  // keeps its reference. Asserts that the packet is not cloned.
  [[nodiscard]] bool add_frag(Page& page, uint32_t offset, uint32_t size) noexcept;

  // ---- fields ----
  Checksum checksum = Checksum::none;
  Gso gso = Gso::none;
  uint16_t gso_size = 0;      // MSS; of fragments4 the MTU
  uint16_t gso_segments = 1;  // RX: how many wire segments this stands for (ACK policy, G-9)
  uint16_t csum_start = 0;    // from the head's first byte when handed to the device
  uint16_t csum_offset = 0;
  uint16_t link_header = 0;  // RX: size of the link header already pulled
  uint16_t queue = 0;        // queue pair it came from or goes to
  uint64_t time_ns = 0;      // when received
  // The transport's own, while it owns the packet (sequence numbers, send times).
  struct Transport {
    uint32_t sequence = 0;
    uint32_t end_sequence = 0;
    uint32_t flags = 0;
    uint32_t retransmissions = 0;
    uint64_t sent_ns = 0;
    uint64_t first_sent_ns = 0;
  } transport;

  [[nodiscard]] PacketPool& pool() const noexcept { return *pool_; }

  // Use PacketPool.
  Packet(PacketPool& pool, PacketData& data, size_t headroom) noexcept;
  ~Packet();

 private:
  friend class PacketPool;
  PacketPool* pool_;
  PacketData* data_;
  uint16_t head_start_;
  uint16_t head_size_ = 0;
  std::array<std::byte, kHeadBytes> head_bytes_;  // unwritten on purpose
};

struct PacketReleaser {
  void operator()(Packet* packet) const noexcept;
};

class PacketPtr : public std::unique_ptr<Packet, PacketReleaser> {
 public:
  using std::unique_ptr<Packet, PacketReleaser>::unique_ptr;
};

// All packets of one shard. Capacity is fixed: `packets` heads and as many data areas.
class PacketPool {
 public:
  PacketPool(size_t packets, CounterRegistry& counters);

  // An empty packet with `headroom` bytes in front. Null when the pool is empty (counted).
  [[nodiscard]] PacketPtr make(size_t headroom = 128) noexcept;
  // A second packet on the same data; its head is empty with `headroom` in front, its fields are
  // copied. Null when the pool is empty.
  [[nodiscard]] PacketPtr clone(Packet& packet, size_t headroom = 128) noexcept;
  // Splits after `bytes` of payload: `packet` keeps the first part, the result has the rest (page
  // references taken, the notifier shared: ZN-6). Heads are not copied. Null when the pool is
  // empty; `packet` is then unchanged. A cloned packet gets a data area of its own first, so that
  // its clones are untouched. Asserts 0 < bytes < payload_size.
  [[nodiscard]] PacketPtr split(Packet& packet, size_t bytes) noexcept;

  [[nodiscard]] size_t capacity() const noexcept { return packets_.capacity(); }
  [[nodiscard]] size_t in_use() const noexcept { return packets_.in_use(); }

 private:
  friend class Packet;
  friend struct PacketReleaser;
  void drop_data(PacketData& data) noexcept;
  [[nodiscard]] bool unshare(Packet& packet) noexcept;

  ObjectPool<Packet> packets_;
  ObjectPool<PacketData> datas_;
  Counter exhausted_;
};

// Of a received packet the head keeps its first `keep` bytes, all that follows is in frags: given
// back, or, of a packet that is all head, copied to a page of `arena`. False when there is none.
[[nodiscard]] bool payload_to_frags(Packet& packet, size_t keep, PrivateArena& arena) noexcept;

// ---- notifiers on packets (ZN-1, ZN-2) --------------------------------------------------------
void attach_notifier(PacketData& data, Notifier& notifier) noexcept;
void clear_notifier(PacketData& data, bool success) noexcept;

}  // namespace nobounce
