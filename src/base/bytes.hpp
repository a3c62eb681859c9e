// Byte order, private bytes only. Loads and stores work at any alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/assert.hpp"

namespace nobounce {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

template <class T>
  requires std::is_unsigned_v<T>
[[nodiscard]] constexpr T big_endian(T value) noexcept {
  return std::endian::native == std::endian::big ? value : std::byteswap(value);
}

template <class T>
  requires std::is_unsigned_v<T>
[[nodiscard]] constexpr T little_endian(T value) noexcept {
  return std::endian::native == std::endian::little ? value : std::byteswap(value);
}

template <class T>
[[nodiscard]] inline T load_be(Bytes bytes, size_t offset) noexcept {
  NB_ASSERT(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return big_endian(value);
}

template <class T>
[[nodiscard]] inline T load_le(Bytes bytes, size_t offset) noexcept {
  NB_ASSERT(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return little_endian(value);
}

template <class T>
inline void store_be(MutableBytes bytes, size_t offset, std::type_identity_t<T> value) noexcept {
  NB_ASSERT(offset + sizeof(T) <= bytes.size());
  value = big_endian(value);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <class T>
inline void store_le(MutableBytes bytes, size_t offset, std::type_identity_t<T> value) noexcept {
  NB_ASSERT(offset + sizeof(T) <= bytes.size());
  value = little_endian(value);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// View of a string's bytes, for tests and tools.
[[nodiscard]] inline Bytes as_bytes(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}

[[nodiscard]] constexpr uint64_t round_up(uint64_t value, uint64_t power_of_two) noexcept {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

[[nodiscard]] constexpr bool is_power_of_two(uint64_t value) noexcept {
  return std::has_single_bit(value);
}

}  // namespace nobounce
