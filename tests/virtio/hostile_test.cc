// A device that does anything, from a seed: honest traffic mixed with lies about ids, lengths,
// counts and headers, scribbling over everything that it shares, and with the shared-load hook a
// change of the very word that the driver is about to read.
//
// Right: no crash, no hang; the device ends broken with its cause counted, or goes on; when it is
// closed every packet, page and slot is home (VirtioRig checks). TM-83, TM-84, TM-85.
//
// NOBOUNCE_HOSTILE_SECONDS: how long the timed run lasts (3).
#include <gtest/gtest.h>
#include <algorithm>

#include <cstdlib>
#include <deque>
#include <map>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "support/virtio_rig.hpp"
#include "virtio/breach.hpp"
#include "virtio/receive_check.hpp"

namespace nobounce::test {
namespace {

struct Habits {
  unsigned lie_percent = 10;    // of the device's actions
  unsigned flip_per_mille = 2;  // of the driver's loads: the word changes just before
  bool flips_rings = true;      // the used rings too, not only buffers
  bool scribbles = true;        // over descriptors, avail ring, finished buffers
};

class HostileRun {
 public:
  HostileRun(uint64_t seed, const Habits& habits)
      : random_(seed), habits_(habits), rig_(rig_options(seed)) {
    if (random_.below(4) == 0) rig_.device.offer &= ~wire::kRingEventIdx;
    if (random_.below(4) == 0) rig_.device.offer &= ~wire::kNetMrgRxbuf;
    rig_.open();
    arm_hook();
  }
  ~HostileRun() {
    disarm_hook();
    held_.clear();
    rig_.close();
  }

  void step() {
    driver_acts();
    disarm_hook();
    learn();
    device_acts();
    arm_hook();
  }
  [[nodiscard]] bool is_broken() const { return rig_.net->is_broken(); }
  // What came out of it, by counter name without the device's.
  void collect(std::map<std::string, uint64_t>& sums) const {
    for (const CounterSample& sample : rig_.counters.samples()) {
      if (!sample.name.starts_with(rig_.name + ".")) continue;
      sums[sample.name.substr(rig_.name.size() + 1)] += sample.value;
    }
  }
  [[nodiscard]] uint64_t digest() const { return digest_; }

 private:
  static RigOptions rig_options(uint64_t seed) {
    RigOptions options;
    options.seed = seed;
    options.net.queue_size = 64;
    options.packets = 256;
    options.region_bytes = 4 << 20;
    options.arena_bytes = 2 << 20;
    options.quotas.rx_percent = seed % 2 == 0 ? 45 : 0;
    return options;
  }

  // ---- the driver's side: what a shard would do ----

  void driver_acts() {
    switch (random_.below(8)) {
      case 0:
      case 1:
        transmit();
        break;
      case 2:
      case 3:
      case 4:
        receive();
        break;
      case 5:
        rig_.net->reclaim(0);
        break;
      case 6:
        if (rig_.net->arm(0)) rig_.net->acknowledge(0);
        break;
      default:
        rig_.net->disarm(0);
        break;
    }
    rig_.clock.advance(kNsPerMs);
    rig_.context->now_ns = rig_.clock.now_ns();
    while (held_.size() > 20) held_.pop_front();
  }

  void transmit() {
    PacketBurst burst;
    const uint32_t count = 1 + random_.below(5);
    for (uint32_t i = 0; i < count && rig_.packets->in_use() + 4 < rig_.packets->capacity(); ++i) {
      const auto memory =
          random_.below(2) == 0 ? VirtioRig::Memory::nocopy : VirtioRig::Memory::private_pages;
      PacketPtr packet = rig_.make_packet(54, random_.below(1400), memory);
      if (random_.below(4) == 0) {
        packet->checksum = Checksum::partial;
        packet->csum_start = 34;
        packet->csum_offset = 16;
        packet->gso = Gso::tcp4;
        packet->gso_size = 100;
      }
      burst.push(std::move(packet));
    }
    (void)rig_.net->transmit(0, burst);
  }

  void receive() {
    for (PacketPtr& packet : rig_.receive()) {
      // As the floors above: look at everything, give the window back.
      const auto bytes = VirtioRig::bytes_of(*packet);
      if (habits_.flip_per_mille == 0) mix(bytes);
      if (packet->head().size() > 14) (void)payload_to_frags(*packet, 14, *rig_.arena);
      if (random_.below(3) == 0) held_.push_back(std::move(packet));
    }
  }

  void mix(Bytes bytes) {
    digest_ = digest_ * 1099511628211ULL ^ bytes.size();
    for (const std::byte byte : bytes) digest_ = digest_ * 31 + std::to_integer<uint64_t>(byte);
  }

  // ---- the device's side ----

  // Takes private copies of what was posted before scribbling over it.
  void learn() {
    for (const uint16_t queue : {uint16_t{0}, uint16_t{1}}) {
      while (auto chain = rig_.device.pop(queue)) chains_[queue].push_back(*chain);
    }
  }

  void device_acts() {
    if (!rig_.device.started) return;
    const bool lies = random_.below(100) < habits_.lie_percent;
    if (lies) {
      tell_a_lie();
    } else if (random_.below(2) == 0) {
      deliver();
    } else {
      finish_sent();
    }
    if (habits_.scribbles) scribble();
  }

  std::optional<FakeChain> take(uint16_t queue) {
    if (chains_[queue].empty()) return std::nullopt;
    FakeChain chain = chains_[queue].front();
    chains_[queue].pop_front();
    return chain;
  }

  void finish_sent() {
    while (const auto chain = take(1)) {
      if (habits_.flip_per_mille == 0) mix(rig_.device.read_chain(*chain).bytes);
      rig_.device.complete(1, chain->head, random_.next_u32());
    }
  }

  void deliver() {
    const bool merges = (rig_.device.accepted & wire::kNetMrgRxbuf) != 0;
    const size_t size = 14 + random_.below(merges ? 9000 : 3000);
    const size_t needed = (size + wire::kNetHeaderBytes + kPageSize - 1) / kPageSize;
    if (chains_[0].size() < needed) return;
    std::vector<std::byte> all(wire::kNetHeaderBytes + size);
    random_.fill(all);
    wire::VirtioNetHeader header{.num_buffers = static_cast<uint16_t>(needed)};
    if (random_.below(3) == 0) header.flags = wire::kNetDataValid;
    header.emit(all);
    put(all, needed);
  }

  void put(Bytes all, size_t buffers) {
    uint16_t written = 0;
    for (size_t i = 0; i < buffers; ++i) {
      const auto chain = take(0);
      if (!chain) break;
      const size_t size = std::min(all.size(), kPageSize);
      rig_.device.write(chain->parts[0].address, all.first(size));
      rig_.device.write_used(0, static_cast<uint16_t>(rig_.device.queue(0).used + written++),
                             chain->head, static_cast<uint32_t>(size));
      all = all.subspan(size);
    }
    rig_.device.publish_used(0, written);
  }

  // Values that break careless code: boundaries, and anything.
  uint32_t any_number() {
    constexpr uint32_t kEdges[] = {0,     1,     11,       12,         13,        63,
                                   64,    4095,  4096,     4097,       32768,     65535,
                                   65536, 65600, 1u << 31, 0xffffffff, 0xfffff000};
    return random_.below(2) == 0 ? kEdges[random_.below(std::size(kEdges))] : random_.next_u32();
  }

  void tell_a_lie() {
    const auto queue = static_cast<uint16_t>(random_.below(2));
    switch (random_.below(8)) {
      case 0:
        rig_.device.complete(queue, any_number(), any_number());
        break;
      case 1:
        rig_.device.complete(queue, random_.below(64), random_.below(5000));
        break;
      case 2:  // the right buffer, a wrong length
        if (const auto chain = take(queue)) rig_.device.complete(queue, chain->head, any_number());
        break;
      case 3:  // twice
        if (const auto chain = take(queue)) {
          rig_.device.complete(queue, chain->head, 100);
          rig_.device.complete(queue, chain->head, 100);
        }
        break;
      case 4:
        rig_.device.write_used_index(queue, static_cast<uint16_t>(random_.next_u32()));
        rig_.device.write_used_index(queue, random_.below(3) == 0
                                                ? static_cast<uint16_t>(any_number())
                                                : rig_.device.queue(queue).used);
        break;
      case 5:  // inside a chain
        if (const auto chain = take(1)) rig_.device.complete(1, chain->parts[0].next, 0);
        break;
      default:
        lie_in_header();
        break;
    }
  }

  void lie_in_header() {
    std::vector<std::byte> all(wire::kNetHeaderBytes + 14 + random_.below(9000));
    random_.fill(all);
    wire::VirtioNetHeader header = wire::VirtioNetHeader::parse(all).value();
    if (random_.below(2) == 0) header.flags &= 3;
    if (random_.below(2) == 0) header.gso_type &= 5;
    if (random_.below(2) == 0) header.csum_offset = 16;
    if (random_.below(2) == 0) header.csum_start = static_cast<uint16_t>(random_.below(10000));
    if (random_.below(3) == 0) header.gso_size = 0;
    header.num_buffers =
        static_cast<uint16_t>(random_.below(3) == 0 ? any_number() : random_.below(4));
    header.emit(all);
    put(all, 1 + random_.below(4));
  }

  // Everything that the driver wrote and must not read again, and the suppression fields. The
  // index of the avail ring is left to the driver: the device itself would be lost without it.
  void scribble() {
    for (const uint16_t index : {uint16_t{0}, uint16_t{1}}) {
      const virtio::QueueLayout& layout = rig_.device.queue(index).layout;
      for (int i = 0; i < 8; ++i) {
        layout.descriptors.store<uint64_t>(8 * scribbler_.below(2 * layout.size),
                                           scribbler_.next_u64());
        layout.driver_area.store<uint16_t>(wire::avail_entry(scribbler_.below(layout.size)),
                                           static_cast<uint16_t>(scribbler_.next_u32()));
      }
      layout.device_area.store<uint16_t>(wire::used_avail_event(layout.size),
                                         static_cast<uint16_t>(scribbler_.next_u32()));
      layout.device_area.store<uint16_t>(wire::kUsedFlags,
                                         static_cast<uint16_t>(scribbler_.next_u32()));
    }
  }

  // ---- the word changes under the driver's eyes ----

  [[nodiscard]] bool is_ring(const SharedBytes& word) {
    for (const uint16_t index : {uint16_t{0}, uint16_t{1}}) {
      const SharedBytes& ring = rig_.device.queue(index).layout.device_area;
      if (word.address() - ring.address() < ring.size()) return true;
    }
    return false;
  }

#ifdef NOBOUNCE_SHARED_LOAD_HOOK
  void arm_hook() {
    if (habits_.flip_per_mille > 0) set_shared_load_hook(&HostileRun::flip, this);
  }
  static void disarm_hook() { set_shared_load_hook(nullptr, nullptr); }
  static void flip(void* context, std::byte* address, size_t size) {
    auto& run = *static_cast<HostileRun*>(context);
    if (run.random_.below(1000) >= run.habits_.flip_per_mille) return;
    if (!run.habits_.flips_rings && run.is_ring(SharedMemoryAccess::make(address, size))) return;
    const size_t at = run.random_.below(static_cast<uint32_t>(size));
    address[at] ^= static_cast<std::byte>(1 + run.random_.below(255));
  }
#else
  void arm_hook() {}
  static void disarm_hook() {}
#endif

  SeededRandom random_;
  SeededRandom scribbler_{1};  // apart: scribbling must not change anything else
  Habits habits_;
  VirtioRig rig_;
  std::map<uint16_t, std::deque<FakeChain>> chains_;
  std::deque<PacketPtr> held_;
  uint64_t digest_ = 14695981039346656037ULL;
};

class Hostile : public testing::Test {
 protected:
  Hostile() { set_log_level(LogLevel::quiet); }
  ~Hostile() override { set_log_level(LogLevel::warning); }
};

// One life of a device: until it is broken, and a while longer, or to the end.
void live(uint64_t seed, const Habits& habits, int steps, std::map<std::string, uint64_t>& sums) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  HostileRun run(seed, habits);
  int after = 0;
  for (int i = 0; i < steps && after < 10; ++i) {
    run.step();
    if (run.is_broken()) ++after;
  }
  std::map<std::string, uint64_t> mine;
  run.collect(mine);
  uint64_t causes = 0;
  for (const auto& [name, value] : mine) {
    if (name.starts_with("broken.")) causes += value;
    sums[name] += value;
  }
  EXPECT_EQ(causes > 0, run.is_broken()) << "each latched cause is counted";
}

TEST_F(Hostile, a_few_thousand_steps_meet_every_cause) {
  constexpr const char* kCauses[] = {
      "broken.used_index",       "broken.id_range",       "broken.id_not_head",
      "broken.id_not_posted",    "broken.length",         "q0.rx_drop.runt",
      "q0.rx_drop.buffer_count", "q0.rx_drop.incomplete", "q0.rx_drop.gso_type",
      "q0.rx_drop.gso_size",     "q0.rx_drop.checksum"};
  std::map<std::string, uint64_t> sums;
  const auto all_met = [&] {
    return std::ranges::all_of(kCauses, [&](const char* cause) { return sums[cause] > 0; });
  };
  // 120 lives; without the load hook the words change less often and the rarest cause takes longer.
  for (uint64_t seed = 1; seed <= 120 || (seed <= 1500 && !all_met()); ++seed) {
    live(seed, {.lie_percent = 5 + static_cast<unsigned>(seed % 40)}, 200, sums);
    if (HasFatalFailure()) return;
  }
  for (const char* cause : kCauses) {
    EXPECT_GT(sums[cause], 0U) << cause << " was never met (TM-84)";
  }
  EXPECT_GT(sums["q0.rx_packets"], 100U);
  EXPECT_GT(sums["q0.tx_completed"], 100U);
}

// C018: the words flip all the time, nothing else is wrong.
TEST_F(Hostile, C018_words_that_change_between_any_two_loads) {
  std::map<std::string, uint64_t> sums;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    live(seed, {.lie_percent = 0, .flip_per_mille = 300, .flips_rings = false}, 200, sums);
  }
  EXPECT_GT(sums["q0.rx_packets"], 100U);
}

// TM-85: a device that scribbles over what it does not own any more changes nothing.
TEST_F(Hostile, TM85_scribbling_changes_nothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::array<uint64_t, 2> digests{};
    for (const bool scribbles : {false, true}) {
      HostileRun run(seed, {.lie_percent = 0, .flip_per_mille = 0, .scribbles = scribbles});
      for (int i = 0; i < 300; ++i) run.step();
      EXPECT_FALSE(run.is_broken());
      digests[scribbles ? 1 : 0] = run.digest();
    }
    EXPECT_EQ(digests[0], digests[1]);
  }
}

TEST_F(Hostile, for_as_long_as_asked) {
  const char* asked = std::getenv("NOBOUNCE_HOSTILE_SECONDS");
  const uint64_t seconds = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 3;
  MonotonicClock clock;
  const uint64_t end_ns = clock.now_ns() + seconds * kNsPerSecond;
  std::map<std::string, uint64_t> sums;
  uint64_t lives = 0;
  for (uint64_t seed = 1000; clock.now_ns() < end_ns; ++seed, ++lives) {
    live(seed,
         {.lie_percent = static_cast<unsigned>(seed % 60),
          .flip_per_mille = static_cast<unsigned>(seed % 7)},
         500, sums);
    if (HasFailure()) return;
  }
  for (const auto& [name, value] : sums) {
    if (value > 0 && (name.starts_with("broken.") || name.find("drop") != std::string::npos)) {
      RecordProperty(name, std::to_string(value));
    }
  }
  std::printf("%llu devices in %llu s\n", static_cast<unsigned long long>(lives),
              static_cast<unsigned long long>(seconds));
}

}  // namespace
}  // namespace nobounce::test
