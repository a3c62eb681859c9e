// The device and the guests that come to it, each in a process of its own: what the demo measures.
// Both end with the object.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/process.hpp"
#include "nobounce/stack.hpp"

namespace nobounce::cli {

// Who is at the far end.
struct Place {
  std::string peer;
  std::string guest;
  std::vector<std::string> device;  // the back-end's words for it
};

class GuestBench {
 public:
  // Starts `nobounce backend` and waits for its socket.
  static Result<GuestBench> open(const std::string& socket, const Place& place);

  // One guest process, `nobounce perf` with these words; its result.
  Result<nlohmann::json> guest(Mode mode, const std::vector<std::string>& job,
                               std::chrono::nanoseconds limit);
  [[nodiscard]] uint64_t device_cpu_ns() const noexcept { return device_.cpu_ns(); }

 private:
  GuestBench(Process device, std::string program, std::string socket, Place place)
      : device_(std::move(device)),
        program_(std::move(program)),
        socket_(std::move(socket)),
        place_(std::move(place)) {}
  std::string device_words();

  Process device_;
  std::string program_;
  std::string socket_;
  Place place_;
};

}  // namespace nobounce::cli
