// The kernel beside us, in namespaces that go with this object: a TAP's far end with services, and a
// client of the kernel's own that reaches the same services over a veth pair.
//
//    [ namespace of the far end: services ]          [ namespace of the client ]
//        nb0 (TAP, 10.78.0.1)  <-- the back-end's          nothing but
//        nbv0 (10.79.0.1)      <======== veth ========>    nbv0 (10.79.0.2)
#pragma once

#include <memory>
#include <string>

#include "base/error.hpp"
#include "cli/interleave.hpp"
#include "cli/kernel_side.hpp"
#include "cli/kernel_stream.hpp"

namespace nobounce::cli {

class KernelPair {
 public:
  static constexpr const char* kTap = "nb0";
  static constexpr const char* kTapAddress = "10.78.0.1";
  static constexpr const char* kVeth = "nbv0";
  static constexpr const char* kVethAddress = "10.79.0.1";
  static constexpr const char* kClientAddress = "10.79.0.2";

  // The veth pair is up and the services serve. Fails without root.
  static Result<std::unique_ptr<KernelPair>> open(uint16_t mtu);

  [[nodiscard]] const std::string& netns() const noexcept { return far_->netns(); }
  // When the back-end has made the TAP.
  [[nodiscard]] Result<void> set_up_tap() { return far_->set_up(kTap, kTapAddress); }
  // One stream from kernel to kernel.
  [[nodiscard]] Result<Sample> run(KernelStream& stream, Direction direction,
                                   std::chrono::nanoseconds time);
  // What the last stream's client used.
  [[nodiscard]] const std::string& congestion_control() const noexcept { return control_; }

 private:
  KernelPair(std::unique_ptr<KernelSide> far, std::unique_ptr<KernelSide> client)
      : far_(std::move(far)), client_(std::move(client)) {}
  std::unique_ptr<KernelSide> far_;
  std::unique_ptr<KernelSide> client_;
  std::string control_;
};

}  // namespace nobounce::cli
