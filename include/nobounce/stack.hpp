// A nobounce stack: a network interface with an address, and the sockets on it.
//
//   auto stack = nobounce::Stack::open({.net = "vhost-user:/run/nb.sock",
//                                       .address = *nobounce::IpPrefix::parse("10.77.0.2/24")});
//   if (!stack) { std::fputs(stack.error().to_string().c_str(), stderr); return 1; }
//   auto socket = (*stack)->tcp_connect(*nobounce::Endpoint::parse("10.77.0.1:7"));
//
// open() creates the shared region, connects to the device and starts the I/O thread. Everything
// that can go wrong with the set-up is said by open(); afterwards a device that breaks the rules or
// goes away shows as network_down on every socket within a second, unless it is to be waited for
// (OnDisconnect).
//
// Threads: all calls from any thread; with Drive::inline_drive from one thread at a time, which
// must call poll() (blocking socket calls do so by themselves).
// fork(2): the stack stays with the parent. In a child every call fails (network_down, or as if it had
// timed out), and nothing there, not even its exit, disturbs the parent.
// Cost: open() touches all memory it will ever use; nothing allocates on the I/O thread afterwards
// (when a device that is waited for comes back, a thread of its own does).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nobounce/address.hpp"
#include "nobounce/error.hpp"
#include "nobounce/socket.hpp"

namespace nobounce {

enum class Mode : uint8_t {
  nocopy,  // payload is born in shared memory
  bounce,  // what a conventional guest does: private pages, copied through swiotlb by the I/O thread
};

enum class Drive : uint8_t {
  io_thread,     // a thread of the stack's own
  inline_drive,  // the application's thread, by poll()
};

enum class OnDisconnect : uint8_t {
  fail,  // sockets get network_down within a second
  // Sockets stay, the link is down until the device is back: tried for as long as it takes. What was on
  // its way is lost, as on any wire. A device that comes back with less than it had is refused, and one
  // that breaks the rules is not waited for: then as with `fail`.
  wait,
};

struct StackOptions {
  std::string net;                       // "vhost-user:PATH"; ",server" waits for the back-end
  IpPrefix address;                      // "10.77.0.2/24"
  std::vector<IpPrefix> more_addresses;  // further own addresses, at most 15
  std::optional<IpAddress> gateway;      // default route
  std::vector<Route> routes;             // longest prefix wins; at most 64
  std::optional<MacAddress> mac;         // default: the device's, else a random local one
  std::optional<uint16_t> mtu;           // 576 or more; default: the device's, else 1500
  Mode mode = Mode::nocopy;
  unsigned nocopy_tx_percent = 45;  // of the pool; ignored in bounce mode
  unsigned nocopy_rx_percent = 45;
  uint64_t pool_bytes = 64 << 20;     // shared memory: bounce slots and nocopy pages
  uint64_t private_bytes = 64 << 20;  // private pages for what does not fit there
  bool huge_pages = false;            // prefer huge pages; falls back with a notice
  uint16_t queue_size = 1024;         // descriptors a virtqueue, power of two, 32 to 32768
  Drive drive = Drive::io_thread;
  uint64_t spin_ns =
      50'000;  // polls at most that long before it sleeps; less where cores are short
  uint32_t send_buffer = 4 << 20;  // bytes a TCP socket
  uint32_t receive_buffer = 4 << 20;
  size_t connections_max = 4096;
  OnDisconnect on_disconnect = OnDisconnect::fail;  // once open() has succeeded
  // The device must take the first frame within that time, or open() fails: it may not map the shared
  // region (C126). 0: not looked at, for a back-end that begins to serve later.
  uint64_t first_frame_ns = 5'000'000'000;
  // How long ~Stack() waits for peers to acknowledge what sockets had sent when they were closed; it
  // returns as soon as all is. A lost segment is sent again after a second at the latest (the first
  // time-out of TCP), and 2 s let that arrive; a program that ends does not seem to hang.
  uint64_t linger_ns = 2'000'000'000;
  std::string capture;   // pcapng file of all frames, from private copies
  std::string counters;  // publish counters under this name ("" = not at all)
};

struct CounterValue {
  std::string name;
  uint64_t value = 0;
};

struct PingReply {
  IpAddress from;
  uint8_t ttl = 0;
  size_t bytes = 0;  // of ICMP payload
  uint64_t rtt_ns = 0;
};

class Stack {
 public:
  static Result<std::unique_ptr<Stack>> open(const StackOptions& options);
  // Sockets closed before are seen through, like those of a process that has ended (linger_ns); a
  // broken device ends that at once. Sockets still open are reset; their handles stay safe.
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Blocks until connected, refused or timed out (no time-out: TCP's own, minutes).
  [[nodiscard]] SocketResult<TcpSocket> tcp_connect(const Endpoint& remote, Timeout timeout = {},
                                                    const Endpoint& local = {});
  // Returns at once; is_writable() tells when it is connected, error() when it failed.
  [[nodiscard]] SocketResult<TcpSocket> tcp_connect_start(const Endpoint& remote,
                                                          const Endpoint& local = {});
  [[nodiscard]] SocketResult<TcpListener> tcp_listen(const Endpoint& local, unsigned backlog = 128);
  [[nodiscard]] SocketResult<UdpSocket> udp_bind(const Endpoint& local = {});
  [[nodiscard]] SocketResult<PingReply> ping(const IpAddress& to, uint16_t sequence,
                                             size_t payload_bytes, Timeout timeout);

  // Inline drive: runs rounds until there was work, or until the time-out. False on time-out.
  bool poll(Timeout timeout);

  // Why the interface is down: "device virtio0: ...". Nothing while all is well.
  [[nodiscard]] std::optional<std::string> failure() const;
  [[nodiscard]] std::vector<CounterValue> counters() const;
  [[nodiscard]] uint64_t counter(const std::string& name) const;  // 0 when there is none
  [[nodiscard]] MacAddress mac() const noexcept;
  [[nodiscard]] uint16_t mtu() const noexcept;
  [[nodiscard]] Mode mode() const noexcept;

 private:
  friend class StackSetUp;
  explicit Stack(std::shared_ptr<StackCore> core) noexcept;
  std::shared_ptr<StackCore> core_;
};

}  // namespace nobounce
