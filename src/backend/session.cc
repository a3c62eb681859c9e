#include "backend/session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "netdev/net_device.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

using wire::VhostUserHeader;
using wire::VhostUserU64;

Outcome refused(std::string reason) { return {Verdict::refused, std::move(reason)}; }
Outcome fault(std::string reason) { return {Verdict::fault, std::move(reason)}; }

template <class Payload>
void emit(Reply& reply, wire::VhostUserRequest request, const Payload& payload, size_t bytes) {
  const VhostUserHeader header{
      .request = request, .reply = true, .size = static_cast<uint32_t>(bytes)};
  header.emit(reply.bytes);
  payload.emit(MutableBytes(reply.bytes).subspan(wire::kVhostUserHeaderBytes));
  reply.size = wire::kVhostUserHeaderBytes + bytes;
}

void emit_u64(Reply& reply, wire::VhostUserRequest request, uint64_t value) {
  emit(reply, request, VhostUserU64{value}, VhostUserU64::kBytes);
}

}  // namespace

uint64_t DeviceOffer::all_features(uint16_t queue_pairs, uint64_t mask) noexcept {
  using namespace wire;
  uint64_t features = kVersion1 | kRingEventIdx | kVhostUserProtocolFeatures | kNetMrgRxbuf |
                      kNetCsum | kNetGuestCsum | kNetHostTso4 | kNetHostTso6 | kNetGuestTso4 |
                      kNetGuestTso6 | kNetMac | kNetMtu | kNetStatus;
  if (queue_pairs > 1) features |= kNetMq;
  features &= mask | kVersion1 | kVhostUserProtocolFeatures;
  // Segmentation stands on partial checksums (virtio.md 1).
  if ((features & kNetCsum) == 0) features &= ~(kNetHostTso4 | kNetHostTso6);
  if ((features & kNetGuestCsum) == 0) features &= ~(kNetGuestTso4 | kNetGuestTso6);
  return features;
}

uint64_t DeviceOffer::all_protocol_features(uint16_t queue_pairs) noexcept {
  using namespace wire;
  return kProtocolReplyAck | kProtocolMtu | kProtocolConfig | (queue_pairs > 1 ? kProtocolMq : 0);
}

Session::Session(const DeviceOffer& offer, BackendCounters& counters, SignalWatchdog* watchdog)
    : offer_(offer), counters_(counters), watchdog_(watchdog), mtu_(offer.mtu) {
  for (size_t i = 0; i < 2 * size_t{offer.queue_pairs}; ++i) {
    const auto direction =
        i % 2 == 0 ? QueueDirection::device_writes : QueueDirection::device_reads;
    vrings_.push_back(std::make_unique<Vring>(direction, offer.queue_size_limit, counters));
  }
}

bool Session::is_ready() const noexcept {
  return vrings_[0]->queue.is_started() && vrings_[1]->queue.is_started();
}

bool Session::any_started() const noexcept {
  return std::ranges::any_of(vrings_, [](const auto& v) { return v->queue.is_started(); });
}

bool Session::must_poll() const noexcept {
  return std::ranges::any_of(vrings_,
                             [](const auto& v) { return v->polled && v->queue.is_usable(); });
}

// The index is judged as the 32 bits it came in (TM-75).
Vring* Session::find_vring(uint32_t index) noexcept {
  return index < vrings_.size() ? vrings_[index].get() : nullptr;
}

Outcome Session::handle(Message& message, Reply& reply) {
  reply.size = 0;
  counters_.messages.add();
  const VhostUserHeader header = message.header;
  Outcome outcome;
  if (const auto rule = wire::check_request(header, message.fd_count); !rule) {
    outcome = fault(to_string(rule.error()));
  } else if (header.reply) {
    outcome = fault("a reply where a request is expected");
  } else {
    outcome = apply(message, reply);
  }
  if (outcome.verdict == Verdict::fault) {
    counters_.protocol_faults.add();
    reply.size = 0;
    return outcome;
  }
  if (outcome.verdict == Verdict::refused) counters_.messages_refused.add();
  const bool asked = header.need_reply && (protocol_features_ & wire::kProtocolReplyAck) != 0;
  if (asked && reply.size == 0) {
    emit_u64(reply, header.request, outcome.verdict == Verdict::accepted ? 0 : 1);
  }
  return outcome;
}

// The one place that names the requests; what is not here was never offered.
Outcome Session::apply(Message& message, Reply& reply) {
  const Request request = message.header.request;
  const Bytes body = message.body();
  const auto with = [&](auto parsed, auto&& action) -> Outcome {
    if (!parsed) return fault(to_string(parsed.error()));
    return action(*parsed);
  };
  switch (request) {
    case Request::get_features:
      emit_u64(reply, request, offer_.features);
      return {};
    case Request::set_features:
      return with(VhostUserU64::parse(body), [&](auto& v) { return set_features(v.value); });
    case Request::get_protocol_features:
      emit_u64(reply, request, offer_.protocol_features);
      return {};
    case Request::set_protocol_features:
      return with(VhostUserU64::parse(body),
                  [&](auto& v) { return set_protocol_features(v.value); });
    case Request::set_owner:
      return {};
    case Request::reset_owner:
      reset_owner();
      return {};
    case Request::set_mem_table:
      return set_mem_table(message);
    case Request::set_vring_num:
      return with(wire::VringState::parse(body), [&](auto& v) { return set_vring_num(v); });
    case Request::set_vring_base:
      return with(wire::VringState::parse(body), [&](auto& v) { return set_vring_base(v); });
    case Request::set_vring_addr:
      return with(wire::VringAddr::parse(body), [&](auto& v) { return set_vring_addr(v); });
    case Request::set_vring_kick:
    case Request::set_vring_call:
    case Request::set_vring_err:
      return set_vring_event(message);
    case Request::get_vring_base:
      return with(wire::VringState::parse(body), [&](auto& v) { return get_vring_base(v, reply); });
    case Request::set_vring_enable:
      return with(wire::VringState::parse(body), [&](auto& v) { return set_vring_enable(v); });
    case Request::get_queue_num:
      emit_u64(reply, request, offer_.queue_pairs);
      return {};
    case Request::net_set_mtu:
      return with(VhostUserU64::parse(body), [&](auto& v) { return set_mtu(v.value); });
    case Request::get_config:
      return with(wire::ConfigSpace::parse(body), [&](auto& v) { return get_config(v, reply); });
    case Request::set_config:
      return refused("the configuration is read-only");
    default:
      return fault("a request of a feature that was not offered");
  }
}

// ---- features ---------------------------------------------------------------------------------

Outcome Session::set_features(uint64_t features) {
  if ((features & ~offer_.features) != 0) {
    return refused(fmt::format("features {:#x} were not offered", features & ~offer_.features));
  }
  if ((features & wire::kVersion1) == 0) {
    return refused("VIRTIO_F_VERSION_1 is missing (legacy drivers are not served)");
  }
  if (features_set_ && features == features_) return {};
  if (any_started()) return refused("features cannot change while a ring runs");
  // Bit 30 says how rings begin: disabled until SET_VRING_ENABLE with it, enabled without.
  const bool changes =
      !features_set_ || ((features ^ features_) & wire::kVhostUserProtocolFeatures) != 0;
  features_ = features;
  features_set_ = true;
  if (changes) {
    for (auto& vring : vrings_) vring->enabled = !has(wire::kVhostUserProtocolFeatures);
  }
  return {};
}

Outcome Session::set_protocol_features(uint64_t features) {
  if ((features & ~offer_.protocol_features) != 0) {
    return refused("protocol features that were not offered");
  }
  protocol_features_ = features;
  return {};
}

Outcome Session::set_mtu(uint64_t mtu) {
  if ((protocol_features_ & wire::kProtocolMtu) == 0) return refused("MTU was not negotiated");
  if (mtu < kLinkMtuMin || mtu > kMtuMax) return refused("MTU out of range");
  mtu_ = std::min(offer_.mtu, static_cast<uint16_t>(mtu));
  return {};
}

Outcome Session::get_config(const wire::ConfigSpace& config, Reply& reply) {
  std::array<std::byte, wire::kConfigBytesMax> space{};  // zero behind what we know
  std::ranges::copy(std::as_bytes(std::span(offer_.guest_mac.bytes)), space.begin());
  store_le<uint16_t>(space, wire::kNetConfigStatus, wire::kNetLinkUp);
  store_le<uint16_t>(space, wire::kNetConfigMaxPairs, offer_.queue_pairs);
  store_le<uint16_t>(space, wire::kNetConfigMtu, offer_.mtu);
  wire::ConfigSpace answer{.offset = config.offset, .size = config.size, .flags = config.flags};
  const bool granted = (protocol_features_ & wire::kProtocolConfig) != 0 && config.size > 0 &&
                       config.offset <= space.size() && config.size <= space.size() - config.offset;
  if (granted) {
    std::ranges::copy(Bytes(space).subspan(config.offset, config.size), answer.content.begin());
  } else {
    answer.size = 0;  // the error reply of this request
  }
  emit(reply, Request::get_config, answer, answer.bytes());
  return {};
}

// ---- memory -----------------------------------------------------------------------------------

std::optional<RingParts> Session::translate(const GuestMemory& memory, const wire::VringAddr& addr,
                                            uint16_t size) noexcept {
  const auto descriptors = memory.translate_user(
      addr.descriptors, wire::descriptor_table_bytes(size), wire::kDescriptorAlign);
  const auto avail = memory.translate_user(addr.avail, wire::avail_bytes(size), wire::kAvailAlign);
  const auto used = memory.translate_user(addr.used, wire::used_bytes(size), wire::kUsedAlign);
  if (!descriptors || !avail || !used) return std::nullopt;
  return RingParts{*descriptors, *avail, *used};
}

// All or nothing: the old table stays until every started ring is known to lie in the new one.
Outcome Session::set_mem_table(Message& message) {
  const auto table = wire::MemTable::parse(message.body());
  if (!table) return fault(to_string(table.error()));
  if (table->count != message.fd_count) return fault("one file descriptor a region is expected");
  auto memory = GuestMemory::create(*table, std::span(message.fds).first(message.fd_count));
  if (!memory) return refused(memory.error().to_string());
  std::vector<std::optional<RingParts>> moved(vrings_.size());
  for (size_t i = 0; i < vrings_.size(); ++i) {
    if (!vrings_[i]->queue.is_started()) continue;
    moved[i] = translate(**memory, *vrings_[i]->address, vrings_[i]->size);
    if (!moved[i]) return refused(fmt::format("running ring {} is not in the new table", i));
  }
  for (size_t i = 0; i < vrings_.size(); ++i) {
    if (moved[i]) vrings_[i]->queue.move_to(*moved[i], **memory);
  }
  memory_ = std::move(*memory);
  return {};
}

// ---- rings ------------------------------------------------------------------------------------

Outcome Session::set_vring_num(const wire::VringState& state) {
  Vring* vring = find_vring(state.index);
  if (vring == nullptr) return refused("no such ring");
  if (vring->queue.is_started()) return refused("the ring runs");
  if (!is_power_of_two(state.value) || state.value > offer_.queue_size_limit) {
    return refused(
        fmt::format("a ring of {} descriptors was asked for; the limit is {}, and a power of two",
                    state.value, offer_.queue_size_limit));
  }
  vring->size = static_cast<uint16_t>(state.value);
  vring->address.reset();
  return {};
}

Outcome Session::set_vring_base(const wire::VringState& state) {
  Vring* vring = find_vring(state.index);
  if (vring == nullptr) return refused("no such ring");
  if (vring->queue.is_started()) return refused("the ring runs");
  if (state.value > UINT16_MAX) return refused("ring base out of range");
  vring->base = static_cast<uint16_t>(state.value);
  return {};
}

Outcome Session::set_vring_addr(const wire::VringAddr& addr) {
  Vring* vring = find_vring(addr.index);
  if (vring == nullptr) return refused("no such ring");
  if (vring->queue.is_started()) return refused("the ring runs");
  if (memory_ == nullptr) return refused("ring addresses before the memory table");
  if (vring->size == 0) return refused("ring addresses before the ring size");
  if (addr.flags != 0) return refused("logging was not negotiated");
  if (!translate(*memory_, addr, vring->size)) {
    return refused("the ring does not lie aligned in one memory region");
  }
  vring->address = addr;
  return {};
}

Outcome Session::set_vring_enable(const wire::VringState& state) {
  Vring* vring = find_vring(state.index);
  if (vring == nullptr) return refused("no such ring");
  if (state.value > 1) return refused("a ring is enabled with 1 or disabled with 0");
  if (!has(wire::kVhostUserProtocolFeatures)) {
    return refused("SET_VRING_ENABLE without acknowledging protocol features");
  }
  vring->enabled = state.value == 1;
  return {};
}

// KICK, CALL and ERR have one form: a ring and either an eventfd or "none".
Outcome Session::set_vring_event(Message& message) {
  const auto parsed = wire::VringFd::parse(message.body());
  if (!parsed) return fault(to_string(parsed.error()));
  if ((message.fd_count == 0) != parsed->no_fd) return fault("an fd and its flag contradict");
  Vring* vring = find_vring(parsed->index);
  if (vring == nullptr) return refused("no such ring");
  PeerEvent event;
  if (!parsed->no_fd) {
    auto adopted = PeerEvent::adopt(std::move(message.fds[0]), watchdog_);
    if (!adopted) return refused("the file descriptor is not an eventfd");
    event = std::move(*adopted);
  }
  switch (message.header.request) {
    case Request::set_vring_kick:
      return start_vring(*vring, std::move(event), parsed->no_fd);
    case Request::set_vring_call:
      vring->queue.call() = std::move(event);
      // Whatever was told to the old fd may be lost: tell the new one (virtio.md 12.2).
      if (vring->queue.is_started() && vring->queue.call().is_open()) {
        static_cast<void>(vring->queue.call().signal());
      }
      return {};
    default:
      vring->queue.err() = std::move(event);
      return {};
  }
}

Outcome Session::start_vring(Vring& vring, PeerEvent kick, bool polled) {
  if (!vring.queue.is_started()) {
    if (!features_set_) return refused("a ring cannot start before SET_FEATURES");
    if (memory_ == nullptr || !vring.address)
      return refused("a ring cannot start without addresses");
    const auto parts = translate(*memory_, *vring.address, vring.size);
    if (!parts) return refused("the ring is not in the memory table any more");
    vring.queue.start({.size = vring.size,
                       .base = vring.base,
                       .event_idx = has(wire::kRingEventIdx),
                       .parts = *parts,
                       .memory = memory_.get()});
  }
  vring.kick = std::move(kick);
  vring.polled = polled;
  ++generation_;
  return {};
}

Outcome Session::get_vring_base(const wire::VringState& state, Reply& reply) {
  Vring* vring = find_vring(state.index);
  if (vring == nullptr) return fault("no such ring");  // it has no reply that says so
  if (vring->queue.is_started()) {
    vring->base = vring->queue.stop();
    vring->kick.reset();
    vring->polled = false;
    vring->address.reset();
    ++generation_;
  }
  const wire::VringState answer{.index = state.index, .value = vring->base};
  emit(reply, Request::get_vring_base, answer, wire::VringState::kBytes);
  return {};
}

// Deprecated by the protocol and sent by old front-ends: the rings stop, all else stays.
void Session::reset_owner() {
  for (auto& vring : vrings_) {
    if (vring->queue.is_started()) vring->base = vring->queue.stop();
    vring->kick.reset();
    vring->address.reset();
    vring->enabled = features_set_ && !has(wire::kVhostUserProtocolFeatures);
  }
  ++generation_;
}

}  // namespace nobounce::backend
