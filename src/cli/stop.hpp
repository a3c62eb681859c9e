// Ctrl-C and SIGTERM: a flag to look at, or a token to hand on. The second signal ends the process
// the usual way, whatever hangs.
#pragma once

#include <stop_token>

namespace nobounce::cli {

// From here on the signals are caught. Once, before threads are made. The token is requested to
// stop by a thread of its own, so callbacks run outside signal context.
[[nodiscard]] std::stop_token catch_stop_signals();

// Before that, while something is set up that must not be left half done: the signals wait.
void hold_stop_signals() noexcept;

// Cheap, any thread.
[[nodiscard]] bool stop_requested() noexcept;

// The signal that asked, 0 while none did.
[[nodiscard]] int stop_signal() noexcept;

// Exit status of a command that was cut short: the shell's own, 128 and the signal's number, so that
// a script's loop around it ends too.
[[nodiscard]] int stop_status() noexcept;

}  // namespace nobounce::cli
