#include "backend/backend.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>

#include "backend/isolation.hpp"
#include "backend/wait.hpp"
#include "base/bytes.hpp"
#include "base/copies.hpp"
#include "base/log.hpp"
#include "netdev/net_device.hpp"

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
constexpr int kEvents = 16;  // a look; what is not seen now is seen next time

std::unexpected<Error> bad_option(std::string cause, std::string hint) {
  return fail(std::errc::invalid_argument, "start the back-end", std::move(cause), std::move(hint));
}

Result<void> check(const BackendOptions& options) {
  if (!is_power_of_two(options.queue_size_limit) || options.queue_size_limit < kQueueSizeMin ||
      options.queue_size_limit > kQueueSizeMax) {
    return bad_option(
        fmt::format("a ring of {} descriptors", options.queue_size_limit),
        fmt::format("give a power of two from {} to {}", kQueueSizeMin, kQueueSizeMax));
  }
  if (options.queue_pairs == 0 || options.queue_pairs > Backend::kQueuePairsMax) {
    return bad_option(fmt::format("{} queue pairs", options.queue_pairs),
                      fmt::format("give 1 to {}", Backend::kQueuePairsMax));
  }
  if (options.sockets.empty()) return bad_option("no socket", "give a path");
  if (options.mtu && *options.mtu < kMtuMin) {
    return bad_option(fmt::format("MTU {}", *options.mtu),
                      fmt::format("give {} to {}", kMtuMin, kMtuMax));
  }
  for (const MacAddress& mac : {options.mac, options.guest_mac}) {
    if (mac.is_zero() || mac.is_multicast()) {
      return bad_option(fmt::format("MAC address {}", mac.to_string()),
                        "give a unicast address such as 02:00:00:00:00:01");
    }
  }
  return {};
}

// Each guest gets a MAC address of its own, counted up from the first one's.
MacAddress add(MacAddress mac, size_t count) noexcept {
  for (size_t i = mac.bytes.size(); i > 3 && count > 0; --i) {
    count += mac.bytes[i - 1];
    mac.bytes[i - 1] = static_cast<uint8_t>(count);
    count >>= 8;
  }
  return mac;
}

DeviceOffer offer_of(const BackendOptions& options, size_t slot) {
  return {.features = DeviceOffer::all_features(options.queue_pairs, options.feature_mask),
          .protocol_features = DeviceOffer::all_protocol_features(options.queue_pairs),
          .queue_pairs = options.queue_pairs,
          .queue_size_limit = options.queue_size_limit,
          .guest_mac = add(options.guest_mac, slot),
          .mtu = options.mtu.value_or(1500)};
}

// For what a front-end can cause: at most one line a second (TM-71).
void tell_limited(LogLimit& limit, uint64_t now_ns, const std::string& message) {
  uint64_t held_back = 0;
  if (!limit.admit(now_ns, held_back)) return;
  log_info(held_back == 0 ? message : fmt::format("{} (and {} more like it)", message, held_back));
}

}  // namespace

// One path on which front-ends come.
struct Backend::Door {
  Listener listener;
  std::string path;
  bool has_guest = false;  // client's role: one connection at a time
};

// Everything of one front-end, in the order it must go: rings and mappings first, the socket last.
struct Backend::Guest {
  Guest(UniqueFd socket, const DeviceOffer& offer, BackendCounters& counters,
        SignalWatchdog* watchdog, Door& through, size_t number)
      : connection(std::move(socket)),
        session(offer, counters, watchdog),
        door(through),
        slot(number) {}

  Connection connection;
  Session session;
  Door& door;
  const size_t slot;
  bool joined = false;
  bool parted = false;          // to be forgotten
  uint64_t features = 0;        // when it joined
  uint64_t tried = UINT64_MAX;  // generation of the rings at the last attempt to join
};

// ---- set-up -----------------------------------------------------------------------------------

Result<std::unique_ptr<Backend>> Backend::open(const BackendOptions& options,
                                               NetworkFactory network) {
  if (auto checked = check(options); !checked) return std::unexpected(checked.error());
  std::unique_ptr<CounterRegistry> registry;
  if (options.counters.empty()) {
    registry = std::make_unique<CounterRegistry>();
  } else {
    auto published = CounterRegistry::publish(options.counters);
    if (!published) return std::unexpected(published.error());
    registry = std::move(*published);
  }
  std::unique_ptr<Backend> backend(new Backend(options, std::move(registry)));
  if (auto opened = backend->open_doors(); !opened) return std::unexpected(opened.error());
  auto made = network({backend->counters_, *backend->registry_, backend->control_.get()});
  if (!made) return std::unexpected(made.error());
  backend->network_ = std::move(*made);
  if (options.isolate) {
    if (auto done = forbid_dumps(); !done) return std::unexpected(done.error());
    if (auto done = drop_capabilities(); !done) return std::unexpected(done.error());
  }
  backend->watchdog_.emplace(backend->counters_.calls_rescued);
  return backend;
}

Backend::Backend(const BackendOptions& options, std::unique_ptr<CounterRegistry> registry)
    : options_(options), registry_(std::move(registry)), counters_(*registry_) {
  guests_.reserve(kGuestsMax);
}

Backend::~Backend() {
  for (const auto& guest : guests_) network_->leave(guest->session);
}

Result<void> Backend::open_doors() {
  stop_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  control_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event stop{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!stop_event_.is_open() || !control_.is_open() ||
      ::epoll_ctl(control_.get(), EPOLL_CTL_ADD, stop_event_.get(), &stop) != 0) {
    return fail_errno("start the back-end");
  }
  doors_.reserve(options_.sockets.size());  // guests point to them
  for (const std::string& path : options_.sockets) {
    auto listener = Listener::open(path, options_.role, clock_.now_ns());
    if (!listener) return std::unexpected(listener.error());
    doors_.push_back({.listener = std::move(*listener), .path = path});
    epoll_event event{.events = 0, .data = {.u64 = 0}};
    const int fd = doors_.back().listener.fd();
    if (fd >= 0 && ::epoll_ctl(control_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return fail_errno("start the back-end");
    }
  }
  return {};
}

Result<void> Backend::run(std::stop_token stop) {
  if (options_.isolate) {
    const auto filter = filter_system_calls();
    if (!filter) return std::unexpected(filter.error());
    if (*filter == Filter::unavailable) {
      log_warning("built without libseccomp: the back-end runs without a system-call filter");
    }
  }
  set_this_thread_kind(ThreadKind::io);
  const std::stop_callback wake(stop, [fd = stop_event_.get()] {
    constexpr uint64_t kOne = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd, &kOne, sizeof kOne);
  });
  Result<void> result;
  while (result && !stop.stop_requested()) {
    if (rounds_++ % kControlRounds == 0) {
      result = serve_control();
      if (options_.once && guests_.empty() && counters_.disconnections.value() > 0) break;
    }
    if (result) serve_rings();
  }
  for (const auto& guest : guests_) part(*guest, "the back-end stops");
  forget_parted();
  return result;
}

// ---- front-ends -------------------------------------------------------------------------------

Result<void> Backend::serve_control() {
  std::array<epoll_event, kEvents> events;
  const int count = ::epoll_wait(control_.get(), events.data(), kEvents, 0);
  for (int i = 0; i < count; ++i) {
    if (auto* guest = static_cast<Guest*>(events[static_cast<size_t>(i)].data.ptr)) {
      read_messages(*guest);
    }
  }
  forget_parted();
  if (auto looked = look_at_doors(); !looked) return looked;
  watch_doors();
  return {};
}

Result<void> Backend::look_at_doors() {
  for (Door& door : doors_) {
    if (guests_.size() == std::min(kGuestsMax, network_->guests_max())) break;
    if (door.has_guest && options_.role == Role::client) continue;
    auto socket = door.listener.next(clock_.now_ns());
    if (!socket) return std::unexpected(socket.error());
    if (socket->is_open()) meet(door, std::move(*socket));
  }
  return {};
}

// A front-end that waits for room must not keep us awake.
void Backend::watch_doors() noexcept {
  const bool room = guests_.size() < std::min(kGuestsMax, network_->guests_max());
  if (room == doors_watched_) return;
  doors_watched_ = room;
  for (const Door& door : doors_) {
    epoll_event event{.events = room ? uint32_t{EPOLLIN} : 0, .data = {.u64 = 0}};
    if (door.listener.fd() >= 0) {
      ::epoll_ctl(control_.get(), EPOLL_CTL_MOD, door.listener.fd(), &event);
    }
  }
}

size_t Backend::free_slot() const noexcept {
  for (size_t slot = 0;; ++slot) {
    if (std::ranges::none_of(guests_, [slot](const auto& g) { return g->slot == slot; }))
      return slot;
  }
}

void Backend::meet(Door& door, UniqueFd socket) {
  const size_t slot = free_slot();
  auto guest = std::make_unique<Guest>(std::move(socket), offer_of(options_, slot), counters_,
                                       &*watchdog_, door, slot);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = guest.get()}};
  if (::epoll_ctl(control_.get(), EPOLL_CTL_ADD, guest->connection.fd(), &event) != 0) return;
  counters_.connections.add();
  door.has_guest = true;
  guests_.push_back(std::move(guest));
  watchdog_->set_active(true);
  tell_limited(connect_limit_, clock_.now_ns(),
               fmt::format("a front-end connected on {}", door.path));
}

// The guest itself goes with forget_parted(): others may still look at it now.
void Backend::part(Guest& guest, const std::string& why) {
  network_->leave(guest.session);
  guest.joined = false;
  guest.parted = true;
  tell_limited(part_limit_, clock_.now_ns(),
               fmt::format("the front-end on {} is gone: {}", guest.door.path, why));
}

// The socket leaves the epoll set by name: closing it is not enough while somebody else (a child of
// fork) holds it too, and its events would still carry the guest's address.
void Backend::forget_parted() {
  const size_t gone = std::erase_if(guests_, [this](const auto& guest) {
    if (!guest->parted) return false;
    ::epoll_ctl(control_.get(), EPOLL_CTL_DEL, guest->connection.fd(), nullptr);
    guest->door.has_guest = false;
    return true;
  });
  if (gone == 0) return;
  counters_.disconnections.add(gone);  // and nothing of them is left
  watchdog_->set_active(!guests_.empty());
}

// ---- control ----------------------------------------------------------------------------------

void Backend::read_messages(Guest& guest) {
  for (unsigned i = 0; i < kControlMessages && !guest.parted; ++i) {
    switch (guest.connection.read()) {
      case ReadResult::nothing:
        return;
      case ReadResult::message:
        answer(guest);
        break;
      case ReadResult::closed:
        part(guest, "it left");
        break;
      case ReadResult::fault:
        counters_.protocol_faults.add();
        part(guest, fmt::format("protocol error: {}", guest.connection.fault()));
        break;
    }
  }
}

void Backend::answer(Guest& guest) {
  Message& message = guest.connection.message();
  Reply reply;
  const Outcome outcome = guest.session.handle(message, reply);
  const char* name = to_string(message.header.request);
  if (outcome.verdict == Verdict::fault ||
      (outcome.verdict == Verdict::refused && reply.size == 0)) {
    part(guest, fmt::format("{}: {}", name, outcome.reason));
    return;
  }
  if (outcome.verdict == Verdict::refused) {
    warn_limited(refused_limit_, clock_.now_ns(),
                 fmt::format("{} refused: {}", name, outcome.reason));
  }
  if (reply.size > 0 && !guest.connection.send(reply)) {
    part(guest, fmt::format("{}: it does not take its replies", name));
  }
}

// ---- rings ------------------------------------------------------------------------------------

// A guest that negotiated anew, or broke its rings, joins anew; one that only paused its rings stays.
void Backend::check_stay(Guest& guest) {
  if (guest.joined &&
      (!network_->serves(guest.session) || guest.features != guest.session.features())) {
    network_->leave(guest.session);
    guest.joined = false;
  }
  if (guest.joined || !guest.session.is_ready() || guest.tried == guest.session.generation()) {
    return;
  }
  guest.tried = guest.session.generation();
  guest.features = guest.session.features();
  if (auto joined = network_->join(guest.session); !joined) {
    warn_limited(join_limit_, clock_.now_ns(), joined.error().to_string());
    return;
  }
  guest.joined = true;
}

void Backend::serve_rings() {
  for (const auto& guest : guests_) check_stay(*guest);
  if (network_->round() > 0) {
    idle_since_ns_ = 0;
    return;
  }
  const uint64_t now = clock_.now_ns();
  if (idle_since_ns_ == 0) idle_since_ns_ = now;
  const bool spins = std::ranges::any_of(guests_, [](const auto& guest) { return guest->joined; });
  if (spins && now - idle_since_ns_ < options_.spin_ns) return;
  network_->sleep(sleep_limit_ns());
  idle_since_ns_ = 0;
  rounds_ = 0;  // a control message may be what ended the sleep
}

uint64_t Backend::sleep_limit_ns() {
  uint64_t limit = kForever;
  for (const auto& guest : guests_) {
    if (!guest->joined) continue;
    limit = std::min(limit, guest->session.must_poll() ? kPollNs : kSleepMaxNs);
  }
  for (const Door& door : doors_) {
    if (door.has_guest || door.listener.next_try_ns() == UINT64_MAX) continue;
    const uint64_t now = clock_.now_ns();
    limit =
        std::min(limit, door.listener.next_try_ns() - std::min(now, door.listener.next_try_ns()));
  }
  return limit;
}

}  // namespace nobounce::backend
