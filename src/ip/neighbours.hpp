// Neighbour cache of one shard: ARP (RFC 826) with pending packets, ageing and bounds.
//
//              send()                       reply to us
//   (none) ------------> incomplete -----------------------> reachable
//      |                     | 3 requests, 1/s, no answer        | send() after 30 s
//      | request to us       v                                   v
//      +------> learned   (removed; pending dropped)          probing --reply--> reachable
//                  | send()                                      | 3 unicast requests, 1/s
//                  +------------------> probing                  v
//                                                             (removed)
//
//   state       has a MAC | packets             | may be evicted for another
//   incomplete  no        | queued (last 4)     | no (it leaves by itself within 3 s)
//   learned     yes       | sent                | yes, oldest first
//   probing     yes       | sent                | no (same)
//   reachable   yes       | sent                | when not confirmed for 90 s
//
// Invariants
//  1. Entries come from our own requests or from requests to us (N-5); a reply counts only while we
//     ask. Group, zero and own MACs, and addresses off the link, are never learned.
//  2. A target is asked at most once a second, all states together: requests are sent only for an
//     entry, and an entry that has asked stays until its second is over (C043).
//  3. At most half of the table is incomplete; a new entry never displaces a confirmed one in use.
//  4. Packets waiting are bounded per neighbour (the last kPendingMax stay: C045) and in all.
//
// Threads: the shard's. Cost: O(1) a packet (keyed hash); one timer for the whole table: all
// requests wait equally long, so the entries that ask form a queue in order of deadline.
// Counters: "arp.<reason>". Spec: tcp.md N-5, T-62; C043, C045.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/siphash.hpp"
#include "ip/routes.hpp"
#include "netdev/output.hpp"
#include "netdev/shard_context.hpp"
#include "nobounce/address.hpp"
#include "wire/arp.hpp"

namespace nobounce::ip {

struct NeighbourOptions {
  MacAddress mac;
  size_t entries_max = 256;
};

class Neighbours {
 public:
  static constexpr uint64_t kReachableNs = 30 * kNsPerSecond;
  static constexpr uint64_t kIdleNs = 90 * kNsPerSecond;
  static constexpr uint64_t kRequestIntervalNs = kNsPerSecond;
  static constexpr uint8_t kRequestsMax = 3;
  static constexpr size_t kPendingMax = 4;                          // packets a neighbour
  static constexpr size_t kPendingTotalMax = 128;                   // packets in all
  static constexpr uint64_t kDefendIntervalNs = 10 * kNsPerSecond;  // RFC 5227 2.4

  // Told of each packet that is dropped because its neighbour does not answer; the packet's head
  // starts at the IP header.
  class Observer {
   public:
    virtual void unresolved(const Packet& packet) noexcept = 0;

   protected:
    ~Observer() = default;
  };

  // `routes` outlives it.
  Neighbours(ShardContext& context, Output& output, Observer& observer, const Routes& routes,
             const NeighbourOptions& options);
  ~Neighbours();

  // Takes an IP packet for `next_hop` (an address on the link): sends it, or keeps it until the
  // neighbour answers, or drops it (counted). Asserts that the output is not full.
  void send(const IpAddress& next_hop, PacketPtr packet) noexcept;
  // Sends an IP packet to that MAC. Asserts that the output is not full.
  void forward(const MacAddress& to, PacketPtr packet) noexcept;
  // An ARP packet, head at the ARP header.
  void receive(const Packet& packet) noexcept;
  // Gratuitous requests: tells everyone our addresses (RFC 5227 2.3).
  void announce() noexcept;

  [[nodiscard]] size_t size() const noexcept { return options_.entries_max - free_.size(); }

 private:
  enum class Status : uint8_t { free, incomplete, learned, probing, reachable };
  struct Entry : ListHook {
    IpAddress address;
    MacAddress mac;
    Status status = Status::free;
    uint8_t requests = 0;
    bool has_asked = false;
    uint64_t asked_ns = 0;
    uint64_t confirmed_ns = 0;
    uint64_t deadline_ns = 0;
    Entry* chain = nullptr;
    List<Packet> pending;
  };

  [[nodiscard]] Entry** bucket(const IpAddress& address) noexcept;
  [[nodiscard]] Entry* find(const IpAddress& address) noexcept;
  [[nodiscard]] Entry* add(const IpAddress& address) noexcept;
  [[nodiscard]] Entry* evict() noexcept;
  void remove(Entry& entry) noexcept;
  [[nodiscard]] List<Entry>* list_of(Status status) noexcept;
  void move_to(Entry& entry, Status status) noexcept;

  void refresh(Entry& entry) noexcept;
  void keep_pending(Entry& entry, PacketPtr packet) noexcept;
  void drop_oldest(Entry& entry) noexcept;
  void confirm(Entry& entry, const MacAddress& mac) noexcept;
  void learn(const wire::ArpView& arp) noexcept;
  void accept_reply(const wire::ArpView& arp) noexcept;
  void announce(const IpAddress& address) noexcept;
  void defend(const IpAddress& address) noexcept;
  [[nodiscard]] bool is_learnable(const wire::ArpView& arp) const noexcept;

  void ask(Entry& entry) noexcept;
  void give_up(Entry& entry) noexcept;
  void on_timer(uint64_t now_ns) noexcept;
  void rearm() noexcept;
  void send_arp(const wire::ArpPacket& arp, const MacAddress& to) noexcept;

  ShardContext& context_;
  Output& output_;
  Observer& observer_;
  const Routes& routes_;
  NeighbourOptions options_;
  SipKey key_;
  std::unique_ptr<Entry[]> entries_;
  std::vector<Entry*> buckets_;  // a power of two
  List<Entry> free_;
  List<Entry> asking_;     // incomplete and probing, by deadline
  List<Entry> learned_;    // oldest first
  List<Entry> reachable_;  // longest unconfirmed first
  Timer timer_;
  size_t incomplete_ = 0;
  size_t pending_ = 0;
  std::array<std::optional<uint64_t>, Routes::kAddressesMax> defended_ns_;  // by own address

  Counter requests_sent_, replies_sent_, received_, malformed_, ignored_, conflicts_, unresolved_,
      pending_dropped_, table_full_, incomplete_limit_, evicted_, output_full_;
};

}  // namespace nobounce::ip
