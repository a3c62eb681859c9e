// A connected unix socket to the other end of a vhost-user path, in either role.
//
// Errors name the path, the role and what is missing, within the budget (C119): nobody listens, the
// socket file is stale, both ends are clients, both are servers, no permission, no socket at all.
// Set-up only: blocks up to the budget.
#pragma once

#include <string>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "virtio/vhost_user/front_end.hpp"
#include "virtio/vhost_user/wait_budget.hpp"

namespace nobounce::virtio::vhost_user {

[[nodiscard]] Result<UniqueFd> connect_socket(const std::string& path, Role role,
                                              WaitBudget& budget);

}  // namespace nobounce::virtio::vhost_user
