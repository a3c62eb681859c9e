#include "cli/kernel_pair.hpp"

#include <unistd.h>

#include "cli/veth.hpp"

namespace nobounce::cli {

Result<std::unique_ptr<KernelPair>> KernelPair::open(uint16_t mtu) {
  if (::access("/dev/net/tun", R_OK | W_OK) != 0) {
    return fail_errno("use the kernel's TCP: open /dev/net/tun", "this part needs root");
  }
  auto far = KernelSide::start();
  if (!far) return std::unexpected(far.error());
  auto client = KernelSide::start();
  if (!client) return std::unexpected(client.error());
  Result<void> done;
  (*far)->run([&] {
    done = make_veth({.here = kVeth, .there = kVeth, .netns = (*client)->netns(), .mtu = mtu});
  });
  if (done) done = (*far)->set_up(kVeth, kVethAddress);
  if (done) done = (*client)->set_up(kVeth, kClientAddress);
  if (done) done = (*far)->serve();
  if (!done) return std::unexpected(done.error());
  return std::unique_ptr<KernelPair>(new KernelPair(std::move(*far), std::move(*client)));
}

Result<Sample> KernelPair::run(KernelStream& stream, Direction direction,
                               std::chrono::nanoseconds time) {
  Result<KernelStreamResult> result;
  client_->run([&] {
    result =
        stream.run(kVethAddress,
                   direction == Direction::transmit ? PerfJob::transmit : PerfJob::receive, time);
  });
  if (!result) return std::unexpected(result.error());
  control_ = result->congestion_control;
  return Sample{
      .bytes = result->bytes, .seconds = result->seconds, .cpu_ns = result->cpu_ns, .moved = {}};
}

}  // namespace nobounce::cli
