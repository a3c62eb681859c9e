#include "netdev/impair_options.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

namespace nobounce {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};
constexpr std::array<Unit, 4> kTimes{{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
constexpr std::array<Unit, 4> kRates{{{"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"", 1}}};
constexpr std::array<Unit, 2> kChances{{{"%", 0.01}, {"", 1}}};

// A decimal number with one of the suffixes, in [low, high].
std::optional<double> parse_scaled(std::string_view text, std::span<const Unit> units, double low,
                                   double high) {
  double value = 0;
  const std::span characters(text);
  const char* const end = std::to_address(characters.end());
  const auto [rest, code] =
      std::from_chars(std::to_address(characters.begin()), end, value, std::chars_format::fixed);
  if (code != std::errc{}) return {};
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  for (const Unit& unit : units) {
    if (suffix != unit.suffix) continue;
    value *= unit.factor;
    // Also refuses what is not a number at all ("nan").
    return value >= low && value <= high ? std::optional(value) : std::nullopt;
  }
  return {};
}

std::optional<uint64_t> parse_seed(std::string_view text) {
  uint64_t value = 0;
  const std::span characters(text);
  const char* const end = std::to_address(characters.end());
  const auto [rest, code] = std::from_chars(std::to_address(characters.begin()), end, value);
  return code == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}

std::unexpected<Error> bad(std::string cause, std::string hint) {
  return fail(std::errc::invalid_argument, "read the impairments", std::move(cause),
              std::move(hint));
}

double* chance_of(ImpairOptions& options, std::string_view key) {
  if (key == "loss") return &options.loss;
  if (key == "reorder") return &options.reorder;
  if (key == "duplicate") return &options.duplicate;
  if (key == "corrupt") return &options.corrupt;
  return nullptr;
}

Result<void> set(ImpairOptions& options, std::string_view key, std::string_view value) {
  const auto bad_value = [&](std::string_view hint) {
    return bad(fmt::format("{}={}", key, value), std::string(hint));
  };
  if (double* chance = chance_of(options, key); chance != nullptr) {
    const auto parsed = parse_scaled(value, kChances, 0, 1);
    if (!parsed) return bad_value("give a share such as 1% or 0.01, at most 100%");
    *chance = *parsed;
  } else if (key == "delay") {
    const auto parsed =
        parse_scaled(value, kTimes, 0, static_cast<double>(ImpairOptions::kDelayMaxNs));
    if (!parsed) return bad_value("give a time such as 10ms or 500us, at most 10s");
    options.delay_ns = static_cast<uint64_t>(std::llround(*parsed));
  } else if (key == "rate") {
    const auto parsed = parse_scaled(value, kRates, static_cast<double>(ImpairOptions::kRateMin),
                                     static_cast<double>(ImpairOptions::kRateMax));
    if (!parsed) return bad_value("give bits per second such as 100M or 1G, at least 8K");
    options.rate = static_cast<uint64_t>(std::llround(*parsed));
  } else if (key == "seed") {
    const auto parsed = parse_seed(value);
    if (!parsed) return bad_value("give a whole number");
    options.seed = *parsed;
  } else {
    return bad(fmt::format("\"{}\" is no impairment", key),
               "there are loss, reorder, duplicate, corrupt, delay, rate and seed");
  }
  return {};
}

}  // namespace

Result<ImpairOptions> parse_impairments(std::string_view text) {
  ImpairOptions options;
  std::array<std::string_view, 7> seen;
  size_t count = 0;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return bad(fmt::format("\"{}\" has no value", item), "give KEY=VALUE such as loss=1%");
    }
    const std::string_view key = item.substr(0, equals);
    for (size_t i = 0; i < count; ++i) {
      if (seen[i] == key) return bad(fmt::format("{} is given twice", key), "give it once");
    }
    if (auto done = set(options, key, item.substr(equals + 1)); !done) {
      return std::unexpected(done.error());
    }
    seen.at(count++) = key;  // each known key once: there are no more
    if (comma == std::string_view::npos) return options;
    text.remove_prefix(comma + 1);
  }
}

std::string to_string(const ImpairOptions& options) {
  std::string text;
  const auto add = [&text](const char* key, double chance) {
    if (chance > 0) text += fmt::format("{}={:.6g}%,", key, chance * 100);
  };
  add("loss", options.loss);
  add("reorder", options.reorder);
  add("duplicate", options.duplicate);
  add("corrupt", options.corrupt);
  if (options.delay_ns > 0) {
    text += fmt::format("delay={:.6g}ms,", static_cast<double>(options.delay_ns) / 1e6);
  }
  if (options.rate > 0) {
    text += fmt::format("rate={:.6g}M,", static_cast<double>(options.rate) / 1e6);
  }
  return text + fmt::format("seed={}", options.seed);
}

}  // namespace nobounce
