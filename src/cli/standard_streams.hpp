// Standard input and output for commands that move bytes: reads that can be broken off, writes that
// are whole or an error.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace nobounce::cli {

// Bytes read, 0 at the end of the input. Looks up ten times a second: when we are asked to stop, or
// `done` is set, it ends as if the input had.
[[nodiscard]] Result<size_t> read_input(MutableBytes to, const std::atomic<bool>& done);
[[nodiscard]] Result<void> write_output(Bytes bytes);
// The reader of our output sees its end now, not when the program ends.
void close_output() noexcept;

}  // namespace nobounce::cli
