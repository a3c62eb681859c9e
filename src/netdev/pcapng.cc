#include "netdev/pcapng.hpp"

#include <algorithm>
#include <array>

namespace nobounce::pcapng {
namespace {

constexpr uint32_t kSectionHeader = 0x0a0d0d0a;
constexpr uint32_t kInterfaceDescription = 1;
constexpr uint32_t kInterfaceStatistics = 5;
constexpr uint32_t kEnhancedPacket = 6;
constexpr uint16_t kLinkEthernet = 1;

class Writer {
 public:
  explicit Writer(MutableBytes to) noexcept : to_(to) {}
  template <class T>
  void put(T value) noexcept {
    store_le<T>(to_, at_, value);
    at_ += sizeof(T);
  }
  void put_time(uint64_t time_ns) noexcept {
    put<uint32_t>(static_cast<uint32_t>(time_ns >> 32));
    put<uint32_t>(static_cast<uint32_t>(time_ns));
  }
  MutableBytes padded(size_t size) noexcept {
    const MutableBytes body = to_.subspan(at_, round_up(size, 4));
    std::ranges::fill(body.subspan(size), std::byte{0});
    at_ += body.size();
    return body.first(size);
  }
  void option(uint16_t code, Bytes value) noexcept {
    put<uint16_t>(code);
    put<uint16_t>(static_cast<uint16_t>(value.size()));
    std::ranges::copy(value, padded(value.size()).begin());
  }
  void begin(uint32_t type) noexcept {
    start_ = at_;
    put<uint32_t>(type);
    put<uint32_t>(0);
  }
  // Closes the options' list and the block: its length stands at both ends.
  void end() noexcept {
    put<uint32_t>(0);
    const auto size = static_cast<uint32_t>(at_ + 4 - start_);
    put<uint32_t>(size);
    store_le<uint32_t>(to_, start_ + 4, size);
  }
  [[nodiscard]] size_t at() const noexcept { return at_; }

 private:
  MutableBytes to_;
  size_t at_ = 0;
  size_t start_ = 0;
};

template <class T>
std::array<std::byte, sizeof(T)> bytes_of(T value) noexcept {
  std::array<std::byte, sizeof(T)> bytes;
  store_le<T>(bytes, 0, value);
  return bytes;
}

}  // namespace

size_t write_headers(MutableBytes to, std::string_view application, std::string_view interface,
                     const MacAddress& mac, uint32_t snap_length) noexcept {
  constexpr size_t kTextMax = 128;
  Writer out(to);
  out.begin(kSectionHeader);
  out.put<uint32_t>(0x1a2b3c4d);
  out.put<uint16_t>(1);
  out.put<uint16_t>(0);
  out.put<uint64_t>(~uint64_t{0});  // length of the section: not said
  out.option(4, as_bytes(application.substr(0, kTextMax)));
  out.end();
  out.begin(kInterfaceDescription);
  out.put<uint16_t>(kLinkEthernet);
  out.put<uint16_t>(0);
  out.put<uint32_t>(snap_length);
  out.option(2, as_bytes(interface.substr(0, kTextMax)));
  out.option(6, std::as_bytes(std::span(mac.bytes)));
  out.option(9, bytes_of<uint8_t>(9));  // nanoseconds
  out.end();
  NB_ASSERT(out.at() <= kHeadersSizeMax);
  return out.at();
}

MutableBytes begin_packet(MutableBytes to, size_t captured, const PacketFacts& facts) noexcept {
  Writer out(to);
  out.begin(kEnhancedPacket);
  out.put<uint32_t>(0);
  out.put_time(facts.time_ns);
  out.put<uint32_t>(static_cast<uint32_t>(captured));
  out.put<uint32_t>(facts.original_size);
  const MutableBytes data = out.padded(captured);
  out.option(2, bytes_of<uint32_t>(static_cast<uint32_t>(facts.direction)));
  out.option(6, bytes_of<uint32_t>(facts.queue));
  out.end();
  NB_ASSERT(out.at() == packet_size(captured));
  return data;
}

size_t write_statistics(MutableBytes to, uint64_t time_ns, uint64_t received,
                        uint64_t dropped) noexcept {
  Writer out(to);
  out.begin(kInterfaceStatistics);
  out.put<uint32_t>(0);
  out.put_time(time_ns);
  out.option(4, bytes_of<uint64_t>(received));
  out.option(5, bytes_of<uint64_t>(dropped));
  out.end();
  NB_ASSERT(out.at() <= kStatisticsSize);
  return out.at();
}

}  // namespace nobounce::pcapng
