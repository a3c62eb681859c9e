// What is known of paths narrower than the link: one MTU a destination, learned from ICMP that a
// transport has found to be about data of its own that is outstanding (T-53, RFC 1191, RFC 5927).
//
//   TCP: quote matches -> lower(destination, mtu)        mtu_to(destination) -> TCP's segments,
//                                                                               UDP's fragments
// Invariants
//  1. An entry only ever goes down, never below kFloor, and ends after kAgeNs: the path may have widened.
//  2. A full table gives up the entry that is oldest: the worst that can happen is another ICMP message.
//
// Threads: the shard's. Cost: O(1) a look-up by keyed hash, nothing while the table is empty. Nothing
// allocates after construction. Counters: "ip.path_mtu.<what>". Spec: tcp.md T-53; C048.
#pragma once

#include <memory>
#include <vector>

#include "base/siphash.hpp"
#include "netdev/shard_context.hpp"
#include "nobounce/address.hpp"

namespace nobounce::ip {

class PathMtus {
 public:
  static constexpr uint16_t kFloor = 576;
  static constexpr uint64_t kAgeNs = 600 * kNsPerSecond;

  PathMtus(ShardContext& context, size_t entries_max);
  ~PathMtus();

  // False when that is no less than what is known, or than `link_mtu` when nothing is.
  bool lower(const IpAddress& destination, uint16_t mtu, uint16_t link_mtu) noexcept;
  // `link_mtu` when nothing less is known.
  [[nodiscard]] uint16_t get(const IpAddress& destination, uint16_t link_mtu) const noexcept;
  [[nodiscard]] size_t size() const noexcept { return by_age_.size(); }

 private:
  struct Entry : ListHook {
    IpAddress destination;
    uint16_t mtu = 0;
    uint64_t until_ns = 0;
    Entry* chain = nullptr;
  };

  [[nodiscard]] size_t bucket(const IpAddress& address) const noexcept;
  [[nodiscard]] Entry* find(const IpAddress& address) const noexcept;
  [[nodiscard]] Entry& add(const IpAddress& address) noexcept;
  void remove(Entry& entry) noexcept;

  ShardContext& context_;
  SipKey key_;
  std::unique_ptr<Entry[]> entries_;
  std::vector<Entry*> buckets_;  // a power of two
  List<Entry> free_;
  List<Entry> by_age_;  // the one that ends next first
  Counter lowered_, ignored_, evicted_;
};

}  // namespace nobounce::ip
