#include "tcp/segment.hpp"

#include <algorithm>

namespace nobounce::tcp {

void Segment::cut_front(uint32_t bytes) noexcept {
  NB_ASSERT(bytes <= payload);
  if (bytes == 0) return;
  seq += bytes;
  payload -= bytes;
  payload == 0 ? packet->trim(0) : packet->pull_frags(bytes);
}

void Segment::cut_back_to(uint32_t bytes) noexcept {
  NB_ASSERT(bytes <= payload);
  if (bytes == payload) return;
  payload = bytes;
  packet->trim(bytes);
}

std::expected<Segment, SegmentCause> parse_segment(PacketPtr packet, const ip::Ingress& ingress,
                                                   PrivateArena& arena) noexcept {
  const auto view = wire::TcpView::parse(packet->head());
  if (!view) return std::unexpected(SegmentCause::bad_header);
  if (!ip::verify_transport_checksum(*packet, ingress))
    return std::unexpected(SegmentCause::bad_checksum);

  Segment segment;
  segment.source_port = view->source_port();
  segment.destination_port = view->destination_port();
  segment.seq = Seq(view->sequence());
  segment.ack = Seq(view->acknowledgement());
  segment.flags = view->flags();
  segment.window = view->window();
  segment.options = view->options();
  const size_t header_bytes = view->header_size();

  if (!payload_to_frags(*packet, header_bytes, arena)) {
    return std::unexpected(SegmentCause::no_memory);
  }
  packet->pull(header_bytes);
  segment.payload = static_cast<uint32_t>(packet->payload_size());
  segment.wire_segments = std::max<uint16_t>(packet->gso_segments, 1);
  segment.packet = std::move(packet);
  return segment;
}

}  // namespace nobounce::tcp
