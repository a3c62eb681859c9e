// The built-in peer: a stack of our own at the other end of the guest's link, with small services.
//
//   port   protocol   service
//   7      TCP, UDP   echo: what came goes back (the same pages: nothing is copied)
//   9      TCP, UDP   discard: read and dropped
//   19     TCP        source: a seeded pattern without end, until the client closes
//
// Byte p of a source's stream is byte (p mod kPatternBytes) of SeededRandom(kPatternSeed), see
// fill_pattern(): a client can check what it got.
//
// Services live on the stack's shard, below sockets: they hand page references from the receive queue
// to the send queue. What one connection may have queued is bounded by kSendMax; flows are a fixed
// pool. When packets run out a flow waits in a list and is pumped again.
//
// Threads: the back-end's service thread. Cost: nothing allocates after creation.
// Spec: design "backend/"; T-16 (accept queue), C055 (both directions full).
#pragma once

#include <cstdint>
#include <memory>

#include "backend/port_wrapper.hpp"
#include "backend/service.hpp"
#include "base/bytes.hpp"
#include "nobounce/address.hpp"

namespace nobounce::backend {

struct PeerOptions {
  IpPrefix address{IpAddress::v4(10, 77, 0, 1), 24};
  MacAddress mac{{0x02, 0x6e, 0x62, 0x00, 0x00, 0x01}};
  uint16_t queue_size = 1024;          // what the guest's rings may have
  uint64_t private_bytes = 128 << 20;  // of pages for what is received
  size_t connections_max = 1024;
  PortWrapper wrap{};  // a device around the guest's port; empty: none
};

class Peer {
 public:
  static constexpr uint16_t kEchoPort = 7;
  static constexpr uint16_t kDiscardPort = 9;
  static constexpr uint16_t kSourcePort = 19;
  static constexpr uint64_t kPatternSeed = 0x6e6f626f756e6365;
  static constexpr size_t kPatternBytes = 1 << 20;
  static constexpr size_t kSendMax = 4 << 20;  // bytes queued a connection

  // Makes the stack on the guest's port and opens the services.
  static Result<std::unique_ptr<PortService>> open(const ServicePlace& place,
                                                   const PeerOptions& options);
  // The source's stream from `offset` (any; the pattern repeats).
  static void fill_pattern(uint64_t offset, MutableBytes to);
};

}  // namespace nobounce::backend
