// The command line of `nobounce`: one definition per command, one way to say what is wrong with it.
//
// A command's definition adds its options to a CLI11 subcommand and, when that subcommand was
// chosen, leaves an action behind; main() runs it after everything was parsed. Exit status: 0 done,
// 1 failed (one line says what), 2 the command line was wrong (one line says what would be right),
// 128 and a signal's number: cut short by it. What serves until it is stopped ends with 0 then.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace nobounce::cli {

// What to do; its value is the exit status.
using Action = std::move_only_function<Result<int>()>;

// One file a command.
void define_backend(CLI::App& program, Action& action);
void define_cat(CLI::App& program, Action& action);
void define_demo(CLI::App& program, Action& action);
void define_perf(CLI::App& program, Action& action);
void define_ping(CLI::App& program, Action& action);
void define_stat(CLI::App& program, Action& action);
void define_version(CLI::App& program, Action& action);

// An option whose text `parse` turns into a value, or refuses; `right` then says what it should be:
// "'x' is not an address with a prefix length, e.g. 10.77.0.2/24".
template <class T, class Parse>
CLI::Option* add_value(CLI::App& app, const std::string& name, T& target, Parse parse,
                       const std::string& right, const std::string& type, const std::string& help) {
  const auto take = [&target, parse, right, name](const std::string& text) {
    auto value = parse(std::string_view(text));
    if (!value) throw CLI::ValidationError(name, "'" + text + "' is not " + right);
    target = *std::move(value);
  };
  return app.add_option_function<std::string>(name, take, help)->type_name(type);
}

// The same for an option that may be given several times; in a configuration file it is a list.
template <class T, class Parse>
CLI::Option* add_values(CLI::App& app, const std::string& name, std::vector<T>& target, Parse parse,
                        const std::string& right, const std::string& type,
                        const std::string& help) {
  const auto take = [&target, parse, right, name](const std::vector<std::string>& texts) {
    target.clear();
    for (const std::string& text : texts) {
      auto value = parse(std::string_view(text));
      if (!value) throw CLI::ValidationError(name, "'" + text + "' is not " + right);
      target.push_back(*std::move(value));
    }
  };
  return app.add_option_function<std::vector<std::string>>(name, take, help)
      ->type_name(type)
      ->allow_extra_args(false);
}

// The command line lacks something, or asks for two things at once.
[[noreturn]] void usage_error(const std::string& option, const std::string& what);

// Adds --config to a command; apply_config() then gives its values to the options that the command
// line left open. Call it first thing in the command's callback.
void add_config(CLI::App& command, std::string& path);
void apply_config(CLI::App& command, const std::string& path);

// The line for a command line that was not understood: what, and what would be right.
[[nodiscard]] std::string explain(const CLI::App& program, const CLI::ParseError& error);

}  // namespace nobounce::cli
