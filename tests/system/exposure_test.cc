// What the device can see of the guest: the shared region, looked at from a mapping of its own while
// streams run, contains no private canary and no address of private memory (C069, TM-57..TM-63).
//
// Two looks at addresses. While streams run: against the few ranges that hold our own objects.
// When they rest: against every mapping the process has, whichever library or thread it belongs to.
// What may lie in the region by right and could still look like an address is left out by its place
// or cannot occur; nothing is left to chance being kind:
//   payload         letters only: an address in user space has two zero bytes, no letter is one
//   headers         any value may be in a sequence number or a timestamp: a word that overlaps a whole
//                   Ethernet, ARP, IPv4 (its checksum right), TCP, UDP or ICMP header at a place where
//                   frames begin is that header's, each of whose fields is the wire's
//   descriptors     an IOVA, or {length, flags, next}; used elements; both below any mapping
//   rings           16-bit ids below the queue size, but for one: the index at which the driver wants
//                   to be told counts through all values. Its word is known by its place
//   left-overs      behind a shorter header the tail of a longer one may remain. It goes when the slot
//                   is used again: what counts is an address that is there after two streams in a row,
//                   each of which goes many times round all slots. A pointer in a structure, a free
//                   list or padding that is copied along comes back to its place; a number on the wire
//                   does not
// A sanitizer's shadow is no memory to have a pointer into, and is left out.
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "backend_process.hpp"
#include "virtio/split_queue.hpp"
#include "wire/arp.hpp"
#include "wire/ethernet.hpp"
#include "wire/icmp.hpp"
#include "wire/ipv4.hpp"
#include "wire/tcp.hpp"
#include "wire/udp.hpp"
#include "wire/virtio_net_hdr.hpp"
#include "wire/vring.hpp"

namespace nobounce::test {
namespace {

constexpr uint64_t kCanary = 0x5ec2e7c0ffee5ec2;  // no letters, no address

// Paints every free page of the arena, as private data that went before would have.
void paint(PrivateArena& arena) {
  std::vector<Page*> pages;
  while (Page* page = arena.alloc(0)) {
    const MutableBytes bytes = private_bytes(*page, 0, kPageSize);
    for (size_t at = 0; at < kPageSize; at += 8) store_le<uint64_t>(bytes, at, kCanary);
    pages.push_back(page);
  }
  for (Page* page : pages) page_put(*page);
}

// Private memory that shared memory could be taken to point into: the arena's pages, the records of
// all pages, the shard with its packets and sockets. Headers on the wire are as good as random words;
// against these few ranges, and with the alignment that objects have, a chance hit is one in millions
// of words.
using Ranges = std::map<uint64_t, uint64_t>;  // end -> begin

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

Ranges private_ranges(StackCore& core) {
  Ranges ranges;
  const auto add = [&ranges](uint64_t begin, uint64_t bytes) { ranges[begin + bytes] = begin; };
  // Somewhere around this page the arena lies.
  Page* some = core.arena->alloc(0);
  const uint64_t bytes = core.arena->bytes();
  const CpuAddr low = static_cast<CpuAddr>(static_cast<uint64_t>(page_address(*some)) - bytes);
  page_put(*some);
  add(static_cast<uint64_t>(low), 2 * bytes);
  const auto records = [&add](CpuAddr first, uint64_t of_bytes) {
    add(number(PageSpace::instance().page_of(first)), of_bytes / kPageSize * sizeof(Page));
  };
  records(core.region->cpu_address(), core.region->size());
  add(number(core.shard.get()), sizeof(Shard));
  PacketPool& packets = core.shard->context().packets;
  add(number(&packets), sizeof packets);
  add(number(core.swiotlb.get()), sizeof(Swiotlb));
  add(number(core.counters.get()), sizeof(CounterRegistry));
  return ranges;
}

struct Exposure {
  size_t canaries = 0;
  size_t addresses = 0;
};

Exposure look(const uint64_t* words, size_t count, const Ranges& ranges) {
  Exposure seen;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = *static_cast<const volatile uint64_t*>(words + i);
    if (word == kCanary) ++seen.canaries;
    if (word % 8 != 0) continue;
    const auto range = ranges.upper_bound(word);
    if (range != ranges.end() && range->second <= word) ++seen.addresses;
  }
  return seen;
}

// ---- every mapping ----------------------------------------------------------------------------

// Whether a program under this build's sanitizer can have memory there (the layouts on x86-64).
bool is_program_memory(uint64_t begin) {
#if defined(__SANITIZE_ADDRESS__)
  return begin < 0x7fff8000 || begin >= 0x10007fff8000;
#elif defined(__SANITIZE_THREAD__)
  return (begin >= 0x550000000000 && begin < 0x568000000000) ||
         (begin >= 0x7b0000000000 && begin < 0x7c0000000000) || begin >= 0x7e8000000000;
#else
  (void)begin;
  return true;
#endif
}

// All memory of this process but what `shared` names (begin -> end), and what nobody may touch.
Ranges all_mappings(const std::map<uint64_t, uint64_t>& shared) {
  Ranges ranges;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char access[5] = {};
    if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, access) != 3) continue;
    if (std::string_view(access).substr(0, 3) == "---" || !is_program_memory(begin)) continue;
    if (line.ends_with("[vsyscall]")) continue;  // the same page everywhere
    const auto in = shared.upper_bound(begin);
    if (in != shared.begin() && begin < std::prev(in)->second) continue;
    ranges[end] = begin;
  }
  return ranges;
}

bool holds(const Ranges& ranges, uint64_t address) {
  const auto range = ranges.upper_bound(address);
  return range != ranges.end() && range->second <= address;
}

// Bytes of the frame that begins at `frame` with the device's header, up to the end of its headers;
// 0 when there is none.
size_t headers_at(Bytes frame) {
  constexpr size_t kLink = wire::kNetHeaderBytes;
  constexpr size_t kNetwork = kLink + wire::kEthernetHeaderSize;
  if (frame.size() < kNetwork) return 0;
  const auto ethernet = wire::EthernetView::parse(frame.subspan(kLink));
  if (!ethernet) return 0;
  const Bytes rest = frame.subspan(kNetwork);
  if (ethernet->ether_type() == wire::kEtherTypeArp) {
    return wire::ArpView::parse(rest) ? kNetwork + wire::kArpSize : 0;
  }
  if (ethernet->ether_type() != wire::kEtherTypeIpv4) return 0;
  const auto ipv4 = wire::Ipv4View::parse(rest, 65535);
  if (!ipv4) return 0;
  const size_t transport = kNetwork + ipv4->header_size();
  switch (ipv4->protocol()) {
    case 1:
      return transport + wire::kIcmpHeaderSize;
    case 17:
      return transport + wire::kUdpHeaderSize;
    case 6: {
      const auto tcp = wire::TcpView::parse(frame.subspan(transport));
      return tcp ? transport + tcp->header_size() : 0;
    }
    default:
      return 0;
  }
}

constexpr size_t kHeadersMax = wire::kNetHeaderBytes + wire::kEthernetHeaderSize + 60 + 60;

// What of a region is known without looking.
struct Layout {
  size_t pool_bytes = 0;
  std::set<size_t> event_words;  // offsets
  size_t receive_descriptors = 0;

  // Frames begin at slots of the pool, and behind it at header slots.
  [[nodiscard]] size_t frame_step(size_t offset) const {
    return offset < pool_bytes ? size_t{kSlotSize} : 64;
  }
};

Layout layout_of(const StackOptions& options, const SharedRegion& region) {
  Layout layout;
  layout.pool_bytes = options.pool_bytes;
  // The same carving once more.
  auto again = SharedRegion::create({.name = "layout", .bytes = region.size()}).value();
  (void)again->carve(options.pool_bytes, kSlotSet * kSlotSize);
  for (uint16_t index = 0; index < 2; ++index) {
    const auto queue = virtio::carve_queue(*again, index, options.queue_size).value();
    const uint64_t avail = again->iova_of(queue.driver_area) - again->iova_base();
    layout.event_words.insert((avail + wire::avail_used_event(options.queue_size)) / 8 * 8);
    if (index == 0) {
      layout.receive_descriptors = again->iova_of(queue.descriptors) - again->iova_base();
    }
  }
  return layout;
}

bool is_header(Bytes region, const Layout& layout, size_t offset) {
  const size_t step = layout.frame_step(offset);
  for (size_t begin = offset / step * step; offset - begin < kHeadersMax; begin -= step) {
    if (begin + headers_at(region.subspan(begin, std::min(kHeadersMax, region.size() - begin))) >
        offset) {
      return true;
    }
    if (begin < step) break;
  }
  return false;
}

// Offsets at which a private address lies that nothing explains.
std::set<size_t> private_addresses(Bytes region, const Layout& layout, const Ranges& ranges) {
  std::set<size_t> found;
  for (size_t at = 0; at + 8 <= region.size(); at += 8) {
    const auto word = load_le<uint64_t>(region, at);
    if ((word >> 48) != 0 || !holds(ranges, word)) continue;
    if (!layout.event_words.contains(at) && !is_header(region, layout, at)) found.insert(at);
  }
  return found;
}

// The region when nothing moves in it any more.
std::vector<std::byte> still_region(const void* view, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(view);
  std::vector<std::byte> before(from, from + bytes);
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(50ms);
    std::vector<std::byte> after(from, from + bytes);
    if (after == before) return after;
    before = std::move(after);
  }
  ADD_FAILURE() << "the region never rests";
  return before;
}

struct ExposureTest : SystemTest, testing::WithParamInterface<Mode> {
  // Out and back through the far end; `meanwhile` runs beside it.
  static void stream(Stack& stack, size_t bytes, std::move_only_function<void()> meanwhile) {
    TcpSocket socket = connect(stack, kEcho);
    std::thread sender([&socket, bytes] {
      std::vector<std::byte> chunk(60'001);
      for (size_t sent = 0; sent < bytes;) {
        const size_t part = std::min(chunk.size(), bytes - sent);
        fill_letters(MutableBytes(chunk).first(part), 9, sent);
        ASSERT_EQ(socket.send(Bytes(chunk).first(part)), part);
        sent += part;
      }
      EXPECT_TRUE(socket.shutdown(Shutdown::send).has_value());
    });
    std::thread receiver([&socket] {
      std::vector<std::byte> buffer(1 << 16);
      for (;;) {
        const auto taken = socket.recv(buffer);
        ASSERT_TRUE(taken.has_value());
        if (*taken == 0) break;
      }
    });
    meanwhile();
    sender.join();
    receiver.join();
  }
};

TEST_P(ExposureTest, C069_nothing_private_in_the_shared_region) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  StackCore& core = StackSetUp::core(*stack);
  const size_t bytes = core.region->size();
  void* view = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, core.region->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  const auto* words = static_cast<const uint64_t*>(view);
  paint(*core.arena);
  const Ranges ranges = private_ranges(core);
  stream(*stack, 24 << 20, [&] {
    for (int i = 0; i < 6; ++i) {
      const Exposure seen = look(words, bytes / 8, ranges);
      EXPECT_EQ(seen.canaries, 0u) << "look " << i;
      EXPECT_EQ(seen.addresses, 0u) << "look " << i;
      std::this_thread::sleep_for(20ms);
    }
  });
  const Exposure seen = look(words, bytes / 8, ranges);
  EXPECT_EQ(seen.canaries, 0u);
  EXPECT_EQ(seen.addresses, 0u);
  munmap(view, bytes);
}

TEST_P(ExposureTest, TM57_no_address_of_any_mapping_in_the_shared_region) {
  auto stack = open(GetParam());
  ASSERT_NE(stack, nullptr);
  StackCore& core = StackSetUp::core(*stack);
  const size_t bytes = core.region->size();
  void* view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, core.region->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  const Layout layout = layout_of(core.options, *core.region);
  const auto begin = static_cast<uint64_t>(core.region->cpu_address());
  const std::map<uint64_t, uint64_t> shared{{begin, begin + bytes},
                                            {number(view), number(view) + bytes}};
  const auto first_buffer = load_le<uint64_t>(
      still_region(view, bytes), layout.receive_descriptors + wire::kDescriptorAddress);
  EXPECT_LT(first_buffer - core.region->iova_base(), layout.pool_bytes) << "not the layout we know";
  EXPECT_NE(first_buffer, 0u);
  const auto look_still = [&] {
    const auto region = still_region(view, bytes);
    return private_addresses(region, layout, all_mappings(shared));
  };

  stream(*stack, 16 << 20, [] {});
  const std::set<size_t> first = look_still();
  stream(*stack, 16 << 20, [] {});
  for (const size_t offset : look_still()) {
    EXPECT_FALSE(first.contains(offset)) << "a private address at " << offset << " of " << bytes;
  }

  // It would have been seen: in the pool's last page, and behind everything.
  auto* words = static_cast<uint64_t*>(view);
  const auto on_heap = std::make_unique<int>();
  const size_t in_pool = layout.pool_bytes - kPageSize + 128, behind = bytes - 8;
  words[in_pool / 8] = number(on_heap.get());
  words[behind / 8] = number(&on_heap);
  const std::set<size_t> planted = look_still();
  EXPECT_TRUE(planted.contains(in_pool));
  EXPECT_TRUE(planted.contains(behind));
  munmap(view, bytes);
}

// The looking itself works: what is planted is found.
TEST(Exposure, planted_secrets_are_found) {
  std::vector<uint64_t> words(64, 0x4142434445464748);
  words[10] = kCanary;
  words[20] = number(&words[7]);
  const Ranges ranges{{number(words.data() + words.size()), number(words.data())}};
  const Exposure seen = look(words.data(), words.size(), ranges);
  EXPECT_EQ(seen.canaries, 1u);
  EXPECT_EQ(seen.addresses, 1u);
}

class ExposureOfMappings : public testing::Test {
 protected:
  // A frame as TCP sends it whose timestamps are an address, at the start of a pool slot.
  static std::vector<std::byte> frame(uint64_t address) {
    std::vector<std::byte> bytes(kSlotSize, std::byte{'L'});
    const MutableBytes at(bytes);
    std::ranges::fill(at.first(wire::kNetHeaderBytes), std::byte{});
    wire::EthernetHeader ethernet;
    ethernet.ether_type = wire::kEtherTypeIpv4;
    ethernet.emit(at.subspan(12));
    wire::Ipv4Header ipv4;
    ipv4.total_length = 20 + 32;
    ipv4.protocol = 6;
    ipv4.source = IpAddress::v4(10, 77, 0, 2);
    ipv4.destination = IpAddress::v4(10, 77, 0, 1);
    ipv4.emit(at.subspan(26));
    wire::TcpHeader tcp;
    tcp.flags = wire::kTcpAck;
    tcp.options.timestamps = {1, 1};
    tcp.emit(at.subspan(46));
    store_le<uint64_t>(at, kTimestamps, address);
    return bytes;
  }
  [[nodiscard]] std::set<size_t> look_at(Bytes bytes) const {
    return private_addresses(bytes, {.pool_bytes = 1 << 20, .event_words = {}}, all_mappings({}));
  }
  static constexpr size_t kTimestamps = 72;  // their last six bytes, and two behind the header
};

TEST_F(ExposureOfMappings, planted_pointers_of_every_kind_are_found) {
  static int in_program = 0;
  thread_local int in_thread = 0;
  int on_stack = 0;
  const auto on_heap = std::make_unique<int>();
  const auto large = std::make_unique<std::array<std::byte, 4 << 20>>();  // a mapping of its own
  const std::vector<uint64_t> planted = {
      number(on_heap.get()),     number(large->data() + 1000), number(&on_stack),
      number(&in_program),       number(&in_thread),           number(stdout),  // of the C library
      number(on_heap.get()) + 1,  // into the middle of something
  };
  std::vector<std::byte> bytes(1 << 16, std::byte{'L'});
  std::set<size_t> expected;
  for (size_t i = 0; i < planted.size(); ++i) {
    const size_t at = 8 + i * 4104;
    store_le<uint64_t>(MutableBytes(bytes), at, planted[i]);
    expected.insert(at);
  }
  EXPECT_EQ(look_at(bytes), expected);
}

TEST_F(ExposureOfMappings, letters_and_small_numbers_are_no_addresses) {
  std::vector<std::byte> bytes(1 << 16);
  fill_letters(MutableBytes(bytes).first(1 << 15), 3, 0);
  for (size_t at = 1 << 15; at < bytes.size(); at += 8) {
    store_le<uint64_t>(MutableBytes(bytes), at, (uint64_t{3} << 32) + at);
  }
  EXPECT_TRUE(look_at(bytes).empty());
}

TEST_F(ExposureOfMappings, a_header_explains_its_own_bytes_and_no_more) {
  const int on_stack = 0;
  const uint64_t address = number(&on_stack);
  auto bytes = frame(address);
  EXPECT_TRUE(look_at(bytes).empty()) << "timestamps that look like an address";
  store_le<uint64_t>(MutableBytes(bytes), kTimestamps + 8, address);  // right behind the header
  EXPECT_EQ(look_at(bytes), std::set<size_t>{kTimestamps + 8});
  bytes = frame(address);
  bytes[30] ^= std::byte{1};  // no frame: the IPv4 checksum is wrong
  EXPECT_EQ(look_at(bytes), std::set<size_t>{kTimestamps});
}

INSTANTIATE_TEST_SUITE_P(Modes, ExposureTest, testing::Values(Mode::nocopy, Mode::bounce),
                         mode_name);

}  // namespace
}  // namespace nobounce::test
