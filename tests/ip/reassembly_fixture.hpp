// Fragments that the peer sends, and what is held of them.
#pragma once

#include "ip/ip_fixture.hpp"
#include "ip/reassembly.hpp"

namespace nobounce::ip {

inline constexpr uint64_t kSecond = kNsPerSecond;

// A piece of a datagram: [begin, end) of its transport bytes.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
};

class Fragments : public IpTest {
 protected:
  static ByteVector piece_frame(Bytes datagram, const Piece& piece, uint16_t id = 7,
                                const IpAddress& source = kPeer, Bytes options = {}) {
    wire::Ipv4Header header = ip_header();
    header.source = source;
    header.identification = id;
    header.fragment_offset = static_cast<uint16_t>(piece.begin);
    header.more_fragments = piece.end < datagram.size();
    return from_peer(
        test::ipv4(header, datagram.subspan(piece.begin, piece.end - piece.begin), options));
  }
  void inject_piece(Bytes datagram, const Piece& piece, uint16_t id = 7,
                    const IpAddress& source = kPeer) {
    inject(piece_frame(datagram, piece, id, source));
  }
  static std::vector<Piece> cut(size_t bytes, size_t piece) {
    std::vector<Piece> pieces;
    for (size_t at = 0; at < bytes; at += piece)
      pieces.push_back({at, std::min(at + piece, bytes)});
    return pieces;
  }
  uint64_t counted(const char* name) { return end.count(std::string("ip.reassembly.") + name); }
  size_t pages_held() const { return end.arena->bytes() / kPageSize - end.arena->pages_free(); }
  void expect_nothing_held() const {
    EXPECT_EQ(pages_held(), 0U);
    EXPECT_EQ(end.packets.in_use(), 0U);
    EXPECT_EQ(end.timers.armed(), 0U);
  }
};

}  // namespace nobounce::ip
