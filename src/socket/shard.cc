#include "socket/shard.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "base/log.hpp"

namespace nobounce {
namespace {

constexpr size_t kSubmissionsPerRound = 256;  // of one ring: bounds a round (TM-13)
constexpr uint64_t kAccountRounds = 1024;
constexpr uint64_t kLinkGapNs = kNsPerSecond;  // between two announcements of a link (TM-32)

// Every timer of the shard: TCP's, one a neighbour and its queue, ICMP and UDP housekeeping.
constexpr size_t timers_max(const ShardOptions& options) {
  return options.connections_max * tcp::kTimersPerConnection + 2 * 1024 + 64;
}

constexpr bool is_last(const Submission& submission) {
  return submission.op == Submission::Op::close || submission.op == Submission::Op::abort;
}

}  // namespace

struct Shard::Counters {
  Counter rounds, packets_received, submissions, sleeps, wakes, cpu_ns, spin_ns, spin_budget_ns,
      tcp_refused, listener_refused, udp_refused, udp_queue_full;
  SharedCounter doorbells, ring_full;

  Counters(CounterRegistry& registry, unsigned index) {
    const auto name = [&](const char* what) {
      return registry.counter(fmt::format("shard.{}.{}", index, what));
    };
    rounds = name("rounds");
    packets_received = name("packets_received");
    submissions = name("submissions");
    sleeps = name("sleeps");
    wakes = name("wakes_of_application");
    doorbells = name("doorbells");
    cpu_ns = name("cpu_ns");
    spin_ns = name("spin_ns");
    spin_budget_ns = name("spin_budget_ns");
    tcp_refused = name("limit.tcp_sockets");
    listener_refused = name("limit.listeners");
    udp_refused = name("limit.udp_sockets");
    ring_full = name("limit.submission_ring_full");
    udp_queue_full = name("limit.udp_queue_full");
  }
};

Shard::Shard(const ShardOptions& options, Clock& clock, Random& random, PrivateArena& arena,
             CounterRegistry& counters, CopyLedger& copies, UniqueFd doorbell)
    : options_(options),
      counters_(std::make_unique<Counters>(counters, options.index)),
      timers_(timers_max(options)),
      packets_(options.packets, counters),
      context_{clock, random, timers_, packets_, arena, counters, copies, clock.now_ns()},
      echo_board_(context_),
      tcp_cores_(options.connections_max),
      listener_cores_(options.listeners_max),
      udp_cores_(options.udp_max),
      spin_(options.spin_ns),
      doorbell_(std::move(doorbell)) {
  NB_ASSERT(doorbell_.is_open());
  linger_over_ = counters.counter(fmt::format("shard.{}.limit.linger", options.index));
}

Shard::~Shard() {
  shut_down("closed");
  const std::lock_guard guard(down_lock_);
  settle_when_down();
  NB_ASSERT(live_.empty());
}

void Shard::attach(std::unique_ptr<NetDevice> device, const ip::Options& options) {
  device_ = std::move(device);
  ip_ = std::make_unique<ip::Layer>(context_, *device_, options);
  tcp::LayerOptions tcp_options;
  tcp_options.connections_max = options_.connections_max;
  tcp_options.listeners_max = options_.listeners_max;
  tcp_ = std::make_unique<tcp::Layer>(context_, *ip_, tcp_options);
  udp_ = std::make_unique<udp::Layer>(context_, *ip_, options_.udp_max);
  ip_->register_transport(ip::kProtocolTcp, *tcp_);
  ip_->register_transport(ip::kProtocolUdp, *udp_);
  frag_source_.device = device_->leaf() != nullptr ? device_->leaf()->dma() : nullptr;
  frag_source_.arena = &context_.arena;
  frag_source_.refill_nocopy = context_.counters.counter("socket.refill.nocopy");
  frag_source_.refill_private = context_.counters.counter("socket.refill.private");
  frag_source_.refill_reused = context_.counters.counter("socket.refill.reused");
  frag_source_.refill_failed = context_.counters.counter("socket.refill.failed");
  local_frag_source_ = frag_source_;
  local_frag_source_.device = nullptr;
  own_addresses_.push_back(options.address.address);
  for (const IpPrefix& more : options.more_addresses) own_addresses_.push_back(more.address);
  ip_->set_echo_sink(&echo_board_);
  ip_->announce();
}

// ---- the round --------------------------------------------------------------------------------

size_t Shard::round() noexcept {
  if (is_down()) return 0;
  context_.now_ns = context_.clock.now_ns();
  starved_ = false;
  size_t work = receive();
  look_at_link();
  work += timers_.poll(context_.now_ns);
  work += drain_submissions();
  work += run_calls();
  push_connections();
  ip_->flush();
  device_->reclaim(0);
  work += wake_sockets();
  counters_->rounds.add();
  if (device_->is_broken()) {
    const char* reason = device_->broken_reason();
    shut_down(fmt::format("device {}: {}", device_->name(),
                          reason != nullptr ? reason : "it is broken or gone"));
    return 1;
  }
  return work;
}

size_t Shard::receive() noexcept {
  const size_t received = device_->receive(0, burst_);
  counters_->packets_received.add(received);
  if (received > 0) ip_->receive(burst_);
  NB_ASSERT(burst_.empty());
  const size_t all = received + ip_->receive_local();
  if (all > 0) tcp_->end_of_burst();
  return all;
}

// What has come joins what waits, in order.
void Shard::take_calls() noexcept {
  ControlCall* call = calls_.exchange(nullptr, std::memory_order_acquire);  // pairs with [control]
  ControlCall* oldest = nullptr;
  while (call != nullptr) {
    ControlCall* const older = call->next;
    call->next = oldest;
    oldest = std::exchange(call, older);
  }
  ControlCall** end = &waiting_calls_;
  while (*end != nullptr) end = &(*end)->next;
  *end = oldest;
}

// One a waiting thread at the most.
size_t Shard::run_calls() noexcept {
  take_calls();
  size_t done = 0;
  for (ControlCall** link = &waiting_calls_; *link != nullptr;) {
    ControlCall& call = **link;
    const bool in_turn = call.ring == nullptr || call.ring->has_applied(call.after);
    if (!in_turn && !(starved_ && call.ring->is_blocked)) {
      link = &call.next;
      continue;
    }
    *link = call.next;  // once finished, the call is its caller's again
    call.body(*this, call.context);
    finish(call, false);
    ++done;
  }
  return done;
}

// A link that flaps is down for the layers until a second has passed (TM-32).
void Shard::look_at_link() noexcept {
  const bool up = device_->link_up();
  if (up == link_up_) return;
  if (!up) {
    link_up_ = false;
    tcp_->link_down();
    return;
  }
  if (link_came_up_ns_ != 0 && context_.now_ns - link_came_up_ns_ < kLinkGapNs) return;
  link_up_ = true;
  link_came_up_ns_ = context_.now_ns;
  ip_->announce();
  tcp_->link_up();
}

size_t Shard::drain_submissions() noexcept {
  size_t applied = 0;
  const size_t rings = submissions_.count();
  for (size_t i = 0; i < rings; ++i) applied += drain(submissions_.at(i));
  if (applied > 0) counters_->submissions.add(applied);
  return applied;
}

size_t Shard::drain(SubmissionQueue& queue) noexcept {
  size_t applied = 0;
  queue.is_blocked = false;
  while (applied < kSubmissionsPerRound) {
    Submission* submission = queue.ring.front();
    if (submission == nullptr) break;
    if (!apply(*submission)) {
      queue.is_blocked = true;
      break;
    }
    queue.ring.pop();
    ++queue.applied;
    ++applied;
  }
  if (applied > 0 && queue.wants_room.exchange(false, std::memory_order_seq_cst)) {
    queue.room.signal();
  }
  return applied;
}

// False: not its turn yet, or no room for it; it stays at the head of its ring.
bool Shard::apply(Submission& submission) noexcept {
  switch (submission.op) {
    case Submission::Op::consumed: {
      static_cast<TcpCore&>(*submission.socket).report_consumed();
      return true;
    }
    default:
      break;
  }
  SocketCore& socket = *submission.socket;
  if (submission.sequence != socket.next_sequence) return false;
  if (submission.op == Submission::Op::send && !apply_send(submission)) return false;
  if (submission.op == Submission::Op::datagram && !ip_->has_room(submission.to.address)) {
    starved_ = true;
    return false;
  }
  if (is_last(submission) && !may_go(socket)) return false;
  ++socket.next_sequence;
  if (submission.op != Submission::Op::send) apply_in_order(submission);
  return true;
}

// A socket is not given back while another thread's ring still names it. Such an entry was pushed
// before the close, so it is met in this or the next turn.
bool Shard::may_go(SocketCore& socket) noexcept {
  return socket.kind != SocketCore::Kind::tcp ||
         !static_cast<TcpCore&>(socket).consumed_pending.load(std::memory_order_relaxed);
}

bool Shard::apply_send(Submission& submission) noexcept {
  auto& core = static_cast<TcpCore&>(*submission.socket);
  if (core.connection == nullptr || core.closed.load(std::memory_order_relaxed)) {
    page_put(*submission.page);
    return true;
  }
  const Frag frag{submission.page, submission.offset, submission.size};
  if (!tcp_->send(*core.connection, frag, submission.more == More::yes)) {
    starved_ = true;
    return false;
  }
  has_data(core);
  return true;
}

void Shard::apply_in_order(Submission& submission) noexcept {
  switch (submission.op) {
    case Submission::Op::datagram: {
      auto& core = static_cast<UdpCore&>(*submission.socket);
      const Frag frag{submission.page, submission.offset, submission.size};
      const auto sent = udp_->send(*core.port, submission.to, &frag, 1, submission.payload_sum);
      if (!sent) core.on_error(sent.error());
      core.count_sent(UdpCore::send_charge(submission.size));
      break;
    }
    case Submission::Op::shutdown: {
      auto& core = static_cast<TcpCore&>(*submission.socket);
      if (core.connection != nullptr) tcp_->shutdown_send(*core.connection);
      break;
    }
    case Submission::Op::close:
    case Submission::Op::abort: {
      SocketCore& socket = *submission.socket;
      if (socket.kind == SocketCore::Kind::tcp) {
        close(static_cast<TcpCore&>(socket), submission.op == Submission::Op::abort);
      } else if (socket.kind == SocketCore::Kind::udp) {
        auto& core = static_cast<UdpCore&>(socket);
        udp_->unbind(core.port);
        release(core);
      } else {
        auto& core = static_cast<ListenerCore&>(socket);
        tcp_->close(core.listener);
        TcpCore* waiting = nullptr;
        while (core.ready.try_pop(waiting)) close(*waiting, true);
        release(core);
      }
      break;
    }
    default:
      NB_ASSERT(false);
  }
}

void Shard::push_connections() noexcept {
  while (TcpCore* core = to_push_.pop_front()) {
    if (core->connection != nullptr) tcp_->push(*core->connection);
  }
}

size_t Shard::wake_sockets() noexcept {
  size_t woken = 0;
  while (SocketCore* core = news_.pop_front()) {
    if (core->event.signal()) ++woken;
  }
  if (woken > 0) counters_->wakes.add(woken);
  return woken;
}

void Shard::has_news(SocketCore& core) noexcept {
  if (!static_cast<NewsHook&>(core).is_linked()) news_.push_back(core);
}

void Shard::has_data(TcpCore& core) noexcept {
  if (!static_cast<PushHook&>(core).is_linked()) to_push_.push_back(core);
}

void Shard::count_datagram_refused() noexcept { counters_->udp_queue_full.add(); }

// ---- sockets come and go ----------------------------------------------------------------------

TcpCore* Shard::acquire_tcp() noexcept {
  TcpCore* core = tcp_cores_.acquire(*this);
  core != nullptr ? live_.push_back(*core) : counters_->tcp_refused.add();
  return core;
}

ListenerCore* Shard::acquire_listener(uint32_t backlog) noexcept {
  ListenerCore* core = listener_cores_.acquire(*this, backlog);
  core != nullptr ? live_.push_back(*core) : counters_->listener_refused.add();
  return core;
}

UdpCore* Shard::acquire_udp() noexcept {
  UdpCore* core = udp_cores_.acquire(*this);
  core != nullptr ? live_.push_back(*core) : counters_->udp_refused.add();
  return core;
}

void Shard::release(SocketCore& core) noexcept {
  live_.remove(core);
  if (static_cast<NewsHook&>(core).is_linked()) news_.remove(core);
  switch (core.kind) {
    case SocketCore::Kind::tcp: {
      auto& tcp_core = static_cast<TcpCore&>(core);
      if (static_cast<PushHook&>(tcp_core).is_linked()) to_push_.remove(tcp_core);
      tcp_cores_.release(&tcp_core);
      break;
    }
    case SocketCore::Kind::listener:
      listener_cores_.release(&static_cast<ListenerCore&>(core));
      break;
    case SocketCore::Kind::udp:
      udp_cores_.release(&static_cast<UdpCore&>(core));
      break;
  }
}

void Shard::close(TcpCore& core, bool abort) noexcept {
  if (core.connection != nullptr) {
    // What the application sent goes out before the FIN.
    tcp_->push(*core.connection);
    const bool unread = !core.received.empty();
    if (abort || unread) {
      tcp_->abort(*core.connection);  // unread data: the peer must know (T-57)
    } else {
      tcp_->release(*core.connection);
    }
    core.connection = nullptr;
  }
  release(core);
}

// ---- sleeping ---------------------------------------------------------------------------------

bool Shard::has_work() noexcept {
  return calls_.load(std::memory_order_relaxed) != nullptr ||
         (!starved_ && submissions_.any_pending()) || ip_->local_pending() ||
         (!leaving_ && stop_.load(std::memory_order_relaxed));
}

uint64_t Shard::sleep_limit() noexcept {
  const uint64_t now = context_.clock.now_ns();
  uint64_t limit = tcp_->connections() > 0 || ip_->output_pending() ? kPollNs : 100 * kNsPerMs;
  if (starved_ || leaving_) limit = kNsPerMs;
  const uint64_t deadline = timers_.next_deadline_ns();
  if (deadline != TimerQueue::kNever) limit = std::min(limit, deadline > now ? deadline - now : 0);
  return limit;
}

void Shard::sleep(uint64_t limit_ns) noexcept {
  if (is_down()) return;
  account();
  limit_ns = std::min(limit_ns, sleep_limit());
  sleeping_.store(true, std::memory_order_relaxed);
  full_fence();  // pairs with the fence in ring_doorbell()'s callers
  const bool idle = !has_work() && device_->arm(0);
  if (idle && limit_ns > 0) {
    pollfd fds[2] = {{doorbell_.get(), POLLIN, 0}, {device_->wait_handle(0).fd, POLLIN, 0}};
    // A device without a handle is polled; poll(2) ignores negative descriptors.
    if (fds[1].fd < 0) limit_ns = std::min<uint64_t>(limit_ns, kNsPerMs);
    const timespec timeout{static_cast<time_t>(limit_ns / kNsPerSecond),
                           static_cast<long>(limit_ns % kNsPerSecond)};
    counters_->sleeps.add();
    const int ready = ppoll(fds, 2, &timeout, nullptr);
    if (ready > 0 && fds[1].revents != 0) device_->acknowledge(0);
    if (ready > 0 && fds[0].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t n = ::read(doorbell_.get(), &count, sizeof count);
    }
  }
  sleeping_.store(false, std::memory_order_relaxed);
  device_->disarm(0);
}

void Shard::account() noexcept {
  if (spin_.is_due(context_.now_ns)) spin_.judge(context_.now_ns, thread_forced_switches());
  counters_->cpu_ns.set(thread_cpu_ns());
  counters_->spin_budget_ns.set(spin_.ns());
}

void Shard::run() noexcept {
  set_this_thread_kind(ThreadKind::io);
  uint64_t idle_since = 0;
  uint64_t rounds = 0;
  while (!stop_.load(std::memory_order_acquire) && !is_down()) {
    const size_t work = round();
    if (is_down()) break;
    if (++rounds % kAccountRounds == 0) account();
    if (work == 0 && idle_since == 0) idle_since = context_.now_ns;
    if (idle_since == 0) continue;
    const uint64_t spun_ns = context_.now_ns - idle_since;
    const bool sleeps = work == 0 && spun_ns >= spin_.ns();
    if (work == 0 && !sleeps) {
      cpu_relax();
      continue;
    }
    counters_->spin_ns.add(spun_ns);
    idle_since = 0;
    if (sleeps) sleep(Event::kForever);
  }
  leave();
  account();
  shut_down("closed");
}

void Shard::stop() noexcept {
  stop_.store(true, std::memory_order_seq_cst);
  ring_doorbell();
}

void Shard::ring_doorbell() noexcept {
  const uint64_t one = 1;
  // Our own eventfd, non-blocking: a full counter means the shard will wake anyway.
  [[maybe_unused]] const ssize_t n = ::write(doorbell_.get(), &one, sizeof one);
  counters_->doorbells.add();
}

// ---- any thread -------------------------------------------------------------------------------

bool Shard::submit(Submission& submission, uint64_t limit_ns) noexcept {
  SubmissionQueue* queue = submissions_.mine();
  if (queue == nullptr) return false;
  const uint64_t start = context_.clock.now_ns();
  while (!is_down()) {
    if (queue->ring.try_push(submission)) {
      ++queue->submitted;
      full_fence();  // pairs with the fence in sleep()
      if (sleeping_.load(std::memory_order_relaxed)) ring_doorbell();
      return true;
    }
    counters_->ring_full.add();
    const uint32_t seen = queue->room.prepare();
    queue->wants_room.store(true, std::memory_order_seq_cst);
    if (queue->ring.room() > 0) continue;
    const uint64_t waited = context_.clock.now_ns() - start;
    if (waited >= limit_ns) return false;
    wait(queue->room, seen, std::min(kPollNs, limit_ns - waited));
  }
  return false;
}

bool Shard::control(ControlCall& call) noexcept {
  if (is_down()) return false;
  call.ring = submissions_.mine();
  if (call.ring != nullptr) call.after = call.ring->submitted;
  call.next = calls_.load(std::memory_order_relaxed);
  while (!calls_.compare_exchange_weak(call.next, &call, std::memory_order_release,  // [control]
                                       std::memory_order_relaxed)) {
  }
  full_fence();  // pairs with the fence in sleep()
  if (sleeping_.load(std::memory_order_relaxed)) ring_doorbell();
  while (!call.finished.load(std::memory_order_acquire)) {
    const uint32_t seen = call.done.prepare();
    if (call.finished.load(std::memory_order_acquire)) break;
    wait(call.done, seen, 10 * kPollNs);
    if (is_down()) {
      const std::lock_guard guard(down_lock_);
      settle_when_down();
    }
  }
  // The shard may still be inside done.signal(): it is done with the call once `left` is set.
  while (!call.left.load(std::memory_order_acquire)) cpu_relax();
  return !call.refused;
}

void Shard::finish(ControlCall& call, bool refused) noexcept {
  call.refused = refused;
  call.finished.store(true, std::memory_order_release);
  call.done.signal();
  call.left.store(true, std::memory_order_release);
}

bool Shard::wait(Event& event, uint32_t seen, uint64_t timeout_ns) noexcept {
  if (!options_.inline_drive) return event.wait(seen, timeout_ns);
  const uint64_t start = context_.clock.now_ns();
  while (event.prepare() == seen && !is_down()) {
    if (round() > 0) continue;
    const uint64_t waited = context_.clock.now_ns() - start;
    if (waited >= timeout_ns) return false;
    sleep(timeout_ns - waited);
  }
  return true;
}

// ---- down -------------------------------------------------------------------------------------

void Shard::shut_down(const std::string& why) noexcept {
  const std::lock_guard guard(down_lock_);
  if (is_down()) return;
  failure_ = why;
  down_.store(true, std::memory_order_release);
  while (SocketCore* core = news_.pop_front()) core->event.signal();
  while (to_push_.pop_front() != nullptr) {
  }
  for (SocketCore* core = live_.front(); core != nullptr; core = live_.next(*core)) {
    if (core->kind == SocketCore::Kind::tcp) {
      auto& tcp_core = static_cast<TcpCore&>(*core);
      tcp_core.connection = nullptr;
      tcp_core.backlog_in_tcp.store(false, std::memory_order_release);
    }
    core->fail(std::errc::network_down);
  }
  udp_.reset();
  tcp_.reset();
  ip_.reset();
  burst_.clear();
  device_.reset();
  settle_when_down();
}

// Under down_lock_. Rings are taken in turns until none moves: order within a socket holds here too.
void Shard::settle_when_down() noexcept {
  take_calls();
  while (waiting_calls_ != nullptr) {
    ControlCall& call = *waiting_calls_;
    waiting_calls_ = call.next;
    finish(call, true);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < submissions_.count(); ++i) {
      SubmissionQueue& queue = submissions_.at(i);
      while (Submission* submission = queue.ring.front()) {
        if (submission->op != Submission::Op::consumed) {
          if (submission->sequence != submission->socket->next_sequence) break;
          ++submission->socket->next_sequence;
        }
        settle(*submission);
        queue.ring.pop();
        moved = true;
      }
      queue.room.signal();
    }
  }
}

void Shard::settle(Submission& submission) noexcept {
  switch (submission.op) {
    case Submission::Op::send:
    case Submission::Op::datagram:
      page_put(*submission.page);
      break;
    case Submission::Op::close:
    case Submission::Op::abort:
      release_core_when_down(*submission.socket);
      break;
    default:
      break;
  }
}

void Shard::release_core_when_down(SocketCore& core) noexcept {
  if (core.kind == SocketCore::Kind::listener) {
    TcpCore* waiting = nullptr;
    auto& listener = static_cast<ListenerCore&>(core);
    while (listener.ready.try_pop(waiting)) release(*waiting);
  }
  release(core);
}

void Shard::release_when_down(SocketCore& core) noexcept {
  const std::lock_guard guard(down_lock_);
  settle_when_down();
  release_core_when_down(core);
}

}  // namespace nobounce
