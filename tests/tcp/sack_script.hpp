// A script whose peer agreed to SACK, with a round trip of its own and segments as the unit: segment 0
// is the first one of data.
#pragma once

#include <vector>

#include "tcp/script.hpp"

namespace nobounce::test {

struct SackOptions {
  uint64_t rtt_ns = 20 * kMilli;
  uint16_t mss = 1460;  // of what the peer's SYN says: with timestamps 12 bytes less are sent
  bool timestamps = false;
  uint16_t window = 0xffff;
  uint8_t window_scale = 7;
  size_t packets = 4096;
};

class SackScript : public Script {
 public:
  explicit SackScript(const SackOptions& sack = {})
      : Script(script_options(sack)),
        mss(sack.mss - (sack.timestamps ? 12 : 0)),
        rtt_ns(sack.rtt_ns),
        window(sack.window) {
    listen();
    TcpOptions syn = options.peer_syn;
    if (sack.timestamps) syn.timestamps = {1000, 0};
    send_raw(kTcpSyn, options.peer_isn, 0, {.window = 0xffff, .options = syn});
    const Out syn_ack = out();
    our_isn = syn_ack.header.sequence;
    if (sack.timestamps) echo = syn_ack.header.options.timestamps->value;
    with_timestamps = sack.timestamps;
    advance(rtt_ns);
    ack(0);
    connection = acceptor.connection;
    EXPECT_EQ(state(), "ESTABLISHED");
  }

  struct Block {
    uint32_t first, end;  // segments
  };
  // The peer has all segments before `next`, and `blocks`, in their order.
  void ack(uint32_t next, const std::vector<Block>& blocks = {}) {
    std::vector<TcpSackBlock> bytes;
    for (const Block& block : blocks) bytes.push_back({at(block.first), at(block.end)});
    ack_bytes(1 + next * mss, bytes);
  }
  // `acknowledged` is relative, `blocks` are not.
  void ack_bytes(uint32_t acknowledged, const std::vector<TcpSackBlock>& blocks = {}) {
    In segment;
    segment.window = window;
    for (const TcpSackBlock& block : blocks) {
      segment.options.sack[segment.options.sack_count++] = block;
    }
    if (with_timestamps) segment.options.timestamps = {++peer_timestamp, echo};
    in(kA, 1, acknowledged, segment);
  }
  [[nodiscard]] uint32_t at(uint32_t segment) const { return our_isn + 1 + segment * mss; }
  // Which segments were sent since the last call.
  std::vector<uint32_t> sent() {
    std::vector<uint32_t> list;
    while (!quiet()) {
      const Out o = out();
      if (o.size > 0) list.push_back((seq(o) - 1) / mss);
      if (o.header.options.timestamps) sent_timestamp = o.header.options.timestamps->value;
    }
    return list;
  }
  // Sends `segments` and forgets what was seen of it.
  void start(uint32_t segments) {
    write(size_t{segments} * mss);
    EXPECT_EQ(sent().size(), segments);
  }

  uint32_t mss;
  uint64_t rtt_ns;
  uint16_t window;
  bool with_timestamps = false;
  uint32_t echo = 0;            // TSecr of the peer's segments
  uint32_t sent_timestamp = 0;  // TSval of our last one

 private:
  static ScriptOptions script_options(const SackOptions& sack) {
    ScriptOptions script;
    script.peer_syn.mss = sack.mss;
    script.peer_syn.sack_permitted = true;
    script.peer_syn.window_scale = sack.window_scale;
    script.packets = sack.packets;
    return script;
  }
};

using Segments = std::vector<uint32_t>;

}  // namespace nobounce::test
