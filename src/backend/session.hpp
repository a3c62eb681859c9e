// The vhost-user device as one front-end sees it: features, memory table, rings, and what each
// message may do to them.
//
// A strict state machine. A message is first a form (wire/vhost_user.hpp: size, fds), then judged
// against the state, and only then takes effect, wholly or not at all.
//
//   verdict    when                                            what the connection does
//   accepted   it took effect                                  reply, or acknowledge when asked
//   refused    legal form, not now or not with these values    acknowledge with 1 when asked, else close
//   fault      illegal form, or nothing we ever offered        close
//
//   message           needs                                        effect
//   SET_FEATURES      subset of the offer, VERSION_1;              features
//                     the same again while a ring is started
//   SET_MEM_TABLE     a sound table in which every started ring    new map, started rings move
//                     still lies
//   SET_VRING_NUM     ring not started; power of two, <= limit     size; addresses are forgotten
//   SET_VRING_BASE    ring not started; 16 bits                    where to begin
//   SET_VRING_ADDR    ring not started; memory, size               addresses
//   SET_VRING_KICK    features, addresses that still translate     ring started; its kick fd
//   SET_VRING_CALL    -                                            call fd, told once if started
//   SET_VRING_ENABLE  bit 30 acknowledged                          enabled or not
//   GET_VRING_BASE    -                                            ring stopped; its index
//
// Everything a front-end gave is dropped with the session: fds, mappings, rings.
//
// Threads: the service thread. Cost: set-up only; allocates.
// Spec: virtio.md 1, 11, 12; TM-73..TM-78.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_queue.hpp"
#include "backend/guest_memory.hpp"
#include "nobounce/address.hpp"
#include "wire/vhost_user.hpp"

namespace nobounce::backend {

// What the device offers; fixed for the life of the back-end.
struct DeviceOffer {
  uint64_t features = 0;
  uint64_t protocol_features = 0;
  uint16_t queue_pairs = 1;
  uint16_t queue_size_limit = 1024;
  MacAddress guest_mac;
  uint16_t mtu = 1500;

  // Everything this device can do, less what `mask` takes away.
  [[nodiscard]] static uint64_t all_features(uint16_t queue_pairs, uint64_t mask) noexcept;
  [[nodiscard]] static uint64_t all_protocol_features(uint16_t queue_pairs) noexcept;
};

// One message as it came in. Fds that nobody takes are closed with it.
struct Message {
  wire::VhostUserHeader header;
  std::array<std::byte, wire::kVhostUserPayloadMax> payload;
  std::array<UniqueFd, wire::kVhostUserFdsMax> fds;
  size_t fd_count = 0;

  [[nodiscard]] Bytes body() const noexcept { return Bytes(payload).first(header.size); }
};

enum class Verdict : uint8_t { accepted, refused, fault };

struct Outcome {
  Verdict verdict = Verdict::accepted;
  std::string reason;  // why not
};

// The reply to one message, ready to be sent; empty when there is none.
struct Reply {
  std::array<std::byte, wire::kVhostUserHeaderBytes + wire::kVhostUserPayloadMax> bytes;
  size_t size = 0;
};

struct Vring {
  Vring(QueueDirection direction, uint16_t size_limit, BackendCounters& counters)
      : queue(direction, size_limit, counters) {}

  DeviceQueue queue;
  PeerEvent kick;
  uint16_t size = 0;  // 0: not said
  uint16_t base = 0;
  bool enabled = false;
  bool polled = false;  // started without a kick fd: the guest never tells
  std::optional<wire::VringAddr> address;
};

class Session {
 public:
  // `watchdog` may be null (tests) and outlives the session.
  Session(const DeviceOffer& offer, BackendCounters& counters, SignalWatchdog* watchdog);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Judges and applies one message. `reply` is what must be sent back, if anything. After `fault`,
  // and after `refused` without a reply, the connection must be closed.
  [[nodiscard]] Outcome handle(Message& message, Reply& reply);

  // ---- what the port sees ----
  [[nodiscard]] uint64_t features() const noexcept { return features_; }
  [[nodiscard]] bool has(uint64_t feature) const noexcept { return (features_ & feature) != 0; }
  [[nodiscard]] uint16_t queue_pairs() const noexcept { return offer_.queue_pairs; }
  [[nodiscard]] Vring& receive_ring(size_t pair) noexcept { return *vrings_[2 * pair]; }
  [[nodiscard]] Vring& transmit_ring(size_t pair) noexcept { return *vrings_[2 * pair + 1]; }
  [[nodiscard]] size_t vring_count() const noexcept { return vrings_.size(); }
  [[nodiscard]] Vring& vring(size_t index) noexcept { return *vrings_[index]; }
  // Enabled, started, not broken: frames may flow.
  [[nodiscard]] static bool is_live(const Vring& vring) noexcept {
    return vring.enabled && vring.queue.is_usable();
  }
  [[nodiscard]] uint16_t mtu() const noexcept { return mtu_; }
  [[nodiscard]] const DeviceOffer& offer() const noexcept { return offer_; }
  // The first pair's rings are started: somebody may use the port.
  [[nodiscard]] bool is_ready() const noexcept;
  // A ring was started without a kick fd: the guest never tells, so look often.
  [[nodiscard]] bool must_poll() const noexcept;
  // Changes whenever a ring starts or stops, or a kick fd changes.
  [[nodiscard]] uint64_t generation() const noexcept { return generation_; }

 private:
  using Request = wire::VhostUserRequest;

  [[nodiscard]] Outcome apply(Message& message, Reply& reply);
  [[nodiscard]] Outcome set_features(uint64_t features);
  [[nodiscard]] Outcome set_protocol_features(uint64_t features);
  [[nodiscard]] Outcome set_mem_table(Message& message);
  [[nodiscard]] Outcome set_vring_num(const wire::VringState& state);
  [[nodiscard]] Outcome set_vring_base(const wire::VringState& state);
  [[nodiscard]] Outcome set_vring_addr(const wire::VringAddr& addr);
  [[nodiscard]] Outcome set_vring_enable(const wire::VringState& state);
  [[nodiscard]] Outcome set_vring_event(Message& message);
  [[nodiscard]] Outcome start_vring(Vring& vring, PeerEvent kick, bool polled);
  [[nodiscard]] Outcome get_vring_base(const wire::VringState& state, Reply& reply);
  [[nodiscard]] Outcome get_config(const wire::ConfigSpace& config, Reply& reply);
  [[nodiscard]] Outcome set_mtu(uint64_t mtu);
  void reset_owner();

  [[nodiscard]] Vring* find_vring(uint32_t index) noexcept;
  [[nodiscard]] bool any_started() const noexcept;
  [[nodiscard]] static std::optional<RingParts> translate(const GuestMemory& memory,
                                                          const wire::VringAddr& addr,
                                                          uint16_t size) noexcept;

  const DeviceOffer offer_;
  BackendCounters& counters_;
  SignalWatchdog* watchdog_;
  uint64_t features_ = 0;
  bool features_set_ = false;
  uint64_t protocol_features_ = 0;
  uint16_t mtu_;
  uint64_t generation_ = 0;
  std::unique_ptr<GuestMemory> memory_;  // before the rings: they point into it
  std::vector<std::unique_ptr<Vring>> vrings_;
};

}  // namespace nobounce::backend
