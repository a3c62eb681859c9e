// What the back-end process gives up once it is set up, so that a guest that takes it over gains
// little (TM-87): it cannot be dumped or traced by its user's other processes, gains no privileges
// by exec, has no capabilities left, and may make only the system calls on an allow list.
//
// The filter answers EPERM to everything else; it never kills, so that a call the C library tries
// first (and can do without) is survived. It covers all threads of the process and cannot be undone.
// Built without libseccomp, or on a kernel without it, the filter is skipped and that is said.
//
// Threads: call once, after set-up, from any thread; capabilities are a thread's own.
// Spec: TM-87; design "Untrusted device".
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace nobounce::backend {

enum class Filter : uint8_t { on, unavailable };

// Not dumpable, no new privileges.
Result<void> forbid_dumps();
// Of the calling thread, and of threads it makes later: nothing is left of a privileged start.
Result<void> drop_capabilities();
// The allow list. `unavailable` when it was not built in.
Result<Filter> filter_system_calls();

}  // namespace nobounce::backend
