#include "backend/peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "backend/guest_port.hpp"
#include "base/log.hpp"
#include "base/object_pool.hpp"
#include "base/random.hpp"
#include "socket/set_up.hpp"
#include "socket/shard.hpp"

namespace nobounce::backend {
namespace {

constexpr unsigned kPatternOrder = kBlockOrderMax;
constexpr size_t kPatternBlock = kPageSize << kPatternOrder;
constexpr size_t kPatternBlocks = Peer::kPatternBytes / kPatternBlock;
constexpr size_t kSourcePiece = 64 << 10;  // one super-frame
static_assert(Peer::kPatternBytes % kPatternBlock == 0);
static_assert(kPatternBlock % kSourcePiece == 0);

constexpr uint64_t kStarvedNs = kNsPerMs;  // packets come back with acknowledgements

enum class Kind : uint8_t { echo, discard, source };

class Services;

// One TCP connection of a service.
struct Flow final : tcp::Owner {
  Flow(Services& all, Kind which, tcp::Connection& with) noexcept
      : services(all), kind(which), connection(with) {}
  ~Flow() {
    if (pending.page != nullptr) page_return(*pending.page);
  }

  void on_connected() noexcept override {}
  void on_readable() noexcept override;
  void on_acked(size_t bytes) noexcept override;
  void on_closed(std::errc reason) noexcept override;

  Services& services;
  const Kind kind;
  tcp::Connection& connection;
  size_t queued = 0;      // given to TCP and not acknowledged
  uint64_t position = 0;  // of the source's stream
  Frag pending;           // received and not yet sent back
  bool finished = false;  // our FIN is queued
};

struct Acceptor final : tcp::ListenerOwner {
  Acceptor(Services& all, Kind which) noexcept : services(all), kind(which) {}
  bool has_room() noexcept override;
  tcp::Owner* on_accept(tcp::Connection& connection) noexcept override;

  Services& services;
  const Kind kind;
};

struct UdpService final : udp::Owner {
  UdpService(Services& all, Kind which) noexcept : services(all), kind(which) {}
  void on_datagram(PacketPtr packet, const Endpoint& from) noexcept override;
  void on_error(std::errc) noexcept override {}

  Services& services;
  const Kind kind;
  udp::Port* port = nullptr;
};

class Services final : public PortService {
 public:
  Services(std::unique_ptr<Stack> stack, size_t connections_max)
      : stack_(std::move(stack)), shard_(StackSetUp::shard(*stack_)), flows_(connections_max) {}
  ~Services() override;

  Result<void> open();

  size_t round() noexcept override;
  void sleep(uint64_t limit_ns) noexcept override;
  [[nodiscard]] bool is_down() const noexcept override { return shard_.is_down(); }

  [[nodiscard]] bool has_room() const noexcept { return flows_.room() > 0; }
  [[nodiscard]] Flow* add(Kind kind, tcp::Connection& connection) noexcept;
  void remove(Flow& flow) noexcept;
  void pump(Flow& flow) noexcept;
  void echo(udp::Port& port, const Packet& packet, const Endpoint& to) noexcept;

 private:
  enum class Progress : uint8_t { done, starved };

  [[nodiscard]] Result<void> make_pattern();
  [[nodiscard]] Progress pump_echo(Flow& flow) noexcept;
  void pump_discard(Flow& flow) noexcept;
  [[nodiscard]] Progress pump_source(Flow& flow) noexcept;
  void finish(Flow& flow) noexcept;

  std::unique_ptr<Stack> stack_;
  Shard& shard_;
  ObjectPool<Flow> flows_;
  std::vector<Flow*> live_;     // capacity: the pool's
  std::vector<Flow*> waiting_;  // to be pumped in the next round; likewise
  std::array<Page*, kPatternBlocks> pattern_{};
  std::array<Acceptor, 3> acceptors_{
      {{*this, Kind::echo}, {*this, Kind::discard}, {*this, Kind::source}}};
  std::array<UdpService, 2> udp_{{{*this, Kind::echo}, {*this, Kind::discard}}};
};

// ---- owners: everything is decided in Services ------------------------------------------------------

void Flow::on_readable() noexcept { services.pump(*this); }

void Flow::on_acked(size_t bytes) noexcept {
  NB_ASSERT(bytes <= queued);
  queued -= bytes;
  services.pump(*this);
}

void Flow::on_closed(std::errc) noexcept { services.remove(*this); }

bool Acceptor::has_room() noexcept { return services.has_room(); }

tcp::Owner* Acceptor::on_accept(tcp::Connection& connection) noexcept {
  return services.add(kind, connection);
}

void UdpService::on_datagram(PacketPtr packet, const Endpoint& from) noexcept {
  if (kind == Kind::echo) services.echo(*port, *packet, from);
}

// ---- life -------------------------------------------------------------------------------------------

Services::~Services() {
  // The layers go first: nobody calls a flow after that.
  shard_.shut_down("the guest left");
  for (Flow* flow : live_) flows_.release(flow);
  for (Page* page : pattern_) {
    if (page != nullptr) page_put(*page);
  }
}

Result<void> Services::make_pattern() {
  SeededRandom random(Peer::kPatternSeed);
  for (Page*& page : pattern_) {
    page = shard_.context().arena.alloc(kPatternOrder);
    if (page == nullptr) {
      return fail(std::errc::not_enough_memory, "start the peer",
                  "no private pages for its source");
    }
    random.fill(private_bytes(*page, 0, kPatternBlock));
  }
  return {};
}

Result<void> Services::open() {
  live_.reserve(flows_.capacity());
  waiting_.reserve(flows_.capacity());
  if (auto made = make_pattern(); !made) return made;
  constexpr std::array<uint16_t, 3> kPorts{Peer::kEchoPort, Peer::kDiscardPort, Peer::kSourcePort};
  const auto failed = [](uint16_t port, std::errc code) {
    return fail(code, fmt::format("open the peer's port {}", port),
                std::make_error_code(code).message());
  };
  for (size_t i = 0; i < acceptors_.size(); ++i) {
    const auto listener = shard_.tcp().listen({IpAddress(), kPorts[i]}, 128, acceptors_[i],
                                              shard_.options().connection);
    if (!listener) return failed(kPorts[i], listener.error());
  }
  for (size_t i = 0; i < udp_.size(); ++i) {
    const auto port = shard_.udp().bind({IpAddress(), kPorts[i]}, udp_[i]);
    if (!port) return failed(kPorts[i], port.error());
    udp_[i].port = *port;
  }
  return {};
}

Flow* Services::add(Kind kind, tcp::Connection& connection) noexcept {
  Flow* flow = flows_.acquire(*this, kind, connection);
  if (flow == nullptr) return nullptr;  // the handshake stays half-open: T-15
  live_.push_back(flow);
  waiting_.push_back(flow);  // not from inside the accept
  return flow;
}

void Services::remove(Flow& flow) noexcept {
  shard_.tcp().release(flow.connection);
  std::erase(live_, &flow);
  std::erase(waiting_, &flow);
  flows_.release(&flow);
}

// ---- the round --------------------------------------------------------------------------------------

size_t Services::round() noexcept {
  size_t work = 0;
  // Those that are starved again are put back behind the ones of this round.
  for (size_t left = waiting_.size(); left > 0 && !waiting_.empty() && !shard_.is_down(); --left) {
    Flow* flow = waiting_.front();
    waiting_.erase(waiting_.begin());
    pump(*flow);
  }
  work += shard_.round();
  return work;
}

void Services::sleep(uint64_t limit_ns) noexcept {
  shard_.sleep(waiting_.empty() ? limit_ns : std::min(limit_ns, kStarvedNs));
}

// May be called from inside a callback of TCP. The flow may be gone afterwards.
void Services::pump(Flow& flow) noexcept {
  Progress progress = Progress::done;
  switch (flow.kind) {
    case Kind::echo:
      progress = pump_echo(flow);
      break;
    case Kind::discard:
      pump_discard(flow);
      break;
    case Kind::source:
      progress = pump_source(flow);
      break;
  }
  if (progress == Progress::starved && std::ranges::find(waiting_, &flow) == waiting_.end()) {
    waiting_.push_back(&flow);
  }
}

void Services::finish(Flow& flow) noexcept {
  if (flow.finished) return;
  flow.finished = true;
  shard_.tcp().shutdown_send(flow.connection);
}

// The same page references, turned round. The window opens as fast as they are taken over; what is
// queued is bounded, so a client that does not read stops its own sending (C055).
Services::Progress Services::pump_echo(Flow& flow) noexcept {
  tcp::Layer& tcp = shard_.tcp();
  size_t taken = 0;
  Progress progress = Progress::done;
  while (flow.queued < Peer::kSendMax) {
    if (flow.pending.page == nullptr && !tcp.pop_received(flow.connection, flow.pending)) break;
    if (!tcp.send(flow.connection, flow.pending, /*more=*/false)) {
      progress = Progress::starved;
      break;
    }
    taken += flow.pending.size;
    flow.queued += flow.pending.size;
    flow.pending = {};
  }
  if (taken > 0) {
    tcp.consumed(flow.connection, taken);
    tcp.push(flow.connection);
  }
  if (flow.pending.page == nullptr && tcp.at_end(flow.connection)) finish(flow);
  return progress;
}

void Services::pump_discard(Flow& flow) noexcept {
  tcp::Layer& tcp = shard_.tcp();
  size_t taken = 0;
  for (Frag frag; tcp.pop_received(flow.connection, frag);) {
    taken += frag.size;
    page_return(*frag.page);
  }
  if (taken > 0) tcp.consumed(flow.connection, taken);
  if (tcp.at_end(flow.connection)) finish(flow);
}

Services::Progress Services::pump_source(Flow& flow) noexcept {
  pump_discard(flow);  // what the client says does not matter, that it ended does
  tcp::Layer& tcp = shard_.tcp();
  Progress progress = Progress::done;
  while (!flow.finished && flow.queued < Peer::kSendMax) {
    const size_t at = flow.position % Peer::kPatternBytes;
    Page& page = *pattern_[at / kPatternBlock];
    const Frag frag{&page, static_cast<uint32_t>(at % kPatternBlock), kSourcePiece};
    page_hold(page);
    if (!tcp.send(flow.connection, frag, /*more=*/false)) {
      page_return(page);
      progress = Progress::starved;
      break;
    }
    flow.queued += frag.size;
    flow.position += frag.size;
  }
  tcp.push(flow.connection);
  return progress;
}

void Services::echo(udp::Port& port, const Packet& packet, const Endpoint& to) noexcept {
  const PacketData& data = packet.data();
  for (size_t i = 0; i < data.frag_count; ++i) page_hold(*data.frags[i].page);
  // What cannot be sent is counted by UDP; its pages are returned in every case.
  static_cast<void>(shard_.udp().send(port, to, data.frags.data(), data.frag_count));
}

}  // namespace

// ---- making one -------------------------------------------------------------------------------------

void Peer::fill_pattern(uint64_t offset, MutableBytes to) {
  static const std::vector<std::byte> pattern = [] {
    std::vector<std::byte> bytes(kPatternBytes);
    SeededRandom random(kPatternSeed);
    // Block by block, as the source makes it.
    for (size_t at = 0; at < bytes.size(); at += kPatternBlock) {
      random.fill(MutableBytes(bytes).subspan(at, kPatternBlock));
    }
    return bytes;
  }();
  for (size_t i = 0; i < to.size(); ++i) to[i] = pattern[(offset + i) % kPatternBytes];
}

Result<std::unique_ptr<PortService>> Peer::open(const ServicePlace& place,
                                                const PeerOptions& options) {
  StackOptions stack;
  stack.address = options.address;
  stack.mac = options.mac;
  stack.mode = Mode::bounce;  // this side has no shared memory of its own
  stack.drive = Drive::inline_drive;
  stack.private_bytes = options.private_bytes;
  stack.queue_size = std::max(options.queue_size, kQueueSizeMin);
  stack.connections_max = options.connections_max;
  stack.linger_ns = 0;  // it goes when its guest does: nobody is left to acknowledge
  auto opened = StackSetUp::open_on(
      stack, [&](std::span<ShardContext* const> contexts) -> Result<std::unique_ptr<NetDevice>> {
        auto port = GuestPort::open(place.session, *contexts[0], place.counters,
                                    {.mac = options.mac, .wake_fds = place.wake_fds});
        if (!port) return std::unexpected(port.error());
        std::unique_ptr<NetDevice> device = std::move(*port);
        if (!options.wrap) return device;
        return options.wrap(std::move(device), *contexts[0]);
      });
  if (!opened) return std::unexpected(opened.error());
  auto services = std::make_unique<Services>(std::move(*opened), options.connections_max);
  if (auto ready = services->open(); !ready) return std::unexpected(ready.error());
  return std::unique_ptr<PortService>(std::move(services));
}

}  // namespace nobounce::backend
