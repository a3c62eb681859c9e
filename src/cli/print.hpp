// Standard output of all commands. What could not be written is remembered with its reason, so that
// the program ends with one clear line and not with the first failed write's exception: whoever
// reads the output must not take a part for the whole. One thread prints.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace nobounce::cli {

// Written whole, or remembered as failed; buffered as stdio does.
void print_text(std::string_view text);

// Out of the buffer, for whoever waits for this line.
void flush_output();

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

// The errno of the first write that failed; 0: all is written.
int output_error();

}  // namespace nobounce::cli
