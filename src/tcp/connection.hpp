// The transmission control block: everything TCP knows of one connection. Plain data; what is done
// with it stands in the files of Machine.
//
// Send side. A packet of the send queue is either wholly unsent or was sent as it is (it may have
// been cut into segments below); once sent it is never changed again, because a clone of it may
// still be with the device.
//
//        snd_una                             snd_nxt          snd_una + snd_wnd
//   -------|------------------------------------|-----------------|--------->
//   acked  |  sent: `scoreboard` says of every  | unsent packets: `unsent` is the first
//          |  byte what became of it            |
//
// Receive side.
//        rcv_nxt                       rcv_adv
//   -------|------------------------------|------>   rcv_adv: the right edge we promised, which
//   queue  |  holes and out-of-order data |          never moves left (T-26)
#pragma once

#include <cstdint>
#include <system_error>

#include "base/list.hpp"
#include "base/timer.hpp"
#include "tcp/congestion.hpp"
#include "tcp/packet_queue.hpp"
#include "tcp/prr.hpp"
#include "tcp/rack.hpp"
#include "tcp/reassembly.hpp"
#include "tcp/rtt.hpp"
#include "tcp/scoreboard.hpp"
#include "tcp/seqnum.hpp"
#include "tcp/tcp_layer.hpp"
#include "tcp/undo.hpp"

namespace nobounce::tcp {

class Machine;

// state         sends data  receives data  next, when
// syn_sent      -           -              established: SYN-ACK; syn_received: SYN
// syn_received  -           -              established: ACK of our SYN
// established   yes         yes            fin_wait_1: shutdown; close_wait: peer's FIN
// fin_wait_1    rest, FIN   yes            fin_wait_2: FIN acked; closing: peer's FIN; time_wait: both
// fin_wait_2    -           yes            time_wait: peer's FIN
// close_wait    yes         -              last_ack: shutdown
// closing       rest, FIN   -              time_wait: FIN acked
// last_ack      rest, FIN   -              closed: FIN acked
// time_wait     -           -              closed: after 2 MSL
// closed        kept only until the owner lets go
enum class TcpState : uint8_t {
  closed,
  syn_sent,
  syn_received,
  established,
  fin_wait_1,
  fin_wait_2,
  close_wait,
  closing,
  last_ack,
  time_wait,
};
[[nodiscard]] const char* name(TcpState state) noexcept;

struct TableHook : ListHook {};    // every object in use
struct WorkHook : ListHook {};     // end_of_burst() has something to do
struct BlockedHook : ListHook {};  // output was refused: again on transmit_ready()
struct AgeHook : ListHook {};      // TIME-WAIT by age, or half-open of a listener by age

enum class AckNeed : uint8_t { none, delayed, now };
enum class SendTimer : uint8_t { off, retransmit, persist };

// The tail loss probe that is out (RFC 8985 7).
struct TailProbe {
  enum class Kind : uint8_t { none, new_data, again, repair };
  Kind kind = Kind::none;
  Seq end;  // SND.NXT behind it
};

class Connection final : public TableHook, public WorkHook, public BlockedHook, public AgeHook {
 public:
  Connection(Machine& machine, const LayerOptions& layer, RangePool& ranges) noexcept;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // ---- identity ----
  Machine& machine;
  Endpoint local, remote;
  Connection* hash_next = nullptr;
  bool in_table = false;
  TcpState state = TcpState::closed;
  bool is_passive = false;  // made by a listener (T-10)
  bool by_cookie = false;   // its SYN-ACK was one (T-15)
  Owner* owner = nullptr;
  bool released = false;         // the owner has let go
  bool is_orphan = false;        // ... and the connection goes on without it (T-60)
  Listener* listener = nullptr;  // while half-open
  ConnectionOptions options;

  // ---- events for the owner, told when the segment or timer is done with ----
  uint32_t pins = 0;  // > 0: being worked on; the object stays
  bool tell_connected = false;
  bool tell_readable = false;
  bool tell_closed = false;
  uint64_t tell_acked = 0;
  std::errc closed_reason{};
  std::errc soft_error{};  // last ICMP error, told when the connection times out (T-54)

  // ---- agreed options ----
  bool timestamps = false;
  bool sack = false;
  bool peer_scales = false;  // its SYN had a window scale
  uint8_t snd_shift = 0;
  uint8_t rcv_shift = 0;
  uint16_t peer_mss = 536;
  uint16_t path_mtu = 0;
  uint64_t path_mtu_until_ns = 0;  // 0: not lowered by ICMP or a guess
  uint32_t mss = 536;              // payload of one segment, options subtracted

  // ---- send ----
  Seq iss, snd_una, snd_nxt;
  Seq recover;  // SND.NXT when the last loss was found: what repair has to reach
  uint32_t snd_wnd = 0;
  uint32_t snd_wnd_max = 0;
  Seq snd_wl1, snd_wl2;
  PacketQueue send_queue;
  Packet* unsent = nullptr;
  Packet* resend_cursor = nullptr;  // where to look for what goes again; null: from the front
  uint64_t unsent_bytes = 0;
  bool fin_queued = false;
  bool fin_sent = false;
  bool hold_partial = false;  // the last send() said `more`
  bool in_recovery = false;
  bool first_partial_ack = false;
  bool window_was_full = false;  // congestion window stopped output
  uint32_t dup_acks = 0;         // without SACK
  Scoreboard scoreboard;
  Rack rack;
  Prr prr;
  TailProbe tail_probe;
  Undo undo;
  Congestion congestion;
  RttEstimator rtt;
  Seq rtt_next;  // next sample when this is acknowledged: one a flight (T-35)
  uint64_t syn_sent_ns = 0;
  bool syn_resent_early = false;  // after an old connection's ACK, once
  uint64_t last_sent_ns = 0;      // payload
  uint64_t progress_ns = 0;       // since when nothing new was acknowledged
  uint64_t heard_ns = 0;          // last acceptable segment
  uint32_t retries = 0;           // sends without an answer
  unsigned persist_backoff = 0;
  uint64_t retransmissions = 0;
  bool needs_output = false;

  // ---- receive ----
  Seq irs, rcv_nxt, rcv_adv;
  PacketQueue receive_queue;
  Reassembly reassembly;
  uint64_t unconsumed = 0;  // popped, but still with the application
  // What small frags cost beyond their bytes: a page each, whatever is in it.
  uint64_t queue_overhead = 0, unconsumed_overhead = 0;
  bool fin_received = false;
  AckNeed ack_need = AckNeed::none;
  uint32_t unacked_segments = 0;
  Seq last_ack_sent;
  Seq duplicate_begin, duplicate_end;  // arrived twice, to be told (D-SACK); equal: nothing
  uint32_t ts_recent = 0;
  uint64_t ts_recent_ns = 0;
  uint32_t ts_offset = 0;
  uint64_t challenge_ns = 0;  // no challenge ACK before
  uint32_t keepalive_sent = 0;

  // ---- timers ----
  SendTimer send_timer_kind = SendTimer::off;
  Timer send_timer;         // SYN, retransmission, persist, sender's SWS override
  Timer loss_timer;         // the next two, whichever is first; may fire before either
  uint64_t reorder_ns = 0;  // then more may be lost (T-41); 0: no
  uint64_t probe_ns = 0;    // then the tail is probed (T-42); 0: no
  Timer ack_timer;          // delayed ACK
  Timer life_timer;         // keepalive, FIN-WAIT-2, TIME-WAIT
};

class Listener final : public ListHook {
 public:
  Endpoint local;
  size_t backlog = 0;
  ListenerOwner* owner = nullptr;
  ConnectionOptions options;
  List<Connection, AgeHook> half_open;  // oldest first
  uint64_t cookies_until_ns = 0;        // none that it sent is good from then on
};

[[nodiscard]] constexpr bool is_synchronized(TcpState state) noexcept {
  return state >= TcpState::established;
}
// May data or FIN of ours still be outstanding or to be sent?
[[nodiscard]] constexpr bool may_send(TcpState state) noexcept {
  return state == TcpState::established || state == TcpState::fin_wait_1 ||
         state == TcpState::close_wait || state == TcpState::closing || state == TcpState::last_ack;
}
[[nodiscard]] constexpr bool may_receive(TcpState state) noexcept {
  return state == TcpState::established || state == TcpState::fin_wait_1 ||
         state == TcpState::fin_wait_2;
}

}  // namespace nobounce::tcp
