// The options of every command that runs a guest's stack: --net, --ip and their relatives.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "nobounce/stack.hpp"

namespace nobounce::cli {

struct GuestOptions {
  StackOptions stack;
  std::vector<IpPrefix> addresses;  // --ip; finish_guest_options() gives them to `stack`
  std::string config;
};

// The options live in `options` until the program ends.
void add_guest_options(CLI::App& command, GuestOptions& options);

// In the command's callback: reads --config, then checks that what must be there is there.
void finish_guest_options(CLI::App& command, GuestOptions& options);

// Opens the stack, its counters published as "COMMAND-PID" where that is possible. A runtime
// directory that cannot be used costs the counters' publication and a warning, not the command.
[[nodiscard]] Result<std::unique_ptr<Stack>> open_stack(const GuestOptions& options,
                                                        const std::string& command);

// A socket error as an Error: why the interface is down when it is, else the errno's text.
[[nodiscard]] Error socket_error(const Stack& stack, std::string operation, std::errc code);

}  // namespace nobounce::cli
