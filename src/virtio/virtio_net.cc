#include "virtio/virtio_net.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <vector>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "virtio/features.hpp"
#include "virtio/receive_queue.hpp"
#include "virtio/transmit_queue.hpp"
#include "wire/ethernet.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::virtio {
namespace {

constexpr uint16_t kQueuePairsMax = 128;
constexpr uint16_t kMtuDefault = 1500;
// What one page holds behind the headers of the device and the link.
constexpr size_t kMtuOnePage = kPageSize - wire::kNetHeaderBytes - wire::kEthernetHeaderSize - 4;
// The transport is asked how it is (a system call) each so many calls of receive(), before each
// sleep and after each wake.
constexpr uint32_t kChecksIdle = 16;
constexpr uint32_t kChecksBusy = 64;

// One pair: the queues and what its thread waits on. Touched by the pair's thread alone.
struct Pair {
  std::unique_ptr<ReceiveQueue> receive;
  std::unique_ptr<TransmitQueue> transmit;
  UniqueFd wait;  // epoll: the call fd and the transport's failure fd
  int call_fd = -1;
  uint32_t calls = 0;
  bool abandoned = false;
  bool breach_told = false;  // by arm()
  Counter wakes;
};

// Clears an eventfd. Never waits, whatever the device did to the fd's flags (TM-86); nothing to read
// is fine.
void drain(int event_fd) noexcept {
  uint64_t count = 0;
  const iovec to{&count, sizeof count};
  if (::preadv2(event_fd, &to, 1, -1, RWF_NOWAIT) >= 0 || errno == EAGAIN) return;
  pollfd ready{.fd = event_fd, .events = POLLIN, .revents = 0};  // kernels before 5.8
  if (::poll(&ready, 1, 0) == 1) (void)!::read(event_fd, &count, sizeof count);
}

Result<void> check_options(const VirtioNetOptions& options, size_t contexts) {
  const auto refuse = [](std::string cause, std::string hint) {
    return fail(std::errc::invalid_argument, "open virtio-net", std::move(cause), std::move(hint));
  };
  if (!is_power_of_two(options.queue_size) || options.queue_size < kQueueSizeMin ||
      options.queue_size > kQueueSizeMax) {
    return refuse(fmt::format("queue size {} is not possible", options.queue_size),
                  fmt::format("use a power of two from {} to {}", kQueueSizeMin, kQueueSizeMax));
  }
  if (options.queue_pairs == 0 || options.queue_pairs > kQueuePairsMax) {
    return refuse(fmt::format("{} queue pairs are not possible", options.queue_pairs),
                  fmt::format("use 1 to {}", kQueuePairsMax));
  }
  if (contexts != options.queue_pairs) {
    return refuse(fmt::format("{} shards for {} queue pairs", contexts, options.queue_pairs),
                  "give one shard a queue pair");
  }
  if (options.mtu && *options.mtu < kMtuMin) {
    return refuse(fmt::format("an MTU of {} is not possible", *options.mtu),
                  fmt::format("use {} to {}", kMtuMin, kMtuMax));
  }
  if (options.mac && (options.mac->is_zero() || options.mac->is_multicast())) {
    return refuse(fmt::format("{} is not a station's address", options.mac->to_string()),
                  "use a unicast MAC address");
  }
  return {};
}

std::unexpected<Error> poorer(std::string cause) {
  return fail(std::errc::not_supported, "open virtio-net again",
              "the device came back poorer than it was: " + std::move(cause),
              "give the back-end the options it had, or open the stack anew");
}

// What a connection never rests on: where MAC, MTU and link status are read from.
constexpr uint64_t kConfigurationFeatures = wire::kNetMac | wire::kNetMtu | wire::kNetStatus;

// Never downgraded silently (TM-28).
Result<void> check_offer(const VirtioNetOptions& options, uint64_t offered) {
  if (!options.in_use) return {};
  const uint64_t missing = options.in_use->features & ~kConfigurationFeatures & ~offered;
  if (missing == 0) return {};
  return poorer(fmt::format("features {:#x} are in use and no longer offered", missing));
}

MacAddress choose_mac(const VirtioNetOptions& options, const NetConfig& config, Random& random) {
  if (options.mac) return *options.mac;
  if (config.mac && !config.mac->is_zero() && !config.mac->is_multicast()) return *config.mac;
  MacAddress mac;
  const uint64_t bits = random.next_u64();
  for (size_t i = 0; i < mac.bytes.size(); ++i) mac.bytes[i] = static_cast<uint8_t>(bits >> 8 * i);
  mac.bytes[0] = static_cast<uint8_t>((mac.bytes[0] & 0xfc) | 2);  // local, unicast
  return mac;
}

Result<uint16_t> choose_mtu(const VirtioNetOptions& options, const NetConfig& config,
                            uint64_t features) {
  if (config.mtu && *config.mtu < kLinkMtuMin) {
    return fail(std::errc::protocol_error, "open virtio-net",
                fmt::format("the device says its MTU is {}", *config.mtu));
  }
  const uint16_t device_max = config.mtu.value_or(kMtuMax);
  if (options.in_use) {
    if (device_max >= options.in_use->mtu) return options.in_use->mtu;
    return poorer(
        fmt::format("its MTU is {} and connections use {}", device_max, options.in_use->mtu));
  }
  size_t mtu = std::min(options.mtu.value_or(config.mtu.value_or(kMtuDefault)), device_max);
  if ((features & wire::kNetMrgRxbuf) == 0) mtu = std::min(mtu, kMtuOnePage);
  if (options.mtu && mtu < *options.mtu) {
    log_warning(fmt::format("virtio-net: MTU {} instead of {}: the device takes no more", mtu,
                            *options.mtu));
  }
  return static_cast<uint16_t>(mtu);
}

class Device final : public VirtioNet {
 public:
  Device(std::unique_ptr<Transport> transport, SharedRegion& region, DmaDevice& dma,
         CounterRegistry& counters, const VirtioNetOptions& options, RingMemory* memory)
      : transport_(std::move(transport)),
        region_(region),
        dma_(dma),
        memory_(memory != nullptr ? *memory : own_memory_),
        name_(options.name.empty() ? fmt::format("virtio{}", id().index) : options.name),
        latch_(name_, counters, options.when_gone) {}

  ~Device() override {
    stop_transport();
    for (Pair& pair : pairs_) abandon(pair);
  }

  Result<void> set_up(std::span<ShardContext* const> contexts, const VirtioNetOptions& options);

  // ---- NetDevice ----
  [[nodiscard]] const char* name() const noexcept override { return name_.c_str(); }
  [[nodiscard]] MacAddress mac() const noexcept override { return mac_; }
  [[nodiscard]] uint16_t mtu() const noexcept override { return mtu_; }
  [[nodiscard]] DeviceFeatures features() const noexcept override;
  [[nodiscard]] uint16_t queue_pairs() const noexcept override {
    return static_cast<uint16_t>(pairs_.size());
  }
  // Over a socket the link is as good as the connection.
  [[nodiscard]] bool link_up() const noexcept override { return !latch_.is_broken(); }
  [[nodiscard]] bool is_broken() const noexcept override { return latch_.is_broken(); }
  [[nodiscard]] const char* broken_reason() const noexcept override { return latch_.reason(); }
  [[nodiscard]] Breach breach() const noexcept override { return latch_.breach(); }
  [[nodiscard]] InUse in_use() const noexcept override {
    return {.features = features_, .mtu = mtu_, .mac = mac_};
  }
  [[nodiscard]] DmaDevice* dma() noexcept override { return &dma_; }
  [[nodiscard]] bool is_idle(uint16_t queue) const noexcept override {
    return latch_.is_broken() || pairs_[queue].transmit->is_idle();
  }
  [[nodiscard]] size_t transmit_room(uint16_t queue) noexcept override {
    return latch_.is_broken() ? 0 : pairs_[queue].transmit->room();
  }

  size_t transmit(uint16_t queue, PacketBurst& burst) noexcept override;
  size_t receive(uint16_t queue, PacketBurst& burst) noexcept override;
  void reclaim(uint16_t queue) noexcept override;
  [[nodiscard]] bool arm(uint16_t queue) noexcept override;
  void disarm(uint16_t queue) noexcept override;
  [[nodiscard]] WaitHandle wait_handle(uint16_t queue) noexcept override {
    return {pairs_[queue].wait.get()};
  }
  void acknowledge(uint16_t queue) noexcept override;

 private:
  enum class Stopping : uint8_t { no, now, done };

  Result<void> set_up_pair(uint16_t index, ShardContext& context, const VirtioNetOptions& options);
  Result<void> watch(Pair& pair, uint16_t index);
  [[nodiscard]] bool is_usable(Pair& pair) noexcept;
  void look_at_transport(uint16_t queue) noexcept;
  void stop_transport() noexcept;
  void abandon(Pair& pair) noexcept;

  std::unique_ptr<Transport> transport_;
  SharedRegion& region_;
  DmaDevice& dma_;
  RingMemory own_memory_;
  RingMemory& memory_;
  std::string name_;
  BreachLatch latch_;
  std::vector<Pair> pairs_;
  uint64_t features_ = 0;
  MacAddress mac_;
  uint16_t mtu_ = kMtuDefault;
  std::atomic<Stopping> stopping_{Stopping::no};
};

// ---- set-up -----------------------------------------------------------------------------------

Result<void> Device::set_up(std::span<ShardContext* const> contexts,
                            const VirtioNetOptions& options) {
  const auto offered = transport_->read_features();
  if (!offered) return std::unexpected(offered.error());
  if (auto covered = check_offer(options, *offered); !covered) return covered;
  uint64_t wanted = options.in_use ? options.in_use->features : options.features_wanted;
  if (options.queue_pairs == 1) wanted &= ~wire::kNetMq;
  const auto accepted = negotiate(*offered, wanted);
  if (!accepted) return std::unexpected(accepted.error());
  features_ = *accepted;
  if (auto done = transport_->accept_features(features_); !done) return done;

  const auto config = transport_->read_config();
  if (!config) return std::unexpected(config.error());
  const bool has_pairs =
      options.queue_pairs == 1 ||
      ((features_ & wire::kNetMq) != 0 && options.queue_pairs <= config->queue_pairs_max);
  if (!has_pairs) {
    return fail(std::errc::invalid_argument, "open virtio-net",
                fmt::format("{} queue pairs wanted, the device has {}", options.queue_pairs,
                            (features_ & wire::kNetMq) != 0 ? config->queue_pairs_max : 1),
                "ask for fewer, or give the back-end more queues");
  }
  const auto mtu = choose_mtu(options, *config, features_);
  if (!mtu) return std::unexpected(mtu.error());
  mtu_ = *mtu;
  mac_ = options.in_use ? options.in_use->mac : choose_mac(options, *config, contexts[0]->random);

  if (auto done = transport_->share(region_); !done) return done;
  pairs_.resize(options.queue_pairs);
  memory_.pairs.resize(options.queue_pairs);
  for (uint16_t i = 0; i < options.queue_pairs; ++i) {
    if (auto done = set_up_pair(i, *contexts[i], options); !done) return done;
  }
  return transport_->start();
}

Result<void> Device::set_up_pair(uint16_t index, ShardContext& context,
                                 const VirtioNetOptions& options) {
  const QueueEnvironment environment{.transport = *transport_,
                                     .region = region_,
                                     .dma = dma_,
                                     .shard = context,
                                     .latch = latch_,
                                     .memory = memory_.pairs[index],
                                     .features = features_,
                                     .pair = index,
                                     .queue_size = options.queue_size,
                                     .mtu = mtu_,
                                     .counters = fmt::format("{}.q{}", name_, index)};
  auto receive = ReceiveQueue::create(environment);
  if (!receive) return std::unexpected(receive.error());
  pairs_[index].receive = std::move(*receive);
  auto transmit = TransmitQueue::create(environment);
  if (!transmit) return std::unexpected(transmit.error());
  pairs_[index].transmit = std::move(*transmit);
  pairs_[index].wakes = environment.counter("wakes");
  return watch(pairs_[index], index);
}

// The pair's thread sleeps on one fd: the device's call, or news of its end.
Result<void> Device::watch(Pair& pair, uint16_t index) {
  pair.call_fd = transport_->call_fd(static_cast<uint16_t>(2 * index));
  NB_ASSERT(pair.call_fd == transport_->call_fd(static_cast<uint16_t>(2 * index + 1)));
  if (pair.call_fd < 0) return {};  // "poll me"
  pair.wait.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!pair.wait.is_open()) return fail_errno("make the wait handle of a queue pair");
  for (const int fd : {pair.call_fd, transport_->failure_fd()}) {
    if (fd < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = fd;
    if (::epoll_ctl(pair.wait.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail_errno("watch the fds of a queue pair");
    }
  }
  return {};
}

DeviceFeatures Device::features() const noexcept {
  const auto has = [this](uint64_t bit) { return (features_ & bit) != 0; };
  return {.tx_checksum = has(wire::kNetCsum),
          .tso4 = has(wire::kNetHostTso4),
          .tso6 = has(wire::kNetHostTso6),
          .rx_checksum = has(wire::kNetGuestCsum),
          .lro = has(wire::kNetGuestTso4 | wire::kNetGuestTso6)};
}

// ---- data path --------------------------------------------------------------------------------

size_t Device::transmit(uint16_t queue, PacketBurst& burst) noexcept {
  NB_ASSERT(queue < pairs_.size());
  Pair& pair = pairs_[queue];
  if (!is_usable(pair)) return 0;
  const size_t left = pair.transmit->transmit(burst);
  (void)is_usable(pair);
  return left;
}

size_t Device::receive(uint16_t queue, PacketBurst& burst) noexcept {
  NB_ASSERT(queue < pairs_.size());
  Pair& pair = pairs_[queue];
  if (!is_usable(pair)) return 0;
  const size_t received = pair.receive->receive(burst);
  if (++pair.calls % (received == 0 ? kChecksIdle : kChecksBusy) == 0) look_at_transport(queue);
  (void)is_usable(pair);
  return received;
}

void Device::reclaim(uint16_t queue) noexcept {
  NB_ASSERT(queue < pairs_.size());
  Pair& pair = pairs_[queue];
  if (!is_usable(pair)) return;
  pair.transmit->reclaim();
  (void)is_usable(pair);
}

bool Device::arm(uint16_t queue) noexcept {
  NB_ASSERT(queue < pairs_.size());
  Pair& pair = pairs_[queue];
  if (is_usable(pair)) {
    look_at_transport(queue);
    const bool receive_quiet = pair.receive->arm();
    const bool transmit_quiet = pair.transmit->arm();
    if (is_usable(pair)) return receive_quiet && transmit_quiet;
  }
  // A breach is news once: the caller looks again before it sleeps. Then nothing will come any more
  // and it may sleep (C136).
  return std::exchange(pair.breach_told, true);
}

void Device::disarm(uint16_t queue) noexcept {
  NB_ASSERT(queue < pairs_.size());
  if (!is_usable(pairs_[queue])) return;
  pairs_[queue].receive->disarm();
  pairs_[queue].transmit->disarm();
}

void Device::acknowledge(uint16_t queue) noexcept {
  NB_ASSERT(queue < pairs_.size());
  Pair& pair = pairs_[queue];
  pair.wakes.add();
  if (pair.call_fd >= 0) {
    drain(pair.call_fd);
  }
  if (is_usable(pair)) {
    look_at_transport(queue);
    (void)is_usable(pair);
  }
}

// ---- the end ----------------------------------------------------------------------------------

void Device::look_at_transport(uint16_t queue) noexcept {
  const char* failure = transport_->failure();
  if (failure != nullptr) {
    latch_.latch(transport_->has_disconnected() ? Breach::device_gone : Breach::control_protocol,
                 queue, failure);
  }
  if (region_.is_broken()) latch_.latch(Breach::region_fault, queue);
}

// True while the device works. Else sees to it that the transport is stopped, once, and that this
// pair's packets and pages go home after that (TM-33).
bool Device::is_usable(Pair& pair) noexcept {
  if (!latch_.is_broken()) return true;
  stop_transport();
  if (stopping_.load(std::memory_order_acquire) == Stopping::done) abandon(pair);
  return false;
}

// The first caller stops the transport; others do not wait for it and look again at their next call.
void Device::stop_transport() noexcept {
  Stopping expected = Stopping::no;
  if (!stopping_.compare_exchange_strong(expected, Stopping::now, std::memory_order_acq_rel))
    return;
  transport_->stop();
  stopping_.store(Stopping::done, std::memory_order_release);  // pairs with is_usable()
}

void Device::abandon(Pair& pair) noexcept {
  if (std::exchange(pair.abandoned, true)) return;
  // Nothing wakes the pair any more: an fd that stays readable would keep its thread awake (C136).
  if (pair.wait.is_open()) {
    for (const int fd : {pair.call_fd, transport_->failure_fd()}) {
      if (fd >= 0) ::epoll_ctl(pair.wait.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }
  if (pair.transmit != nullptr) pair.transmit->abandon();
  if (pair.receive != nullptr) pair.receive->abandon();
}

}  // namespace

Result<std::unique_ptr<VirtioNet>> VirtioNet::open(std::unique_ptr<Transport> transport,
                                                   SharedRegion& region, DmaDevice& dma,
                                                   std::span<ShardContext* const> contexts,
                                                   const VirtioNetOptions& options,
                                                   RingMemory* memory) {
  NB_ASSERT(transport != nullptr);
  if (auto valid = check_options(options, contexts.size()); !valid) {
    return std::unexpected(valid.error());
  }
  auto device = std::make_unique<Device>(std::move(transport), region, dma, contexts[0]->counters,
                                         options, memory);
  if (auto done = device->set_up(contexts, options); !done) return std::unexpected(done.error());
  return device;
}

size_t VirtioNet::carve_bytes(const VirtioNetOptions& options) noexcept {
  constexpr size_t kAlignmentSlack = 3 * 64;
  return options.queue_pairs * (ReceiveQueue::carve_bytes(options.queue_size) +
                                TransmitQueue::carve_bytes(options.queue_size) + kAlignmentSlack);
}

}  // namespace nobounce::virtio
