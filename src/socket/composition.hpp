// The steps of putting a stack together, shared by the ways to open one.
#pragma once

#include <memory>
#include <string>

#include "base/error.hpp"
#include "socket/set_up.hpp"
#include "socket/stack_core.hpp"

namespace nobounce {

[[nodiscard]] std::unexpected<Error> invalid_option(std::string cause, std::string hint);

// Counters, time, private memory and the shard: what every stack has, whatever its device. Checks
// the options first.
Result<std::shared_ptr<StackCore>> make_core(const StackOptions& options,
                                             const Surroundings& surroundings);
// Makes the device, puts the shard on it, sees that it takes the first frame (C126) and starts it.
Result<void> start(StackCore& core, DeviceFactory& factory);

}  // namespace nobounce
