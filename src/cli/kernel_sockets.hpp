// TCP sockets of the Linux kernel, as the demo's far end and its own client use them: IPv4, in the
// network namespace of the calling thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace nobounce::cli {

// At every address there; accept() does not block.
[[nodiscard]] Result<UniqueFd> kernel_listen(uint16_t port);
// Blocks, 5 seconds at most.
[[nodiscard]] Result<UniqueFd> kernel_connect(const std::string& address, uint16_t port);
// From here on no call blocks longer: it fails with EAGAIN.
void limit_blocking(const UniqueFd& socket, std::chrono::milliseconds time);
// All of it, or false when the connection is gone.
[[nodiscard]] bool kernel_send_all(int fd, Bytes bytes);

// What this connection uses: "cubic", "bbr".
[[nodiscard]] std::string congestion_control(const UniqueFd& socket);
// What new ones use that do not ask.
[[nodiscard]] std::string kernel_congestion_control();

// Gives the interface an address of a /24 and brings it up.
[[nodiscard]] Result<void> bring_up(const std::string& interface, const std::string& address);

}  // namespace nobounce::cli
