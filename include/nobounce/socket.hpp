// Sockets of a nobounce stack: TCP and UDP, blocking or not.
//
// send() copies once, in the calling thread, into pages the device may read; the I/O thread never
// touches the payload. recv() copies once, in the calling thread, from where the device wrote it.
//
// Handles are move-only; destruction closes. A handle stays safe to use after its Stack is gone:
// calls then return std::errc::network_down.
// Threads: any thread may use any socket, several at once; sends of one socket are serialised, and
// so are receives. Closing (close, abort, destruction, move) is the last call: no other may be under
// way; shutdown() ends calls that wait. Cost: send and recv one copy and no system call unless a sleeping thread must be
// woken or this one must wait.
// Errors: std::errc with the meaning of the errno of that name; a would-be block of a non-blocking
// socket is operation_would_block, an expired time-out is timed_out for connect and
// operation_would_block for send and recv (as SO_SNDTIMEO / SO_RCVTIMEO).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "nobounce/address.hpp"
#include "nobounce/error.hpp"

namespace nobounce {

class StackCore;
struct TcpCore;
struct ListenerCore;
struct UdpCore;

// No value: wait for ever.
using Timeout = std::optional<std::chrono::nanoseconds>;

enum class Shutdown : uint8_t { receive, send, both };
enum class More : uint8_t { no, yes };  // yes: more data follows at once (MSG_MORE)

class TcpSocket {
 public:
  TcpSocket() noexcept = default;  // not open: calls return bad_file_descriptor
  TcpSocket(TcpSocket&& other) noexcept;
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  // Copies as much as the send buffer takes; blocking sockets take all of it. Returns bytes taken;
  // an error only when nothing was. broken_pipe after shutdown(send).
  [[nodiscard]] SocketResult<size_t> send(std::span<const std::byte> data, More more = More::no);
  // At least one byte, or 0 at the end of the stream.
  [[nodiscard]] SocketResult<size_t> recv(std::span<std::byte> buffer);

  SocketResult<void> shutdown(Shutdown how);
  void close() noexcept;  // orderly; unread data resets the connection (RFC 9293 3.6.1)
  void abort() noexcept;  // RST

  void set_nonblocking(bool on) noexcept;
  void set_send_timeout(Timeout timeout) noexcept;
  void set_receive_timeout(Timeout timeout) noexcept;
  SocketResult<void> set_nodelay(bool on) noexcept;
  SocketResult<void> set_keepalive(bool on) noexcept;

  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }
  // What a call would do right now.
  [[nodiscard]] bool is_readable() const noexcept;                // data, end of stream or an error
  [[nodiscard]] bool is_writable() const noexcept;                // room, or an error
  [[nodiscard]] std::optional<std::errc> error() const noexcept;  // why it was closed
  // Bytes sent that the peer has not acknowledged yet (Linux: SIOCOUTQ). 0: all has arrived there.
  [[nodiscard]] size_t unacknowledged() const noexcept;
  [[nodiscard]] Endpoint local() const noexcept;
  [[nodiscard]] Endpoint remote() const noexcept;

 private:
  friend class Stack;
  friend class TcpListener;
  friend class StackSetUp;
  TcpSocket(std::shared_ptr<StackCore> stack, TcpCore* core) noexcept;
  std::shared_ptr<StackCore> stack_;
  TcpCore* core_ = nullptr;
};

class TcpListener {
 public:
  TcpListener() noexcept = default;
  TcpListener(TcpListener&& other) noexcept;
  TcpListener& operator=(TcpListener&& other) noexcept;
  ~TcpListener();

  [[nodiscard]] SocketResult<TcpSocket> accept(Timeout timeout = {});
  // Waiting and later accept() calls return operation_canceled. The one call that may be made while
  // another thread is inside accept().
  void interrupt() noexcept;
  void close() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }
  [[nodiscard]] Endpoint local() const noexcept;

 private:
  friend class Stack;
  TcpListener(std::shared_ptr<StackCore> stack, ListenerCore* core) noexcept;
  std::shared_ptr<StackCore> stack_;
  ListenerCore* core_ = nullptr;
};

struct ReceivedDatagram {
  size_t bytes = 0;      // copied
  size_t full_size = 0;  // of the datagram: larger than `bytes` when it was cut
  Endpoint from;
};

class UdpSocket {
 public:
  UdpSocket() noexcept = default;
  UdpSocket(UdpSocket&& other) noexcept;
  UdpSocket& operator=(UdpSocket&& other) noexcept;
  ~UdpSocket();

  // One datagram of up to 65,507 bytes, in fragments when it is above the path's MTU; message_size
  // when it is larger. Waits while the device is full (operation_would_block when non-blocking).
  SocketResult<size_t> send_to(std::span<const std::byte> data, const Endpoint& to);
  [[nodiscard]] SocketResult<ReceivedDatagram> recv_from(std::span<std::byte> buffer);
  SocketResult<void> connect(const Endpoint& remote);
  void close() noexcept;

  void set_nonblocking(bool on) noexcept;
  void set_receive_timeout(Timeout timeout) noexcept;
  [[nodiscard]] bool is_open() const noexcept { return core_ != nullptr; }
  [[nodiscard]] Endpoint local() const noexcept;

 private:
  friend class Stack;
  UdpSocket(std::shared_ptr<StackCore> stack, UdpCore* core) noexcept;
  std::shared_ptr<StackCore> stack_;
  UdpCore* core_ = nullptr;
};

}  // namespace nobounce
