// Puts a device (impairment, a test's probe) around a guest's port.
#pragma once

#include <functional>
#include <memory>

#include "base/error.hpp"
#include "netdev/net_device.hpp"
#include "netdev/shard_context.hpp"

namespace nobounce::backend {

using PortWrapper = std::function<Result<std::unique_ptr<NetDevice>>(
    std::unique_ptr<NetDevice> port, ShardContext& context)>;

}  // namespace nobounce::backend
