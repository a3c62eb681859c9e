#include "netdev/gso.hpp"

#include <algorithm>

#include "base/checksum.hpp"
#include "wire/ethernet.hpp"
#include "wire/ipv4.hpp"
#include "wire/tcp.hpp"

namespace nobounce {
namespace {

constexpr uint8_t kProtocolTcp = 6;
constexpr size_t kIpv6HeaderSize = 40;

// Where the transport header begins behind an IPv4 or (extension-free) IPv6 header that carries
// TCP; 0 when it does not.
size_t transport_offset(Bytes head, Gso gso) noexcept {
  const auto ethernet = wire::EthernetView::parse(head);
  if (!ethernet) return 0;
  const Bytes network = head.subspan(wire::kEthernetHeaderSize);
  if (gso == Gso::tcp4) {
    if (ethernet->ether_type() != wire::kEtherTypeIpv4) return 0;
    // Length and checksum are ours to fill, as with an ICMP quote.
    if (network.size() < wire::kIpv4HeaderSize) return 0;
    const uint8_t first = load_be<uint8_t>(network, 0);
    const size_t size = size_t{first & 0x0fu} * 4;
    const bool is_whole = (first >> 4) == 4 && size >= wire::kIpv4HeaderSize &&
                          (load_be<uint16_t>(network, 6) & 0x3fff) == 0;
    if (!is_whole || load_be<uint8_t>(network, 9) != kProtocolTcp) return 0;
    return wire::kEthernetHeaderSize + size;
  }
  if (ethernet->ether_type() != wire::kEtherTypeIpv6 || network.size() < kIpv6HeaderSize) return 0;
  const bool is_tcp =
      (load_be<uint8_t>(network, 0) >> 4) == 6 && load_be<uint8_t>(network, 6) == kProtocolTcp;
  return is_tcp ? wire::kEthernetHeaderSize + kIpv6HeaderSize : 0;
}

// Pseudo header sum from the addresses in place.
uint64_t pseudo_sum(Bytes head, size_t network, bool is_v6, size_t length) noexcept {
  const Bytes addresses = is_v6 ? head.subspan(network + 8, 32) : head.subspan(network + 12, 8);
  return checksum_add(0, addresses) + kProtocolTcp + (length >> 16) + (length & 0xffff);
}

}  // namespace

bool keep_headers_only(Packet& packet) noexcept {
  if (packet.gso == Gso::none) return true;
  const Bytes head = packet.head();
  const size_t transport = transport_offset(head, packet.gso);
  if (transport == 0 || transport >= head.size()) return false;
  const auto tcp = wire::TcpView::parse(head.subspan(transport));
  if (!tcp) return false;
  packet.give_back_head(transport + tcp->header_size());
  return true;
}

std::expected<GsoSplitter, GsoCause> GsoSplitter::open(PacketPtr packet) noexcept {
  NB_ASSERT(packet != nullptr);
  if (packet->gso == Gso::none || packet->gso_size == 0) return std::unexpected(GsoCause::not_gso);
  if (packet->checksum != Checksum::partial) return std::unexpected(GsoCause::not_partial);
  const Bytes head = packet->head();
  const size_t transport = transport_offset(head, packet->gso);
  if (transport == 0 || transport >= head.size() || packet->csum_start != transport ||
      packet->csum_offset != wire::kTcpChecksumOffset) {
    return std::unexpected(GsoCause::bad_headers);
  }
  const auto tcp = wire::TcpView::parse(head.subspan(transport));
  // All of the payload is in frags: the head ends with the TCP header.
  if (!tcp || transport + tcp->header_size() != head.size()) {
    return std::unexpected(GsoCause::bad_headers);
  }
  GsoSplitter splitter;
  std::copy(head.begin(), head.end(), splitter.head_.begin());
  splitter.head_size_ = head.size();
  splitter.network_ = wire::kEthernetHeaderSize;
  splitter.transport_ = transport;
  splitter.segment_size_ = packet->gso_size;
  splitter.sequence_ = tcp->sequence();
  splitter.is_v6_ = packet->gso == Gso::tcp6;
  if (!splitter.is_v6_) {
    splitter.identification_ = load_be<uint16_t>(head, splitter.network_ + 4);
  }
  packet->pull(head.size());  // every segment gets the whole headroom and a head of its own
  packet->gso = Gso::none;
  packet->gso_size = 0;
  splitter.rest_ = std::move(packet);
  return splitter;
}

PacketPtr GsoSplitter::next() noexcept {
  if (rest_ == nullptr) return {};
  PacketPtr segment;
  if (rest_->payload_size() > segment_size_) {
    PacketPtr rest = rest_->pool().split(*rest_, segment_size_);
    if (rest == nullptr) return {};
    segment = std::exchange(rest_, std::move(rest));
    rest_->queue = segment->queue;
  } else {
    segment = std::move(rest_);
  }
  write_head(*segment, !started_, rest_ == nullptr);
  started_ = true;
  sequence_ += static_cast<uint32_t>(segment->payload_size());
  ++identification_;
  return segment;
}

void GsoSplitter::write_head(Packet& segment, bool is_first, bool is_last) noexcept {
  const size_t payload = segment.payload_size();
  const MutableBytes head = segment.push(head_size_);
  std::copy_n(head_.begin(), head_size_, head.begin());

  const MutableBytes network = head.subspan(network_);
  if (is_v6_) {
    store_be<uint16_t>(network, 4,
                       static_cast<uint16_t>(head_size_ - network_ - kIpv6HeaderSize + payload));
  } else {
    store_be<uint16_t>(network, 2, static_cast<uint16_t>(head_size_ - network_ + payload));
    store_be<uint16_t>(network, 4, identification_);
    store_be<uint16_t>(network, 10, 0);
    const Bytes header = network.first(transport_ - network_);
    store_be<uint16_t>(network, 10, checksum_finish(checksum_add(0, header)));
  }

  const MutableBytes tcp = head.subspan(transport_);
  store_be<uint32_t>(tcp, 4, sequence_);
  uint8_t flags = load_be<uint8_t>(tcp, 13);
  if (!is_first) flags &= static_cast<uint8_t>(~wire::kTcpCwr);
  if (!is_last) flags &= static_cast<uint8_t>(~(wire::kTcpFin | wire::kTcpPsh));
  store_be<uint8_t>(tcp, 13, flags);
  const uint64_t sum = pseudo_sum(head, network_, is_v6_, tcp.size() + payload);
  store_be<uint16_t>(tcp, wire::kTcpChecksumOffset, checksum_fold(sum));

  segment.checksum = Checksum::partial;
  segment.csum_start = static_cast<uint16_t>(transport_);
  segment.csum_offset = wire::kTcpChecksumOffset;
  segment.gso = Gso::none;
  segment.gso_size = 0;
  segment.gso_segments = 1;
}

}  // namespace nobounce
