#include "virtio/vhost_user/front_end.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "base/log.hpp"
#include "base/peer_event.hpp"
#include "netdev/net_device.hpp"
#include "virtio/vhost_user/channel.hpp"
#include "virtio/vhost_user/connect.hpp"
#include "wire/vhost_user.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio::vhost_user {
namespace {

using wire::VhostUserRequest;
using enum wire::VhostUserRequest;

constexpr uint64_t kDeadlineMaxNs = 5 * kNsPerSecond;
constexpr uint64_t kTalkNs = kNsPerSecond;      // of it, at least for the handshake
constexpr uint64_t kStopNs = kNsPerSecond / 2;  // a back-end that is alive answers at once
constexpr uint64_t kProtocolWanted = wire::kProtocolMq | wire::kProtocolReplyAck |
                                     wire::kProtocolMtu | wire::kProtocolConfig |
                                     wire::kProtocolStatus;
// What the front-end answers for itself; told to the back-end only where it offered them too.
constexpr uint64_t kEmulated = wire::kNetMtu | wire::kNetStatus;
// Never shown to a driver.
constexpr uint64_t kHidden =
    wire::kVhostUserProtocolFeatures | wire::kVhostLogAll | wire::kAccessPlatform;
constexpr uint16_t kQueuePairsMax = 128;

// User addresses of the memory table: a second made-up space, so that a back-end that mixes the two
// up shows at once.
constexpr uint64_t kUserSpace = uint64_t{1} << 40;

constexpr const char* kClosed = "the back-end has closed the connection";

class FrontEnd final : public Transport {
 public:
  FrontEnd(UniqueFd socket, const FrontEndOptions& options, WaitBudget budget)
      : channel_(std::move(socket), options.path),
        mtu_(options.mtu),
        budget_(budget),
        watchdog_(options.kicks_rescued) {}
  ~FrontEnd() override { stop(); }

  Result<void> greet();

  [[nodiscard]] Result<uint64_t> read_features() override;
  [[nodiscard]] Result<void> accept_features(uint64_t features) override;
  [[nodiscard]] Result<NetConfig> read_config() override;
  [[nodiscard]] Result<void> share(SharedRegion& region) override;
  [[nodiscard]] Result<void> set_up_queue(const QueueLayout& layout) override;
  [[nodiscard]] Result<void> start() override;
  void stop() noexcept override;
  void notify(uint16_t queue) noexcept override;
  [[nodiscard]] int call_fd(uint16_t queue) const noexcept override {
    const size_t pair = queue / 2;
    return pair < calls_.size() ? calls_[pair].get() : -1;
  }
  [[nodiscard]] const char* failure() noexcept override;
  [[nodiscard]] bool has_disconnected() const noexcept override {
    return failure_.load(std::memory_order_relaxed) == kClosed;
  }
  [[nodiscard]] int failure_fd() const noexcept override { return channel_.fd(); }

 private:
  [[nodiscard]] bool has_protocol(uint64_t bit) const noexcept { return (protocol_ & bit) != 0; }
  template <class Payload>
  Result<void> tell(VhostUserRequest request, const Payload& payload,
                    std::span<const int> fds = {}) {
    std::array<std::byte, Payload::kBytes> bytes{};
    payload.emit(bytes);
    return tell_bytes(request, bytes, fds);
  }
  Result<void> tell_bytes(VhostUserRequest request, Bytes payload, std::span<const int> fds = {}) {
    return channel_.tell(request, payload, fds,
                         has_protocol(wire::kProtocolReplyAck) ? Acknowledge::yes : Acknowledge::no,
                         budget_);
  }
  Result<uint64_t> ask_number(VhostUserRequest request);
  Result<void> set_status(uint8_t status);
  Result<void> read_config_space(NetConfig& config);
  Result<void> tell_ring(const QueueLayout& layout, int kick, int call);
  Result<void> tell_ring_size(uint8_t index, uint16_t size);
  Result<int> call_for(uint16_t queue);
  [[nodiscard]] uint64_t user_address(const SharedBytes& part) const noexcept {
    return region_->iova_of(part) + kUserSpace;
  }

  Channel channel_;
  std::optional<uint16_t> mtu_;
  WaitBudget budget_;
  uint64_t offered_ = 0;   // by the back-end
  uint64_t accepted_ = 0;  // as told to the back-end
  uint64_t protocol_ = 0;
  uint16_t queue_pairs_max_ = 1;
  SharedRegion* region_ = nullptr;
  std::vector<uint16_t> rings_;  // virtqueue numbers, in order of set-up
  SignalWatchdog watchdog_;
  std::vector<PeerEvent> kicks_;  // by virtqueue number
  std::vector<UniqueFd> calls_;   // by pair
  bool stopped_ = false;
  std::atomic<bool> stopping_{false};
  std::atomic<const char*> failure_{nullptr};
};

// ---- handshake --------------------------------------------------------------------------------

Result<uint64_t> FrontEnd::ask_number(VhostUserRequest request) {
  std::array<std::byte, wire::VhostUserU64::kBytes> reply;
  if (auto asked = channel_.ask(request, {}, reply, budget_); !asked) {
    return std::unexpected(asked.error());
  }
  return wire::VhostUserU64::parse(reply)->value;
}

Result<void> FrontEnd::greet() {
  if (auto told = tell_bytes(set_owner, {}); !told) return told;
  const auto features = ask_number(get_features);
  if (!features) return std::unexpected(features.error());
  offered_ = *features;
  if ((offered_ & wire::kVhostUserProtocolFeatures) == 0) return {};

  const auto protocol = ask_number(get_protocol_features);
  if (!protocol) return std::unexpected(protocol.error());
  const uint64_t wanted = *protocol & kProtocolWanted;
  if (auto told = tell(set_protocol_features, wire::VhostUserU64{wanted}); !told) return told;
  protocol_ = wanted;
  if (!has_protocol(wire::kProtocolMq)) return {};

  const auto pairs = ask_number(get_queue_num);
  if (!pairs) return std::unexpected(pairs.error());
  if (*pairs == 0) {
    return fail(std::errc::protocol_error, fmt::format("vhost-user on {}", channel_.path()),
                "the back-end says it has no queues", "give the back-end at least one queue pair");
  }
  queue_pairs_max_ = static_cast<uint16_t>(std::min<uint64_t>(*pairs, kQueuePairsMax));
  return {};
}

Result<uint64_t> FrontEnd::read_features() {
  uint64_t features = (offered_ & ~kHidden) | kEmulated;
  // Without CONFIG there is no way to read the address that it offers, and without MQ no more
  // queues.
  if (!has_protocol(wire::kProtocolConfig)) features &= ~wire::kNetMac;
  if (!has_protocol(wire::kProtocolMq)) features &= ~wire::kNetMq;
  return features;
}

Result<void> FrontEnd::accept_features(uint64_t features) {
  accepted_ = (features & offered_) | (offered_ & wire::kVhostUserProtocolFeatures);
  if (auto done = set_status(wire::kStatusAcknowledge | wire::kStatusDriver); !done) return done;
  if (auto told = tell(set_features, wire::VhostUserU64{accepted_}); !told) return told;
  if (!has_protocol(wire::kProtocolStatus)) return {};
  if (auto done =
          set_status(wire::kStatusAcknowledge | wire::kStatusDriver | wire::kStatusFeaturesOk);
      !done) {
    return done;
  }
  const auto status = ask_number(get_status);
  if (!status) return std::unexpected(status.error());
  if ((*status & wire::kStatusFeaturesOk) != 0) return {};
  return fail(std::errc::protocol_error, fmt::format("vhost-user on {}", channel_.path()),
              fmt::format("the back-end does not take the features {:#x}", accepted_));
}

Result<void> FrontEnd::set_status(uint8_t status) {
  if (!has_protocol(wire::kProtocolStatus)) return {};
  return tell(wire::VhostUserRequest::set_status, wire::VhostUserU64{status});
}

Result<NetConfig> FrontEnd::read_config() {
  NetConfig config{.mac = std::nullopt, .mtu = std::nullopt, .queue_pairs_max = queue_pairs_max_};
  if (has_protocol(wire::kProtocolConfig)) {
    if (auto read = read_config_space(config); !read) return std::unexpected(read.error());
  }
  if (!config.mtu) config.mtu = mtu_;
  const bool wants_mtu =
      has_protocol(wire::kProtocolMtu) && (accepted_ & wire::kNetMtu) != 0 && config.mtu;
  if (wants_mtu) {
    if (auto told = tell(net_set_mtu, wire::VhostUserU64{*config.mtu}); !told) {
      return std::unexpected(told.error());
    }
  }
  return config;
}

// A field is there when its feature was offered (virtio.md 8.3).
Result<void> FrontEnd::read_config_space(NetConfig& config) {
  wire::ConfigSpace space;
  space.size = wire::kNetConfigBytes;
  std::array<std::byte, wire::ConfigSpace::kFixedBytes + wire::kNetConfigBytes> bytes{};
  space.emit(bytes);
  std::array<std::byte, bytes.size()> reply;
  if (auto asked = channel_.ask(get_config, bytes, reply, budget_); !asked) return asked;
  const auto read = wire::ConfigSpace::parse(reply);
  if (!read || read->size != wire::kNetConfigBytes) {
    return fail(std::errc::protocol_error, fmt::format("vhost-user on {}", channel_.path()),
                "the back-end offers its configuration but does not give it");
  }
  const Bytes content(read->content);
  if ((offered_ & wire::kNetMac) != 0) {
    MacAddress mac;
    std::memcpy(mac.bytes.data(), content.data() + wire::kNetConfigMac, mac.bytes.size());
    config.mac = mac;
  }
  if ((offered_ & wire::kNetMtu) != 0) {
    config.mtu = load_le<uint16_t>(content, wire::kNetConfigMtu);
  }
  return {};
}

// ---- memory and rings -------------------------------------------------------------------------

Result<void> FrontEnd::share(SharedRegion& region) {
  region_ = &region;
  wire::MemTable table;
  table.count = 1;
  table.regions[0] = {.guest_address = region.iova_base(),
                      .bytes = region.size(),
                      .user_address = region.iova_base() + kUserSpace,
                      .mmap_offset = 0};
  std::array<std::byte, 8 + wire::MemRegion::kBytes> bytes{};
  table.emit(bytes);
  const int fd = region.fd();
  return tell_bytes(set_mem_table, bytes, {&fd, 1});
}

// One eventfd a pair: its thread waits for both queues on it.
Result<int> FrontEnd::call_for(uint16_t queue) {
  const size_t pair = queue / 2;
  if (pair >= calls_.size()) calls_.resize(pair + 1);
  if (!calls_[pair].is_open()) calls_[pair].reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!calls_[pair].is_open())
    return fail_errno("make an eventfd", "raise the limit of open files");
  return calls_[pair].get();
}

Result<void> FrontEnd::set_up_queue(const QueueLayout& layout) {
  NB_ASSERT(region_ != nullptr);
  NB_ASSERT(layout.index < 2 * queue_pairs_max_);
  const auto call = call_for(layout.index);
  if (!call) return std::unexpected(call.error());
  auto kick = PeerEvent::adopt(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), &watchdog_);
  if (!kick) return fail_errno("make an eventfd", "raise the limit of open files");
  if (auto told = tell_ring(layout, kick->fd(), *call); !told) return told;
  if (layout.index >= kicks_.size()) kicks_.resize(layout.index + size_t{1});
  kicks_[layout.index] = std::move(*kick);
  rings_.push_back(layout.index);
  return {};
}

Result<void> FrontEnd::tell_ring(const QueueLayout& layout, int kick, int call) {
  const auto index = static_cast<uint8_t>(layout.index);
  // The call fd first: this message makes some back-ends allocate the ring.
  if (auto told = tell(set_vring_call, wire::VringFd{.index = index}, {&call, 1}); !told) {
    return told;
  }
  if (auto told = tell_ring_size(index, layout.size); !told) return told;
  if (auto told = tell(set_vring_base, wire::VringState{.index = index, .value = 0}); !told) {
    return told;
  }
  const wire::VringAddr address{.index = index,
                                .flags = 0,
                                .descriptors = user_address(layout.descriptors),
                                .used = user_address(layout.device_area),
                                .avail = user_address(layout.driver_area),
                                .log = 0};
  if (auto told = tell(set_vring_addr, address); !told) return told;
  return tell(set_vring_kick, wire::VringFd{.index = index}, {&kick, 1});
}

Result<void> FrontEnd::start() {
  // With protocol features acknowledged rings start disabled.
  if ((accepted_ & wire::kVhostUserProtocolFeatures) != 0) {
    for (const uint16_t ring : rings_) {
      if (auto told = tell(set_vring_enable, wire::VringState{.index = ring, .value = 1}); !told) {
        return told;
      }
    }
  }
  if (auto done = set_status(wire::kStatusAcknowledge | wire::kStatusDriver |
                             wire::kStatusFeaturesOk | wire::kStatusDriverOk);
      !done) {
    return done;
  }
  watchdog_.set_active(true);  // until the end: others may notify while stop() runs
  for (const uint16_t ring : rings_) notify(ring);
  return {};
}

// The answer to GET_VRING_BASE says that the back-end has let the ring go. Errors end the talk: the
// socket's end tells the rest.
void FrontEnd::stop() noexcept {
  if (std::exchange(stopped_, true)) return;
  stopping_.store(true, std::memory_order_relaxed);
  if (failure_.load(std::memory_order_relaxed) == nullptr) {
    budget_ = WaitBudget(kStopNs);
    bool well = true;
    for (const uint16_t ring : rings_) {
      if (!well || (accepted_ & wire::kVhostUserProtocolFeatures) == 0) break;
      well = tell(set_vring_enable, wire::VringState{.index = ring, .value = 0}).has_value();
    }
    for (const uint16_t ring : rings_) {
      if (!well) break;
      std::array<std::byte, wire::VringState::kBytes> state{};
      wire::VringState{.index = ring, .value = 0}.emit(state);
      std::array<std::byte, wire::VringState::kBytes> reply;
      well = channel_.ask(get_vring_base, state, reply, budget_).has_value();
    }
    if (!well) {
      log_debug(fmt::format("vhost-user on {}: the back-end did not stop its rings in time",
                            channel_.path()));
    }
  }
  channel_.shut_down();
}

// No message asks for a back-end's limit: after a refusal smaller sizes are tried, to name it.
Result<void> FrontEnd::tell_ring_size(uint8_t index, uint16_t size) {
  auto told = tell(set_vring_num, wire::VringState{.index = index, .value = size});
  if (told || told.error().code != kRefused) return told;
  std::string limit = "its own log may say how many it takes";
  for (uint32_t smaller = size / 2; smaller >= kQueueSizeMin; smaller /= 2) {
    const auto tried = tell(set_vring_num, wire::VringState{.index = index, .value = smaller});
    if (tried) {
      limit = fmt::format(
          "it takes up to {}: use a queue size of {}, or raise the back-end's "
          "limit (its --queue-size, if it is nobounce backend)",
          smaller, smaller);
    }
    if (tried || tried.error().code != kRefused) break;
  }
  return fail(kRefused,
              fmt::format("vhost-user {} on {}", to_string(set_vring_num), channel_.path()),
              fmt::format("the back-end refused a queue of {} descriptors", size), limit);
}

// ---- while it runs ----------------------------------------------------------------------------

void FrontEnd::notify(uint16_t queue) noexcept {
  if (queue >= kicks_.size() || !kicks_[queue].is_open()) return;
  // Saturated: a kick is pending already.
  static_cast<void>(kicks_[queue].signal());
}

const char* FrontEnd::failure() noexcept {
  const char* known = failure_.load(std::memory_order_relaxed);
  if (known != nullptr || stopping_.load(std::memory_order_relaxed)) return known;
  pollfd socket{.fd = channel_.fd(), .events = POLLIN | POLLRDHUP, .revents = 0};
  if (::poll(&socket, 1, 0) != 1) return nullptr;
  const char* reason = nullptr;
  if ((socket.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0) {
    reason = kClosed;
  } else if ((socket.revents & POLLIN) != 0) {
    reason = "the back-end sent a message that nobody asked for";
  } else {
    return nullptr;
  }
  failure_.store(reason, std::memory_order_relaxed);
  return reason;
}

}  // namespace

Result<std::unique_ptr<Transport>> connect(const FrontEndOptions& options) {
  WaitBudget budget(
      std::min({options.deadline_ns, options.connect_max_ns, kDeadlineMaxNs - kTalkNs}),
      options.cancel_fd);
  auto socket = connect_socket(options.path, options.role, budget);
  if (!socket) return std::unexpected(socket.error());
  // A peer that came late still gets time for its answers.
  const WaitBudget handshake(std::max(budget.left_ns(), std::min(kTalkNs, options.deadline_ns)),
                             options.cancel_fd);
  auto front_end = std::make_unique<FrontEnd>(std::move(*socket), options, handshake);
  if (auto greeted = front_end->greet(); !greeted) return std::unexpected(greeted.error());
  return front_end;
}

}  // namespace nobounce::virtio::vhost_user
