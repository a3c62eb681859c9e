// The machine behind tcp::Layer: all connections of a shard and what happens to them.
//
// How a segment passes: receive() [arrival.cc] parses it and finds whom it is for; then, by state,
// listen.cc, handshake.cc or on_segment() with the checks of RFC 9293 3.10.7.4 in their order: sequence, RST,
// SYN, ACK [ack.cc], text and FIN [receive.cc]. Nothing is sent from inside but retransmissions and
// duplicate ACKs: what else there is to send is noted, and end_of_burst() sends it once [send.cc,
// output.cc]. The owner is told last, by unpin(), when no code of ours holds on to the state.
//
// Pins: work on a connection is bracketed by pin() and unpin(). finish() may be called anywhere
// between; the object goes back to its pool in the last unpin(), or in release() and abort().
#pragma once

#include <array>
#include <expected>

#include "base/object_pool.hpp"
#include "tcp/connection.hpp"
#include "tcp/limits.hpp"
#include "tcp/segment.hpp"
#include "tcp/syn_cookie.hpp"
#include "tcp/table.hpp"

namespace nobounce::tcp {

inline constexpr uint32_t kSynRetriesMax = 6;
inline constexpr uint64_t kSynGiveUpNs = 180 * kNsPerSecond;  // R2 for SYN (RFC 9293 MUST-23)
inline constexpr uint32_t kSynAckRetriesMax = 5;              // T-16
inline constexpr uint32_t kDataRetriesMax = 15;               // R2, and not before:
inline constexpr uint64_t kDataGiveUpNs = 100 * kNsPerSecond;
inline constexpr uint32_t kOrphanRetriesMax = 8;  // T-60
inline constexpr uint64_t kPersistMaxNs = 60 * kNsPerSecond;
inline constexpr uint64_t kHoldMaxNs = 200 * kNsPerMs;                 // SWS override, `more`
inline constexpr uint64_t kFinWait2Ns = 60 * kNsPerSecond;             // T-59
inline constexpr uint64_t kLastAckNs = kNsPerSecond;                   // repeat_last_acks()
inline constexpr uint64_t kChallengeGapNs = 500 * kNsPerMs;            // T-21
inline constexpr uint64_t kPathMtuAgeNs = 600 * kNsPerSecond;          // T-53
inline constexpr uint64_t kPawsIdleNs = 24ULL * 86400 * kNsPerSecond;  // T-51
inline constexpr uint32_t kResetsPerSecond = 1000;                     // T-22
inline constexpr uint16_t kMssFloor = 88;                              // T-52
inline constexpr uint16_t kPathMtuFloor = 576;                         // T-53
inline constexpr uint32_t kAckEverySegments = 2;                       // T-28
inline constexpr size_t kSegmentHeadroom = 160;     // TCP, IPv6, VLAN, device header
inline constexpr size_t kReceivePacketsMax = 4096;  // in order, per connection

// Names of everything that is counted.
struct MachineCounters {
  explicit MachineCounters(CounterRegistry& registry);
  Counter segments_in, segments_out, data_segments_out, retransmitted, timeouts, fast_retransmits;
  Counter active_opens, passive_opens, established, resets_in, resets_out;
  Counter bad_header, bad_checksum, no_listener, not_unicast, no_ack_flag, paws, no_timestamp;
  Counter unacceptable, challenge_acks, challenge_suppressed, ack_invalid, out_of_order, duplicate;
  Counter limit_connections, limit_listeners, limit_half_open, limit_out_of_order,
      limit_receive_queue, limit_time_wait, limit_orphans, limit_resets;
  Counter accept_full_syn, accept_full_ack, accept_full_cookie;
  Counter cookie_sent, cookie_accepted, cookie_unasked, cookie_forged, cookie_expired,
      cookie_misplaced;
  Counter no_packet, blocked, no_route, too_big;
  Counter sack_in, sack_invalid, sack_reneged, limit_sack_ranges, dsack_in, dsack_out;
  Counter rack_lost, rack_lost_again, rack_timeouts, rack_reordering;
  Counter tlp_probes, tlp_repaired, tlp_needless;
  Counter needless, undo_dsack, undo_timeout;
  Counter zero_window_probes, keepalive_probes, path_mtu_lowered, black_hole_guesses, icmp_ignored,
      timed_out;
};

// The shard's packets are shared by all; each use leaves a part of them to those that matter more, so
// that a peer's holes, or unread or unacknowledged crumbs, never keep out the acknowledgement that
// frees them (TM-66): new data to send and the pieces it is cut into leave a quarter, data behind a
// gap a quarter, data in order an eighth; that last eighth is for frames on their way through and for control segments.
inline constexpr size_t kSendReserve = 4;
inline constexpr size_t kOutOfOrderReserve = 4;
inline constexpr size_t kReceiveReserve = 8;

// Ranges of all scoreboards, beside the one that each has: a few send times a connection, and eight
// connections with all that a scoreboard may hold.
[[nodiscard]] constexpr size_t ranges_of(size_t connections_max) noexcept {
  return 4 * connections_max + 8 * Scoreboard::kRangesMax;
}

class Machine {
 public:
  Machine(ShardContext& context, ip::Layer& ip, const LayerOptions& options);
  ~Machine();

  // ---- Layer's calls, see tcp_layer.hpp ----
  std::expected<Connection*, std::errc> connect(const Endpoint& local, const Endpoint& remote,
                                                Owner& owner,
                                                const ConnectionOptions& options) noexcept;
  std::expected<Listener*, std::errc> listen(const Endpoint& local, uint32_t backlog,
                                             ListenerOwner& owner,
                                             const ConnectionOptions& options) noexcept;
  void close(Listener& listener) noexcept;
  bool send(Connection& c, const Frag& frag, bool more, Notifier* notifier) noexcept;
  void push(Connection& c) noexcept;
  bool pop_received(Connection& c, Frag& frag) noexcept;
  void consumed(Connection& c, size_t bytes) noexcept;
  void shutdown_send(Connection& c) noexcept;
  void release(Connection& c) noexcept;
  void abort(Connection& c) noexcept;
  bool is_draining() noexcept;
  bool repeat_last_acks() noexcept;
  void reset_all() noexcept;
  void fail_all(std::errc reason) noexcept;
  void set_options(Connection& c, const ConnectionOptions& options) noexcept;
  ConnectionInfo info(const Connection& c) const noexcept;
  size_t connections() const noexcept { return table_.size(); }
  void receive(PacketPtr packet, const ip::Ingress& ingress) noexcept;
  void icmp_error(const ip::IcmpError& error) noexcept;
  void transmit_ready() noexcept;
  void end_of_burst() noexcept;
  void link_down() noexcept { link_is_up_ = false; }
  void link_up() noexcept;

  // ---- timers.cc: what fires ----
  void on_send_timer(Connection& c) noexcept;
  void on_loss_timer(Connection& c) noexcept;  // tail_probe.cc
  void on_ack_timer(Connection& c) noexcept;
  void on_life_timer(Connection& c) noexcept;

 private:
  enum class Force : uint8_t { no, yes, probe };  // probe: one segment, whatever is in flight
  enum class Admission : uint8_t { queue, cookie, drop };  // of a SYN

  // ---- machine.cc: life of the objects ----
  Connection* make_connection(const Endpoint& local, const Endpoint& remote) noexcept;
  void pin(Connection& c) noexcept { ++c.pins; }
  void unpin(Connection& c) noexcept;
  void tell_owner(Connection& c) noexcept;
  void finish(Connection& c, std::errc reason) noexcept;  // to CLOSED; the owner hears of it
  void forget(Connection& c) noexcept;                    // owner gone: finish, free if unpinned
  void free_if_done(Connection& c) noexcept;
  void note_work(Connection& c) noexcept;
  void note_blocked(Connection& c) noexcept;
  [[nodiscard]] uint64_t now() const noexcept { return context_.now_ns; }

  // ---- open.cc ----
  void init_sequence(Connection& c, Seq at_least) noexcept;
  void start_sequence(Connection& c, Seq iss) noexcept;
  [[nodiscard]] uint32_t timestamp_offset(const Endpoint& local,
                                          const Endpoint& remote) const noexcept;
  [[nodiscard]] static uint8_t our_scale(const ConnectionOptions& options) noexcept;
  [[nodiscard]] static uint16_t syn_window(const ConnectionOptions& options) noexcept;
  [[nodiscard]] uint16_t our_mss(const IpAddress& remote) const noexcept;
  [[nodiscard]] static uint16_t peer_mss(const wire::TcpOptions& options,
                                         const IpAddress& remote) noexcept;
  std::expected<uint16_t, std::errc> choose_port(const IpAddress& local,
                                                 const Endpoint& remote) noexcept;
  void open_window(Connection& c) noexcept;
  void refresh_mss(Connection& c) noexcept;

  // ---- arrival.cc ----
  void on_segment(Connection& c, Segment& segment) noexcept;
  [[nodiscard]] bool passes_timestamps(Connection& c, const Segment& segment) noexcept;
  [[nodiscard]] bool is_acceptable(const Connection& c, const Segment& segment) const noexcept;
  void on_unacceptable(Connection& c, const Segment& segment) noexcept;
  void on_reset(Connection& c, const Segment& segment) noexcept;
  void on_time_wait(Connection& c, const Segment& segment) noexcept;
  [[nodiscard]] bool reopens(const Connection& c, const Segment& segment) const noexcept;

  // ---- listen.cc ----
  [[nodiscard]] Admission admit(Listener& listener) noexcept;
  void on_listen(Listener& listener, Segment& segment, const Endpoint& local,
                 const Endpoint& remote, Seq isn_at_least) noexcept;
  Connection* make_half_open(Listener& listener, const Endpoint& local,
                             const Endpoint& remote) noexcept;
  void take_syn(Connection& c, Seq irs, uint16_t window, const wire::TcpOptions& options) noexcept;
  void send_cookie(Listener& listener, const Segment& segment, const Endpoint& local,
                   const Endpoint& remote) noexcept;
  [[nodiscard]] std::expected<CookieFields, CookieRefusal> judge_cookie(
      const Listener& listener, const Segment& segment, const Endpoint& local,
      const Endpoint& remote) noexcept;
  void on_cookie(Listener& listener, Segment& segment, const Endpoint& local,
                 const Endpoint& remote) noexcept;
  void take_cookie(Connection& c, const Segment& segment, const CookieFields& fields) noexcept;
  [[nodiscard]] bool is_earlier_cookie(Connection& c, const Segment& segment) noexcept;
  // Half-open connections leave as many objects to established ones.
  [[nodiscard]] size_t half_open_max() const noexcept {
    return std::max<size_t>(options_.connections_max / 2, 1);
  }

  // ---- handshake.cc ----
  void on_syn_sent(Connection& c, Segment& segment) noexcept;
  [[nodiscard]] bool on_syn_received_syn(Connection& c, Segment& segment) noexcept;
  [[nodiscard]] bool on_syn_received_ack(Connection& c, const Segment& segment) noexcept;
  void adopt_options(Connection& c, const wire::TcpOptions& options) noexcept;
  void become_established(Connection& c, const Segment& segment) noexcept;

  // ---- ack.cc ----
  [[nodiscard]] bool on_ack(Connection& c, const Segment& segment) noexcept;
  void update_send_window(Connection& c, const Segment& segment) noexcept;
  void take_new_ack(Connection& c, const Segment& segment, Delivery& delivery) noexcept;
  void on_new_ack(Connection& c, const Segment& segment) noexcept;
  void grow_window(Connection& c, uint32_t flight_bytes, uint32_t acked) noexcept;
  void on_duplicate_ack(Connection& c) noexcept;
  void take_rtt_sample(Connection& c, const Segment& segment, uint64_t clean_sent_ns) noexcept;
  void on_fin_acked(Connection& c) noexcept;
  void retransmit_first(Connection& c) noexcept;

  // ---- recovery.cc: with SACK ----
  void on_ack_with_sack(Connection& c, const Segment& segment) noexcept;
  void take_blocks(Connection& c, const Segment& segment, Delivery& delivery) noexcept;
  [[nodiscard]] uint32_t find_losses(Connection& c, uint32_t delivered) noexcept;
  void enter_sack_recovery(Connection& c, uint32_t delivered) noexcept;
  void pace_recovery(Connection& c, uint32_t delivered, bool goes_well) noexcept;
  void leave_sack_recovery(Connection& c) noexcept;
  void on_reorder_timeout(Connection& c) noexcept;
  void on_duplicate_block(Connection& c, const Scoreboard::Span& span) noexcept;
  void take_back_timeout(Connection& c, const Segment& segment) noexcept;
  void take_back(Connection& c) noexcept;

  // ---- tail_probe.cc ----
  void schedule_probe(Connection& c) noexcept;
  void arm_loss_timer(Connection& c) noexcept;
  void send_probe(Connection& c) noexcept;
  [[nodiscard]] bool resend_tail(Connection& c) noexcept;
  void on_probe_answer(Connection& c, const Segment& segment, bool advances) noexcept;

  // ---- receive.cc ----
  void on_text(Connection& c, Segment& segment) noexcept;
  void hold(Connection& c, Segment& segment) noexcept;
  [[nodiscard]] Reassembly::Limits reassembly_limits(const Connection& c) const noexcept;
  void on_in_order(Connection& c, Segment& segment) noexcept;
  [[nodiscard]] bool is_over_full(const Connection& c, uint32_t bytes) noexcept;
  [[nodiscard]] bool queue_in_order(Connection& c, PacketPtr packet) noexcept;
  [[nodiscard]] size_t packets_left() const noexcept {
    return context_.packets.capacity() - context_.packets.in_use();
  }
  [[nodiscard]] bool is_short_for_sends() const noexcept {
    return packets_left() <= context_.packets.capacity() / kSendReserve;
  }
  void note_duplicate(Connection& c, Seq begin, Seq end) noexcept;
  void on_fin(Connection& c) noexcept;
  [[nodiscard]] static uint64_t receive_used(const Connection& c) noexcept;
  [[nodiscard]] static uint32_t window_max(const Connection& c) noexcept;
  [[nodiscard]] static uint32_t receive_space(const Connection& c) noexcept;
  [[nodiscard]] uint16_t advertise(Connection& c) noexcept;

  // ---- send.cc: what may be sent ----
  void output(Connection& c, Force force = Force::no) noexcept;
  [[nodiscard]] bool output_again(Connection& c) noexcept;  // false: stop
  [[nodiscard]] bool output_new(Connection& c, Force force) noexcept;
  void output_fin(Connection& c) noexcept;
  [[nodiscard]] uint32_t sendable(Connection& c, uint32_t payload, Force force) noexcept;
  [[nodiscard]] uint32_t congestion_room(const Connection& c, uint32_t flight) const noexcept;
  [[nodiscard]] uint32_t packet_payload_max(const Connection& c) const noexcept;
  void send_all_again(Connection& c) noexcept;
  void note_sent(Connection& c, uint32_t bytes) noexcept;
  void arm_send_timer(Connection& c) noexcept;
  void restart_retransmit_timer(Connection& c) noexcept;

  // ---- output.cc: how it is sent ----
  [[nodiscard]] bool send_packet(Connection& c, Packet& queued, uint32_t offset, uint32_t bytes,
                                 Seq seq) noexcept;
  [[nodiscard]] bool resend_at(Connection& c, Seq seq, uint32_t bytes_max, uint32_t& sent) noexcept;
  void note_resent(Connection& c, Seq seq, uint32_t bytes) noexcept;
  void add_blocks(Connection& c, wire::TcpOptions& options) noexcept;
  [[nodiscard]] bool send_control(Connection& c, uint8_t flags, Seq seq) noexcept;
  [[nodiscard]] bool send_syn(Connection& c) noexcept;
  void send_ack(Connection& c) noexcept;
  void send_reset(Connection& c) noexcept;  // seq = SND.NXT
  // RST without a connection, from `local` to the segment's sender.
  void refuse(const Segment& segment, const IpAddress& local, const IpAddress& remote) noexcept;
  [[nodiscard]] bool transmit(Connection& c, PacketPtr packet, wire::TcpHeader& header) noexcept;
  void ack_was_sent(Connection& c) noexcept;
  ip::SendResult send_down(PacketPtr packet, const wire::TcpHeader& header, const IpAddress& source,
                           const IpAddress& destination) noexcept;

  // ---- challenge.cc ----
  void challenge(Connection& c) noexcept;  // rate limited ACK
  void need_ack(Connection& c, AckNeed need) noexcept;

  // ---- timers.cc ----
  void on_syn_timeout(Connection& c) noexcept;
  void on_retransmit_timeout(Connection& c) noexcept;
  void on_persist_timeout(Connection& c) noexcept;
  [[nodiscard]] bool gave_up(Connection& c, uint64_t since_ns) noexcept;
  void arm_life_timer(Connection& c) noexcept;
  void on_keepalive(Connection& c) noexcept;

  // ---- link.cc ----
  void resume(Connection& c) noexcept;
  void wait_for_link(Connection& c, SendTimer kind) noexcept;
  [[nodiscard]] bool is_link_up(const Connection& c) const noexcept {
    return link_is_up_ || ip_.is_ours(c.remote.address);
  }

  // ---- icmp.cc ----
  void on_path_mtu(Connection& c, uint16_t next_hop_mtu) noexcept;
  void guess_black_hole(Connection& c) noexcept;

  // ---- close.cc ----
  void enter_time_wait(Connection& c) noexcept;
  void reset_and_forget(Connection& c) noexcept;

  [[nodiscard]] uint32_t timestamp(uint32_t offset) const noexcept {
    return static_cast<uint32_t>(now() / kNsPerMs) + offset;
  }

  ShardContext& context_;
  ip::Layer& ip_;
  LayerOptions options_;
  MachineCounters counters_;
  SipKey isn_key_, timestamp_key_, cookie_key_;
  RangePool ranges_;
  ObjectPool<Connection> connections_;
  ObjectPool<Listener> listeners_;
  ConnectionTable table_;
  ListenerTable listener_table_;
  List<Connection, TableHook> all_;
  List<Connection, WorkHook> work_;
  List<Connection, BlockedHook> blocked_;
  List<Connection, AgeHook> time_wait_;  // oldest first
  bool link_is_up_ = true;
  size_t half_open_ = 0;
  size_t orphans_ = 0;
  TokenBucket resets_{kResetsPerSecond};
  ChallengeBudget challenges_;
};

}  // namespace nobounce::tcp
