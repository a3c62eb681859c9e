#include "cli/program.hpp"

#include <fcntl.h>
#include <toml++/toml.h>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/unique_fd.hpp"

namespace nobounce::cli {
namespace {

constexpr size_t kConfigBytesMax = 1 << 20;

// Levenshtein's distance, for "did you mean".
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// " (did you mean 'x'?)", or nothing when nothing is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const auto best = std::ranges::min_element(
      known, {}, [&](const std::string& name) { return distance(word, name); });
  if (best == known.end() || distance(word, *best) > 2) return {};
  return "did you mean '" + *best + "'? ";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const CLI::App* chosen(const CLI::App& program) {
  const auto commands = program.get_subcommands();
  return commands.empty() ? nullptr : commands.front();
}

// All of a file, or a pipe. Read here and not by the parser, which takes a directory, or a file that
// fails under it, for an empty one.
std::string read_config(const std::string& path) {
  const auto refuse = [&path](int error) {
    usage_error("--config", path + ": " + std::strerror(error));
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) refuse(errno);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got == 0) return text;
    if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) refuse(errno);
    if (text.size() > kConfigBytesMax) {
      usage_error("--config", path + ": it is larger than 1 MiB; no list of options is");
    }
  }
}

// What a value of a configuration file would be on the command line; nothing for tables and lists.
std::optional<std::string> as_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    std::ostringstream text;
    text << number->get();
    return text.str();
  }
  return {};
}

// The same of a list, for options that take several; nothing when it is not what it should be.
std::vector<std::string> as_texts(const toml::node& node, bool may_be_list) {
  std::vector<std::string> texts;
  const toml::array* list = may_be_list ? node.as_array() : nullptr;
  if (list == nullptr) {
    if (const auto text = as_text(node)) texts.push_back(*text);
    return texts;
  }
  for (const toml::node& item : *list) {
    const auto text = as_text(item);
    if (!text) return {};
    texts.push_back(*text);
  }
  return texts;
}

void apply_table(CLI::App& command, const toml::table& table, const std::string& place,
                 bool shared) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (node.is_table()) continue;
    CLI::Option* option = command.get_option_no_throw("--" + name);
    if (option == nullptr || name == "config" || name == "help") {
      // At the top stand the options of all commands; one of them must know it.
      const auto others = command.get_parent()->get_subcommands({});
      const bool known = shared && std::ranges::any_of(others, [&](const CLI::App* other) {
                           return other->get_option_no_throw("--" + name) != nullptr;
                         });
      if (known && name != "config" && name != "help") continue;
      usage_error("--config", place + ": unknown key '" + name + "'; " +
                                  nearest("--" + name, option_names(command)) +
                                  "keys are option names without the dashes");
    }
    const bool may_be_list = option->get_items_expected_max() > 1;
    const std::vector<std::string> texts = as_texts(node, may_be_list);
    if (texts.empty()) {
      usage_error("--config", place + ": '" + name + "' must be one value" +
                                  (may_be_list ? " or a list of values" : ""));
    }
    if (option->count() != 0) continue;  // the command line wins
    for (const std::string& text : texts) option->add_result(text);
    option->run_callback();
  }
}

}  // namespace

void usage_error(const std::string& option, const std::string& what) {
  throw CLI::ValidationError(option, what);
}

void add_config(CLI::App& command, std::string& path) {
  command.add_option("--config", path, "options from a TOML file; the command line wins")
      ->type_name("FILE");
}

void apply_config(CLI::App& command, const std::string& path) {
  if (path.empty()) return;
  toml::table file;
  try {
    file = toml::parse(read_config(path), path);
  } catch (const toml::parse_error& error) {
    const auto& where = error.source().begin;
    std::string line = path;
    if (where.line > 0) line += ":" + std::to_string(where.line);
    usage_error("--config", line + ": " + std::string(error.description()));
  }
  // The command's own table first: what is set there is not set again by the shared keys.
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    if (!node.is_table()) continue;
    if (!std::ranges::count(command_names(*command.get_parent()), name)) {
      usage_error("--config", path + ": unknown table [" + name +
                                  "]; tables are named after commands: " +
                                  joined(command_names(*command.get_parent())));
    }
    if (name == command.get_name()) apply_table(command, *node.as_table(), path, false);
  }
  apply_table(command, file, path, true);
}

std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* command = chosen(program);
  const CLI::App& where = command != nullptr ? *command : program;
  const std::string name = command != nullptr ? "nobounce " + command->get_name() : "nobounce";
  const std::string help = "'" + name + " --help' lists them";
  std::string line = name + ": ";
  const auto extras = program.remaining(true);
  if (!extras.empty() && (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)) {
    const std::string& word = extras.front();
    if (word.starts_with("-")) {
      const std::string option = word.substr(0, word.find('='));
      line += "unknown option '" + option + "'; " + nearest(option, option_names(where)) + help;
    } else if (command == nullptr) {
      line += "unknown command '" + word + "'; " + nearest(word, command_names(program)) +
              "there are: " + joined(command_names(program));
    } else {
      line += "'" + word + "' is one word too many; '" + name + " --help' shows what is expected";
    }
  } else if (command == nullptr) {
    line += "no command; there are: " + joined(command_names(program)) +
            " ('nobounce --help' says more)";
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    line += std::string(error.what()) + "; '" + name + " --help' shows what each option takes";
  } else {
    line += error.what();
  }
  std::ranges::replace(line, '\n', ' ');
  return line;
}

}  // namespace nobounce::cli
