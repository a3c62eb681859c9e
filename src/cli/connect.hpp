// A connection made by a program that can be told to stop meanwhile.
#pragma once

#include <chrono>

#include "nobounce/stack.hpp"

namespace nobounce::cli {

// Connected, refused, nobody there within `timeout`, or interrupted by a stop signal.
[[nodiscard]] Result<TcpSocket> connect_to(Stack& stack, const Endpoint& remote,
                                           std::chrono::nanoseconds timeout);

}  // namespace nobounce::cli
