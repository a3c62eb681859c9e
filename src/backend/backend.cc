#include "backend/backend.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>

#include "base/bytes.hpp"
#include "base/copies.hpp"
#include "base/log.hpp"
#include "wire/vring.hpp"

namespace nobounce::backend {
namespace {

// Control messages are looked for that often while the rings are busy.
constexpr uint64_t kControlRounds = 64;
// No more messages in a row: a flood holds up neither the rings nor the request to stop.
constexpr unsigned kControlMessages = 64;
// No sleep is longer: correctness does not depend on the guest's kicks (TM-21).
constexpr uint64_t kSleepMaxNs = 100 * kNsPerMs;
// A guest that never kicks is looked at that often.
constexpr uint64_t kPollNs = kNsPerMs;

std::unexpected<Error> bad_option(std::string cause, std::string hint) {
  return fail(std::errc::invalid_argument, "start the back-end", std::move(cause), std::move(hint));
}

Result<void> check(const BackendOptions& options) {
  if (!is_power_of_two(options.queue_size_limit) ||
      options.queue_size_limit > wire::kQueueSizeMax) {
    return bad_option(fmt::format("a ring of {} descriptors", options.queue_size_limit),
                      "give a power of two up to 32768");
  }
  if (options.queue_pairs == 0 || options.queue_pairs > Backend::kQueuePairsMax) {
    return bad_option(fmt::format("{} queue pairs", options.queue_pairs),
                      fmt::format("give 1 to {}", Backend::kQueuePairsMax));
  }
  if (options.mtu < 68) return bad_option(fmt::format("MTU {}", options.mtu), "give 68 to 65535");
  for (const MacAddress& mac : {options.mac, options.guest_mac}) {
    if (mac.is_zero() || mac.is_multicast()) {
      return bad_option(fmt::format("MAC address {}", mac.to_string()),
                        "give a unicast address such as 02:00:00:00:00:01");
    }
  }
  return {};
}

DeviceOffer offer_of(const BackendOptions& options) {
  return {.features = DeviceOffer::all_features(options.queue_pairs, options.feature_mask),
          .protocol_features = DeviceOffer::all_protocol_features(options.queue_pairs),
          .queue_pairs = options.queue_pairs,
          .queue_size_limit = options.queue_size_limit,
          .guest_mac = options.guest_mac,
          .mtu = options.mtu};
}

// For what a front-end can cause: at most one line a second (TM-71).
void tell_limited(LogLimit& limit, uint64_t now_ns, const std::string& message) {
  uint64_t held_back = 0;
  if (!limit.admit(now_ns, held_back)) return;
  log_info(held_back == 0 ? message : fmt::format("{} (and {} more like it)", message, held_back));
}

}  // namespace

// Everything of one front-end, in the order it must go: the service first, then the rings and
// mappings, the socket last.
struct Backend::Guest {
  Guest(UniqueFd socket, const DeviceOffer& offer, BackendCounters& counters,
        SignalWatchdog* watchdog, int stop_fd)
      : connection(std::move(socket)),
        wake_fds{connection.fd(), stop_fd},
        session(offer, counters, watchdog) {}

  Connection connection;
  std::array<int, 2> wake_fds;
  Session session;
  std::unique_ptr<PortService> service;
  uint64_t service_features = 0;
  uint64_t service_generation = UINT64_MAX;  // of the rings when a service was last tried
  uint64_t idle_since_ns = 0;
  uint64_t rounds = 0;
};

Result<std::unique_ptr<Backend>> Backend::open(const BackendOptions& options,
                                               ServiceFactory services) {
  if (auto checked = check(options); !checked) return std::unexpected(checked.error());
  std::unique_ptr<CounterRegistry> registry;
  if (options.counters.empty()) {
    registry = std::make_unique<CounterRegistry>();
  } else {
    auto published = CounterRegistry::publish(options.counters);
    if (!published) return std::unexpected(published.error());
    registry = std::move(*published);
  }
  UniqueFd stop_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event.is_open()) return fail_errno("start the back-end");
  auto listener = Listener::open(options.socket, options.role, MonotonicClock().now_ns());
  if (!listener) return std::unexpected(listener.error());
  return std::unique_ptr<Backend>(new Backend(options, std::move(services), std::move(*listener),
                                              std::move(registry), std::move(stop_event)));
}

Backend::Backend(const BackendOptions& options, ServiceFactory services, Listener listener,
                 std::unique_ptr<CounterRegistry> registry, UniqueFd stop_event)
    : options_(options),
      services_(std::move(services)),
      registry_(std::move(registry)),
      counters_(*registry_),
      watchdog_(counters_.calls_rescued),
      listener_(std::move(listener)),
      stop_event_(std::move(stop_event)) {}

Backend::~Backend() = default;

Result<void> Backend::run(std::stop_token stop) {
  set_this_thread_kind(ThreadKind::io);
  const std::stop_callback wake(stop, [fd = stop_event_.get()] {
    constexpr uint64_t kOne = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd, &kOne, sizeof kOne);
  });
  Result<void> result;
  while (!stop.stop_requested()) {
    if (guest_ == nullptr) {
      if (options_.once && counters_.disconnections.value() > 0) break;
      result = wait_for_front_end();
      if (!result) break;
    } else if (serve_control()) {
      serve_rings();
    }
  }
  if (guest_ != nullptr) part("the back-end stops");
  return result;
}

// ---- front-ends -------------------------------------------------------------------------------

// Returns when one has come, when there is a reason to look again, or to stop.
Result<void> Backend::wait_for_front_end() {
  auto socket = listener_.next(clock_.now_ns());
  if (!socket) return std::unexpected(socket.error());
  if (socket->is_open()) {
    meet(std::move(*socket));
    return {};
  }
  std::array<pollfd, 2> fds{{{stop_event_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}}};
  int timeout_ms = -1;
  if (listener_.next_try_ns() != UINT64_MAX) {
    const uint64_t now = clock_.now_ns();
    const uint64_t next = listener_.next_try_ns();
    timeout_ms = next <= now ? 0 : static_cast<int>((next - now) / kNsPerMs + 1);
  }
  ::poll(fds.data(), fds.size(), timeout_ms);
  return {};
}

void Backend::meet(UniqueFd socket) {
  counters_.connections.add();
  watchdog_.set_active(true);
  guest_ = std::make_unique<Guest>(std::move(socket), offer_of(options_), counters_, &watchdog_,
                                   stop_event_.get());
  tell_limited(connect_limit_, clock_.now_ns(),
               fmt::format("a front-end connected on {}", options_.socket));
}

void Backend::part(const std::string& why) {
  guest_.reset();
  watchdog_.set_active(false);
  counters_.disconnections.add();
  tell_limited(part_limit_, clock_.now_ns(),
               fmt::format("the front-end on {} is gone: {}", options_.socket, why));
}

// ---- control ----------------------------------------------------------------------------------

bool Backend::serve_control() {
  if (guest_->service != nullptr && guest_->rounds % kControlRounds != 0) return true;
  for (unsigned i = 0; i < kControlMessages; ++i) {
    switch (guest_->connection.read()) {
      case ReadResult::nothing:
        return true;
      case ReadResult::message:
        if (!answer()) return false;
        break;
      case ReadResult::closed:
        part("it left");
        return false;
      case ReadResult::fault:
        counters_.protocol_faults.add();
        part(fmt::format("protocol error: {}", guest_->connection.fault()));
        return false;
    }
  }
  return true;
}

bool Backend::answer() {
  Message& message = guest_->connection.message();
  Reply reply;
  const Outcome outcome = guest_->session.handle(message, reply);
  const char* name = to_string(message.header.request);
  if (outcome.verdict == Verdict::fault ||
      (outcome.verdict == Verdict::refused && reply.size == 0)) {
    part(fmt::format("{}: {}", name, outcome.reason));
    return false;
  }
  if (outcome.verdict == Verdict::refused) {
    warn_limited(refused_limit_, clock_.now_ns(),
                 fmt::format("{} refused: {}", name, outcome.reason));
  }
  if (reply.size > 0 && !guest_->connection.send(reply)) {
    part(fmt::format("{}: it does not take its replies", name));
    return false;
  }
  return true;
}

// ---- rings ------------------------------------------------------------------------------------

void Backend::start_service() {
  guest_->service_generation = guest_->session.generation();
  guest_->service_features = guest_->session.features();
  auto service = services_({guest_->session, counters_, guest_->wake_fds});
  if (!service) {
    warn_limited(service_limit_, clock_.now_ns(), service.error().to_string());
    return;
  }
  guest_->service = std::move(*service);
}

void Backend::serve_rings() {
  Guest& guest = *guest_;
  // A guest that negotiated anew gets a new peer; one that only paused its rings keeps it.
  if (guest.service != nullptr &&
      (guest.service->is_down() || guest.service_features != guest.session.features())) {
    guest.service.reset();
  }
  if (guest.service == nullptr && guest.session.is_ready() &&
      guest.service_generation != guest.session.generation()) {
    start_service();
  }
  if (guest.service == nullptr) {
    sleep_on_control();
    return;
  }
  ++guest.rounds;
  if (guest.service->round() > 0) {
    guest.idle_since_ns = 0;
    return;
  }
  const uint64_t now = clock_.now_ns();
  if (guest.idle_since_ns == 0) guest.idle_since_ns = now;
  if (now - guest.idle_since_ns < options_.spin_ns) return;
  guest.service->sleep(guest.session.must_poll() ? kPollNs : kSleepMaxNs);
  guest.idle_since_ns = 0;
  guest.rounds = 0;  // a control message may be what ended the sleep
}

void Backend::sleep_on_control() const {
  std::array<pollfd, 2> fds{{{guest_->wake_fds[0], POLLIN, 0}, {guest_->wake_fds[1], POLLIN, 0}}};
  ::poll(fds.data(), fds.size(), -1);
}

}  // namespace nobounce::backend
