// TapInterface: a Linux TAP interface as open queues: what needs privileges, done once.
//
// open() creates the interface, or attaches to one that exists, and afterwards nothing of it needs a
// privilege: it may be opened before the process gives them up and before the system-call filter is
// set (isolation.hpp allows what is used later). TapDevice moves the frames; an interface may see
// several of them one after the other, as guests come and go.
//
// A network namespace is entered by a thread that lives for the opening alone: setns(2) moves the
// calling thread, so the process stays where it is. The queues stay with their interface.
//
// Threads: one at a time. Cost: system calls; allocates at set-up only.
// Spec: design "backend/"; C024, C067, C115.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/net_header.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "nobounce/address.hpp"

namespace nobounce::backend {

struct TapOptions {
  std::string name;          // "nb0"; "nb%d": the kernel fills in a number
  uint16_t queue_pairs = 1;  // more than one: a multi_queue interface
  // IP bytes. Nothing: left as it is (1500 when the interface is new).
  std::optional<uint16_t> mtu = {};
  // A name below /run/netns or a path ("/proc/PID/ns/net"). Empty: where the process is.
  std::string netns = {};
  // The virtio-net header in front of each frame. Without it no offload is possible.
  bool vnet_header = true;
  // Bytes written and not yet taken by the kernel; beyond them writing has to wait. 0: no bound.
  int send_buffer_bytes = 0;
};

class TapInterface {
 public:
  static constexpr uint16_t kQueuePairsMax = 256;  // the kernel's own bound
  static constexpr NetOffloads kAllOffloads{
      .checksum = true, .tso4 = true, .tso6 = true, .data_valid = true};

  // What one knows of queues that somebody else opened.
  struct Facts {
    std::string name;
    MacAddress mac{};
    uint16_t mtu = 1500;
    bool vnet_header = true;
    NetOffloads offloads = kAllOffloads;
  };

  static Result<TapInterface> open(const TapOptions& options);
  // Queues that were handed over: a TAP's, or any non-blocking descriptor that keeps frames apart
  // (a datagram socket), with the 12-byte header in front when `facts` says so.
  TapInterface(std::vector<UniqueFd> queues, Facts facts);

  [[nodiscard]] const std::string& name() const noexcept { return facts_.name; }
  [[nodiscard]] MacAddress mac() const noexcept { return facts_.mac; }  // the kernel's side
  [[nodiscard]] uint16_t mtu() const noexcept { return facts_.mtu; }    // when it was opened
  [[nodiscard]] bool has_vnet_header() const noexcept { return facts_.vnet_header; }
  [[nodiscard]] uint16_t queue_pairs() const noexcept {
    return static_cast<uint16_t>(queues_.size());
  }
  [[nodiscard]] int queue(uint16_t index) const noexcept { return queues_[index].get(); }

  // What frames from the kernel may leave to their receiver; it does the rest itself. All from the
  // start (none without the header); later what the guest has negotiated. `data_valid` is always on.
  [[nodiscard]] const NetOffloads& offloads() const noexcept { return facts_.offloads; }
  Result<void> set_offloads(const NetOffloads& offloads);

 private:
  std::vector<UniqueFd> queues_;
  Facts facts_;
};

}  // namespace nobounce::backend
