#include "netdev/output.hpp"

#include "netdev/checksum.hpp"

namespace nobounce {

Output::Output(ShardContext& context, NetDevice& device, const std::string& name)
    : device_(device),
      sent_(context.counters.counter(name + ".tx.frames")),
      bursts_(context.counters.counter(name + ".tx.bursts")),
      held_(context.counters.counter(name + ".tx.held_back")),
      segmented_(context.counters.counter(name + ".tx.software_gso")),
      fragmented_(context.counters.counter(name + ".tx.fragmented")),
      checksummed_(context.counters.counter(name + ".tx.software_checksum")),
      cut_waits_(context.counters.counter(name + ".tx.gso_pool_waits")),
      dropped_bad_gso_(context.counters.counter(name + ".drop.bad_gso")),
      dropped_checksum_(context.counters.counter(name + ".drop.bad_partial_checksum")),
      dropped_broken_(context.counters.counter(name + ".drop.device_broken")) {}

bool Output::device_takes(const Packet& frame) const noexcept {
  const DeviceFeatures features = device_.features();
  return (frame.gso == Gso::tcp4 && features.tso4) || (frame.gso == Gso::tcp6 && features.tso6);
}

void Output::push(PacketPtr frame) noexcept {
  NB_ASSERT(!full());
  frame->queue = 0;
  if (frame->gso == Gso::none || device_takes(*frame)) {
    enqueue(std::move(frame));
  } else if (frame->gso == Gso::fragments4) {
    fragmented_.add();
    fragmenter_ = Fragmenter(std::move(frame));
    cut();
  } else {
    auto splitter = GsoSplitter::open(std::move(frame));
    if (!splitter) {
      dropped_bad_gso_.add();
      return;
    }
    segmented_.add();
    splitter_ = std::move(*splitter);
    cut();
  }
  if (full()) transmit();
}

void Output::enqueue(PacketPtr frame) noexcept {
  if (frame->checksum == Checksum::partial && !device_.features().tx_checksum) {
    if (!complete_checksum(*frame)) {
      dropped_checksum_.add();
      return;
    }
    checksummed_.add();
  }
  burst_.push(std::move(frame));
}

// Segments or fragments into the burst while there is room.
void Output::cut() noexcept {
  while (is_cutting() && !burst_.full()) {
    PacketPtr piece = splitter_.done() ? fragmenter_.next() : splitter_.next();
    if (piece == nullptr) {
      cut_waits_.add();
      return;
    }
    enqueue(std::move(piece));
  }
}

void Output::transmit() noexcept {
  if (device_.is_broken()) {
    dropped_broken_.add(burst_.size() + (is_cutting() ? 1 : 0));
    burst_.clear();
    splitter_ = {};
    fragmenter_ = {};
    return;
  }
  while (!empty()) {
    cut();
    const size_t left = device_.transmit(0, burst_);
    sent_.add(left);
    if (left > 0) bursts_.add();
    if (!burst_.empty()) {
      held_.add();
      return;
    }
    if (left == 0) return;  // nothing could be cut: the pool is empty
  }
}

}  // namespace nobounce
